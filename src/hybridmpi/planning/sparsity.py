"""How many distinct rows random draws touch: the expected size of a step's sparse gradients, by formula.

n independent draws touch row i with probability 1 - (1 - p_i)^n, so E = sum over i of 1 - (1 - p_i)^n distinct rows.
Draws of several kinds, and of several ranks, multiply the chances to be missed; draws that all ranks share count once.

Tables have 10^7 rows and more, so sums over rows whose chances only fall go exactly over the head, and over the tail by
ranges in each of which the row numbers grow by a small ratio; the first and the last row of a range bound all others.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from hybridmpi.errors import UsageError
from hybridmpi.sparse.partition import Piece

# Rows summed one by one at the head, and by how much row numbers grow within a range of the tail. At the exponents of
# text a range's chances differ by that much, so the bound of the error is half of it; the error is far smaller.
HEAD_ROWS = 1 << 14
RANGE_GROWTH = 1.002

# Rows of which chances are held in memory at once, 8 MiB of them.
BLOCK_ROWS = 1 << 20


class Frequencies(ABC):
    """How likely a draw is to be each of `rows` rows. `falling`: no row is likelier than the one before it."""

    rows: int
    falling: bool

    @abstractmethod
    def chances(self, ids: np.ndarray) -> np.ndarray:
        """Return the probability of each of `ids` int64 [n], float64 [n]. Local."""


@dataclass(frozen=True)
class Zipf(Frequencies):
    """Row i with probability proportional to (i + 1) ** -exponent; 0 makes all rows alike."""

    rows: int
    exponent: float = 1.0
    falling = True

    def __post_init__(self) -> None:
        if self.rows < 1 or not self.exponent >= 0:
            raise UsageError(f"Zipf({self.rows}, {self.exponent}): expected rows >= 1 and an exponent >= 0")

    @cached_property
    def total(self) -> float:
        """The sum of (i + 1) ** -exponent: one by one at the head, by Euler and Maclaurin's formula beyond (1e-12)."""
        s, head = self.exponent, min(self.rows, HEAD_ROWS)
        total = math.fsum(np.arange(1, head + 1, dtype=np.float64) ** -s)
        if head == self.rows:
            return total
        a, b = float(head), float(self.rows)
        integral = math.log(b / a) if s == 1 else (b ** (1 - s) - a ** (1 - s)) / (1 - s)
        # The sum over (a, b] is the integral, half of the ends' difference and a twelfth of their slopes'.
        return total + integral + (b**-s - a**-s) / 2 - s * (b ** (-s - 1) - a ** (-s - 1)) / 12

    def chances(self, ids: np.ndarray) -> np.ndarray:
        """Return the probability of each of `ids` int64 [n], float64 [n]. Local."""
        return (ids + 1.0) ** -self.exponent / self.total


@dataclass(frozen=True)
class LogUniform(Frequencies):
    """The candidates of a sampled softmax (nn.sampling): P(i) = log(1 + 1 / (i + 1)) / log(rows + 1)."""

    rows: int
    falling = True

    def chances(self, ids: np.ndarray) -> np.ndarray:
        """Return the probability of each of `ids` int64 [n], float64 [n]. Local."""
        return np.log1p(1 / (ids + 1.0)) / math.log(self.rows + 1)


@dataclass(frozen=True)
class EveryRow(Frequencies):
    """No draw, but all rows: what a full softmax touches in every step."""

    rows: int
    falling = True

    def chances(self, ids: np.ndarray) -> np.ndarray:
        """Return 1 for each of `ids`. Local."""
        return np.ones(len(ids))


class Counted(Frequencies):
    """Row i as often as `counts[i]` of all counts: those of a vocabulary, or of the accesses of a running job."""

    falling = False

    def __init__(self, counts: np.ndarray) -> None:
        self.counts = np.asarray(counts, np.float64)
        self.rows, self._total = len(self.counts), float(self.counts.sum())
        if self.counts.ndim != 1 or not (self._total > 0 and self.counts.min() >= 0):
            raise UsageError(
                f"Counted: counts of shape {self.counts.shape} and sum {self._total}: expected one number >= 0 for "
                "each row, not all of them 0"
            )

    def chances(self, ids: np.ndarray) -> np.ndarray:
        """Return the probability of each of `ids` int64 [n], float64 [n]. Local."""
        return self.counts[ids] / self._total


