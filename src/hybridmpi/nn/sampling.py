"""Sampled softmax over the rows of an output table, with candidates drawn log-uniformly."""

from __future__ import annotations

import math

import numpy as np

from hybridmpi import autograd
from hybridmpi.autograd import Tensor
from hybridmpi.errors import UsageError
from hybridmpi.nn.embedding import Embedding


class LogUniform:
    """The log-uniform (Zipfian) distribution over ids sorted by falling frequency.

    P(id) = log(1 + 1 / (id + 1)) / log(rows + 1); `samples` ids are drawn at a time, with repetition.
    """

    def __init__(self, rows: int, samples: int) -> None:
        if rows < 1 or samples < 1:
            raise UsageError(f"LogUniform: {samples} samples of {rows} rows: expected both to be at least 1")
        self.rows, self.samples = rows, samples

    def draw(self, generator: np.random.Generator) -> np.ndarray:
        """Return `samples` ids, int64, repeated ones included. Local."""
        ids = np.exp(generator.random(self.samples) * math.log(self.rows + 1)).astype(np.int64) - 1
        return np.clip(ids, 0, self.rows - 1)

    def log_expected(self, ids: np.ndarray) -> np.ndarray:
        """Return the logarithm of how often each id is expected among the samples, float64. Local."""
        return np.log(np.log1p(1 / (ids + 1.0)) * (self.samples / math.log(self.rows + 1)))


def sampled_softmax(
    hidden: Tensor,
    targets: np.ndarray,
    candidates: np.ndarray,
    output: Embedding,
    bias: Embedding,
    sampler: LogUniform,
) -> Tensor:
    """Return the mean sampled softmax loss of n examples. Local; pulls rows of `output` [rows, d] and `bias` [rows, 1].

    hidden [n, d]; targets int [n]; candidates int [s], as drawn by `sampler`. Each logit is lowered by the logarithm of
    the id's expected count; a candidate equal to an example's target does not count for it (Jean et al. 2015).

    A candidate drawn k times has k equal logits, so it takes part once with log k added: the same loss and gradients
    from smaller products. 1,024 samples of 100,000 rows are about 660 distinct ones.
    """
    drawn, counts = np.unique(candidates, return_counts=True)
    ids = np.concatenate([np.asarray(targets, np.int64), drawn])
    distinct, positions = output.distinct(ids)
    corrections = -sampler.log_expected(ids)
    corrections[len(targets) :] += np.log(counts)
    corrections = corrections.astype(hidden.dtype)
    return autograd.sampled_softmax(
        hidden,
        output.rows_of(distinct),
        bias.rows_of(distinct),
        positions[: len(targets)],
        positions[len(targets) :],
        corrections[: len(targets)],
        corrections[len(targets) :],
    )
