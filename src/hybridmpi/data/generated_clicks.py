"""A click log that is made as it is read: the tables of a benchmark, keys by a power law, labels of a hidden model."""

from __future__ import annotations

import math
import zlib

import numpy as np

from hybridmpi import kernels
from hybridmpi.data.clicks import ClickBatch
from hybridmpi.field_types import Amount, Count, Natural, Seed, checks_arguments

# Distinct values of the 26 categorical features of the Criteo Kaggle log, as the DLRM benchmark counts them.
CRITEO_ROWS = (
    1460, 583, 10131227, 2202608, 305, 24, 12517, 633, 3, 93145, 5683, 8351593, 3194,
    27, 14992, 5461306, 10, 5652, 2173, 4, 7046547, 18, 15, 286181, 105, 142572,
)  # fmt: skip
FEATURES = 13  # numbers of an example there
FEWEST_ROWS = 3

# The hidden model: a factorisation machine. Its logit is a constant, weights times features, an effect of each bag's
# mean, and the dot product of every two bags' vectors; the deviations make each part count, and a quarter clicks.
CONSTANT, OF_FEATURES, OF_BAGS, OF_PAIRS = -1.6, 0.25, 0.35, 0.05
HIDDEN_WIDTH = 4
HIDDEN_ROWS = 1 << 16  # rows of larger tables share their hidden values: every rank holds them all

HELD_OUT_FIRST = 1 << 40  # held-out examples are numbered from here: training never comes so far


class GeneratedClicks:
    """Examples without end, each a function of its number and `seed` alone, so that any rank makes any of them. Local.

    Tables "c01" to "c26" have the Criteo rows divided by `divide`, at least 3; id i of a table has a chance in
    proportion to the integral of x ** -exponent from i + 1 to i + 2; every bag has `bag` ids. The features are normal.
    The hidden model is of the kind that ClickModel can learn, and `logits` of a batch are its own. Raises UsageError
    for sizes below 1.
    """

    @checks_arguments
    def __init__(self, divide: Count, exponent: Amount, bag: Count, held_out: Natural, seed: Seed) -> None:
        rows = [max(FEWEST_ROWS, -(-count // divide)) for count in CRITEO_ROWS]
        self.tables = {f"c{place:02}": count for place, count in enumerate(rows, 1)}
        self._arguments = divide, exponent, bag, held_out, seed
        self.features, self.held_out = FEATURES, held_out
        self._exponent, self._bag, self._seed = exponent, bag, seed
        self._weights = self._normal("weights", 1, FEATURES)[0]
        self._hidden = [
            self._normal(name, min(count, HIDDEN_ROWS), 1 + HIDDEN_WIDTH) for name, count in self.tables.items()
        ]

    def __reduce__(self) -> tuple[type[GeneratedClicks], tuple[int, float, int, int, int]]:
        """Travel as the arguments: all else is a function of them."""
        return GeneratedClicks, self._arguments

    def __str__(self) -> str:
        rows = self.tables.values()
        return (
            f"generated clicks: {len(rows)} tables of {min(rows)} to {max(rows):,} rows, {sum(rows):,} in all; "
            f"{self.held_out:,} examples held out"
        )

    def training(self, first: int, count: int) -> ClickBatch:
        """Return examples [first, first + count)."""
        return self._examples(first, count)

    def held_out_part(self, first: int, count: int) -> ClickBatch:
        """Return held-out examples [first, first + count)."""
        return self._examples(HELD_OUT_FIRST + first, count)

    def _examples(self, first: int, count: int) -> ClickBatch:
        features = np.empty((count, FEATURES), np.float32)
        kernels.normal_rows(features, first, 1, self._seed_of("features"), 0.0, 1.0)
        drawn = np.empty((count, len(self.tables) * self._bag + 1))
        kernels.uniform_rows(drawn, first, 1, self._seed_of("keys and labels"), 0.0, 1.0)
        keys = drawn[:, :-1].reshape(count, len(self.tables), self._bag)
        ids = tuple(self._ids(keys[:, place], rows) for place, rows in enumerate(self.tables.values()))
        starts = np.arange(count + 1, dtype=np.int64) * self._bag
        logits = self._logits(features, ids, starts)
        labels = (drawn[:, -1] < 1 / (1 + np.exp(-logits))).astype(np.float32)
        return ClickBatch(features, ids, (starts,) * len(ids), labels, logits)

    def _ids(self, uniform: np.ndarray, rows: int) -> np.ndarray:
        """Return ids int64 [m] for numbers in (0, 1), by inverting the power law's distribution on [1, rows + 1)."""
        power = 1 - self._exponent
        if abs(power) < 1e-9:
            x = np.exp(uniform.reshape(-1) * math.log(rows + 1))
        else:
            x = (1 + uniform.reshape(-1) * ((rows + 1) ** power - 1)) ** (1 / power)
        return np.minimum(x.astype(np.int64) - 1, rows - 1)  # the last one may round up to rows + 1

    def _logits(self, features: np.ndarray, ids: tuple[np.ndarray, ...], starts: np.ndarray) -> np.ndarray:
        """Return the hidden model's logits, float64 [n]."""
        # A sum for each example, not a matrix product: its bits must not depend on who else is in the batch.
        logits = CONSTANT + OF_FEATURES * (features * self._weights).sum(axis=1)
        total, squares = np.zeros((2, len(features), HIDDEN_WIDTH))
        for hidden, keys in zip(self._hidden, ids, strict=True):
            mean = np.empty((len(features), 1 + HIDDEN_WIDTH))
            kernels.segment_sum(hidden, keys % len(hidden), starts, mean)
            mean /= self._bag
            logits += OF_BAGS * mean[:, 0]
            total += mean[:, 1:]
            squares += mean[:, 1:] ** 2
        return logits + OF_PAIRS * 0.5 * (total**2 - squares).sum(axis=1)

    def _normal(self, name: str, rows: int, columns: int) -> np.ndarray:
        values = np.empty((rows, columns))
        kernels.normal_rows(values, 0, 1, self._seed_of(name), 0.0, 1.0)
        return values

    def _seed_of(self, name: str) -> int:
        return (self._seed << 32) ^ zlib.crc32(name.encode())
