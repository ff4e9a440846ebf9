"""Sampled softmax over the rows of an output table, with candidates drawn log-uniformly."""

from __future__ import annotations

import math

import numpy as np

from hybridmpi import autograd
from hybridmpi.autograd import Tensor
from hybridmpi.autograd.tensor import as_tensor
from hybridmpi.errors import UsageError
from hybridmpi.field_types import Count, checks_arguments
from hybridmpi.inputs import integers
from hybridmpi.nn.embedding import Embedding

EXPONENT_BITS, TABLE_BITS = 52, 13


def _tables_of_powers(base: int) -> list[np.ndarray]:
    """Return tables whose products are base ** u, for u of EXPONENT_BITS binary places, TABLE_BITS each. Local.

    Made of roots and products alone, which every processor rounds alike: all ranks draw the same candidates, and exp
    and log are other bits in other libraries.
    """
    root, tables = np.float64(base), []
    for _ in range(EXPONENT_BITS // TABLE_BITS):
        table = np.ones(1)
        for _ in range(TABLE_BITS):  # from the highest place to the lowest
            root = np.sqrt(root)
            table = np.stack([table, table * root], axis=1).reshape(-1)
        tables.append(table)
    return tables


class LogUniform:
    """The log-uniform (Zipfian) distribution over ids sorted by falling frequency.

    P(id) = log(1 + 1 / (id + 1)) / log(rows + 1); `samples` ids are drawn at a time, with repetition.
    """

    @checks_arguments
    def __init__(self, rows: Count, samples: Count) -> None:
        self.rows, self.samples = rows, samples
        self._powers = _tables_of_powers(rows + 1)

    def draw(self, generator: np.random.Generator) -> np.ndarray:
        """Return `samples` ids, int64, repeated ones included. Local."""
        # Of 52 bits, each table takes its part of the exponent.
        bits = (generator.random(self.samples) * 2.0**EXPONENT_BITS).astype(np.int64)
        powers = np.ones(self.samples)
        for number, table in enumerate(self._powers):
            powers *= table[(bits >> (EXPONENT_BITS - (number + 1) * TABLE_BITS)) & (2**TABLE_BITS - 1)]
        return np.clip(powers.astype(np.int64) - 1, 0, self.rows - 1)

    def log_chance(self, ids: np.ndarray) -> np.ndarray:
        """Return the logarithm of each id's chance to be drawn at all, 1 - (1 - P(id)) ** samples, float64. Local."""
        ids = integers(ids, "LogUniform: id", 0, self.rows)
        share = np.log1p(1 / (ids + 1.0)) / math.log(self.rows + 1)
        with np.errstate(divide="ignore"):  # a single row is drawn for certain
            return np.log(-np.expm1(self.samples * np.log1p(-share)))


def sampled_softmax(
    hidden: Tensor,
    targets: np.ndarray,
    candidates: np.ndarray,
    output: Embedding,
    bias: Embedding,
    sampler: LogUniform,
) -> Tensor:
    """Return the mean sampled softmax loss of n examples. Local; pulls rows of `output` [rows, d] and `bias` [rows, 1].

    hidden [n, d]; targets int [n]; candidates int [s], as drawn by `sampler`; one drawn several times takes part once.
    Each logit is lowered by the logarithm of the id's chance to be drawn; a candidate equal to an example's target does
    not count for it. So a class' weight, over many draws, is that of the full softmax, also for an example's own class,
    which is there for certain (Jean et al. 2015, section 3, with the chance for the proposal's density; TensorFlow's
    sampled_softmax_loss over unique candidates). The expected number of draws in its place, 60 for the most frequent
    word, would divide the own class by 60 and leave it as it is among the others' candidates.
    """
    hidden = as_tensor(hidden, None, "sampled_softmax: hidden")
    targets = output.check(targets)
    if targets.ndim != 1:
        raise UsageError(f"sampled_softmax: targets {targets.shape}: expected one row")
    drawn = np.unique(output.check(candidates))
    ids = np.concatenate([targets, drawn])
    distinct, positions = output.distinct(ids)
    corrections = -sampler.log_chance(ids).astype(hidden.dtype)
    return autograd.sampled_softmax(
        hidden,
        output.rows_of(distinct),
        bias.rows_of(distinct),
        positions[: len(targets)],
        positions[len(targets) :],
        corrections[: len(targets)],
        corrections[len(targets) :],
    )
