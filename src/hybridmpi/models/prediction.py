"""Predicting words with an output table: the loss that is trained on, and the exact one of evaluation."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

from hybridmpi import autograd
from hybridmpi.autograd import Tensor, draws
from hybridmpi.autograd.sampled_softmax import shift_by_maximum
from hybridmpi.nn import Embedding, LogUniform, sampled_softmax

PASSES = 3  # as much as the forward products the backward ones take twice: gradients of inputs, and of weights

EVALUATED_ROWS = 2048  # rows of the output table pulled at once in evaluation
EVALUATED_WORDS = 128  # words scored at once against them: 1 MiB of logits, which stay in the cache


Softmax = Literal["sampled", "full"]
"""Over candidates drawn anew for each step, or over the whole vocabulary, for small ones."""


def sampler_for(softmax: Softmax, vocab: int, samples: int) -> LogUniform | None:
    """Return what draws the candidates: for "sampled" a log-uniform sampler, for "full" none. Local."""
    return LogUniform(vocab, samples) if softmax == "sampled" else None


def word_loss(hidden: Tensor, targets: Any, output: Embedding, bias: Embedding, sampler: LogUniform | None) -> Tensor:
    """Return the mean negative log likelihood of `targets` int [n] given hidden [n, d]. Local; pulls rows.

    By the sampler's candidates, drawn anew for each step and alike on all ranks; without one over the whole table.
    """
    if sampler is None:
        everything = np.arange(output.rows)
        rows, biases = output.rows_of(everything), bias.rows_of(everything)
        return autograd.sampled_softmax(hidden, rows, biases, output.check(targets), None)
    candidates = sampler.draw(draws.generator("candidates", shared=True))
    return sampled_softmax(hidden, targets, candidates, output, bias, sampler)


def rows_of_loss(targets: np.ndarray, sampler: LogUniform | None) -> dict[str, np.ndarray]:
    """Return the ids of the rows that `word_loss` will pull for `targets` int [n], as the draws of the step decide, of
    the tables "output" and "bias". Local.

    No ids without a sampler: every step wants the whole table, and changes it.
    """
    if sampler is None:
        return {}
    candidates = sampler.draw(draws.generator("candidates", shared=True))
    return dict.fromkeys(("output", "bias"), np.concatenate([targets, candidates]))


def negative_log_likelihood(hidden: np.ndarray, targets: np.ndarray, output: Embedding, bias: Embedding) -> float:
    """Return the sum over words of log(sum over rows of exp(logit)) - logit of the target, in double precision. Local;
    pulls rows.

    No table is ever whole here: the sums run over blocks of rows, relative to the largest logit so far, and are
    rescaled when it grows.
    """
    count = len(targets)
    distinct, positions = output.distinct(targets)
    rows, biases = output.rows_of(distinct).data, bias.rows_of(distinct).data
    true = np.concatenate([
        np.einsum("nd,nd->n", hidden[words], rows[positions[words]]) + biases[positions[words], 0]
        for words in _slices(count, EVALUATED_WORDS)
    ])  # fmt: skip
    largest, totals, no_hits = true.copy(), np.zeros(count), np.full(EVALUATED_WORDS, -1)
    for block in _slices(output.rows, EVALUATED_ROWS):
        ids = np.arange(block.start, block.stop)
        rows, biases = output.rows_of(ids).data, bias.rows_of(ids).data[:, 0]
        ones = np.ones(len(ids), rows.dtype)
        for words in _slices(count, EVALUATED_WORDS):
            logits, before = rows @ hidden[words].T, largest[words].copy()
            shift_by_maximum(logits, biases, before, no_hits[: len(before)])
            largest[words] -= before  # now what the maximum so far lies below the new one: 0 or less
            totals[words] *= np.exp(before)
            totals[words] += ones @ np.exp(logits, out=logits)
    return float((np.log(totals) + largest - true).sum())


def likeliest(hidden: np.ndarray, output: np.ndarray, bias: np.ndarray) -> np.ndarray:
    """Return the ids, int64 [n], of the largest logits of hidden [n, d] over output [rows, d] and bias [rows]. Local.

    The first of equal ones.
    """
    return np.argmax(hidden @ output.T + bias, axis=1)


def whole_table(table: Embedding) -> np.ndarray:
    """Return all rows, [rows, dim], pulled by blocks: for what needs them again and again. Local."""
    blocks = [table.rows_of(np.arange(b.start, b.stop)).data.copy() for b in _slices(table.rows, EVALUATED_ROWS)]
    return np.concatenate(blocks)


def _slices(count: int, size: int) -> list[slice]:
    """Return slices of at most `size` that cover `count` elements."""
    return [slice(first, min(first + size, count)) for first in range(0, count, size)]