@dataclass(frozen=True)
class Draws:
    """`count` draws of a rank in a step (a mean, so it may be fractional). `shared`: the same ones on all ranks."""

    frequencies: Frequencies
    count: float
    shared: bool = False


@dataclass(frozen=True)
class Progression:
    """The rows first, first + stride, ...: `count` of them. A sparse.partition.Piece is one too."""

    first: int
    stride: int
    count: int


def expected_rows(draws: Sequence[Draws], ranks: float = 1, part: Progression | Piece | None = None) -> float:
    """Return how many distinct rows `ranks` ranks touch together in a step: of the table, or of its `part`. Local.

    `draws`: what a rank draws, each kind independent of the others, all of a table with the same rows. The source of
    the formula is the head of this module; the error is below 0.1 %, see `expected_rows_within`.
    """
    low, high = expected_rows_within(draws, ranks, part)
    return (low + high) / 2


def expected_rows_within(
    draws: Sequence[Draws], ranks: float = 1, part: Progression | Piece | None = None
) -> tuple[float, float]:
    """Return bounds (low, high) of what `expected_rows` returns the middle of; equal where every row was summed. Local.

    Raises UsageError for draws of tables of different lengths.
    """
    drawn = [d for d in draws if d.count > 0]
    if not drawn or ranks <= 0:
        return 0.0, 0.0
    lengths = {d.frequencies.rows for d in drawn}
    if len(lengths) > 1:
        raise UsageError(f"draws from tables of {sorted(lengths)} rows: expected one table")
    part = part or Progression(0, 1, lengths.pop())

    def touched(places: np.ndarray) -> np.ndarray:
        ids = part.first + places * part.stride
        missed = np.zeros(len(ids))
        with np.errstate(divide="ignore"):  # a certain row has log 0
            for d in drawn:
                missed += d.count * (1 if d.shared else ranks) * np.log1p(-d.frequencies.chances(ids))
        return -np.expm1(missed)

    if all(d.frequencies.falling for d in drawn):
        return _falling_sum(touched, part.count)
    total = math.fsum(float(touched(ids).sum()) for ids in _blocks(part.count))
    return total, total


def scaled_to(draws: Sequence[Draws], touched: float) -> list[Draws]:
    """Return `draws` with all counts multiplied so that a rank touches `touched` rows on average. Local.

    For a measured sparsity: how rows are shared between ranks still follows the frequencies. Where no number of draws
    can touch so many rows (some are never drawn), all rows are touched.
    """
    rows = draws[0].frequencies.rows

    def times(factor: float) -> list[Draws]:
        return [Draws(d.frequencies, d.count * factor, d.shared) for d in draws]

    low, high = 0.0, 1.0
    while expected_rows(times(high)) < touched:
        low, high = high, high * 4
        if high > 1e12:
            return [Draws(EveryRow(rows), 1)]
    while high - low > 1e-4 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if expected_rows(times(middle)) < touched else (low, middle)
    return times(high)


def _blocks(count: int) -> list[np.ndarray]:
    return [np.arange(first, min(first + BLOCK_ROWS, count)) for first in range(0, count, BLOCK_ROWS)]


def _falling_sum(function: Callable[[np.ndarray], np.ndarray], count: int) -> tuple[float, float]:
    """Return bounds of the sum of a falling function over the places [0, count)."""
    head = min(count, HEAD_ROWS)
    exact = math.fsum(function(np.arange(head)))
    if head == count:
        return exact, exact
    steps = math.ceil(math.log(count / head) / math.log(RANGE_GROWTH))
    edges = np.unique(np.round(np.geomspace(head, count, steps + 1)).astype(np.int64))
    edges[0], edges[-1] = head, count
    sizes = np.diff(edges)
    largest, smallest = function(edges[:-1]), function(edges[1:] - 1)
    return exact + float(sizes @ smallest), exact + float(sizes @ largest)
