"""Translation: an encoder and a decoder with attention between them (Luong et al. 2015, arXiv 1508.04025)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np

from hybridmpi import autograd
from hybridmpi.autograd import Tensor, no_grad
from hybridmpi.errors import UsageError
from hybridmpi.field_types import Count, Share, checks_arguments
from hybridmpi.models.prediction import (
    PASSES,
    Softmax,
    likeliest,
    negative_log_likelihood,
    rows_of_loss,
    sampler_for,
    whole_table,
    word_loss,
)
from hybridmpi.nn import LSTM, Dropout, Embedding, Linear, Module


class SentencePairs(Protocol):
    """b sentences and their translations, each ended by its end-of-sentence word.

    `source` int [b, S] with `source_lengths` int [b], `target` int [b, T] with `target_lengths`; all lengths at least
    1. What stands beyond a length is never read.
    """

    source: np.ndarray
    source_lengths: np.ndarray
    target: np.ndarray
    target_lengths: np.ndarray


class TranslationModel(Module):
    """Embedding, an LSTM in each direction over the source; embedding, LSTM, attention, softmax for the target.

    Four tables: `source` [source_vocab, width], `target` and `output` [target_vocab, width], `bias` [target_vocab, 1].
    The decoder's first input is a summary of the source in place of a word; its LSTM does not see what it attends to
    (no input feeding), so that it runs over all steps at once. softmax: "sampled" trains on `samples` log-uniform
    candidates a step, the same on all ranks; "full" on the whole vocabulary. Word ids are sorted by falling frequency.
    dropout: of what the encoder remembers and of what the output words are predicted from.
    """

    @checks_arguments
    def __init__(
        self,
        source_vocab: Count,
        target_vocab: Count,
        width: Count = 128,
        hidden: Count = 128,
        samples: Count = 512,
        dropout: Share = 0.0,
        softmax: Softmax = "sampled",
        dtype: Any = np.float32,
    ) -> None:
        self.sampler = sampler_for(softmax, target_vocab, samples)
        self.source = Embedding(source_vocab, width, dtype=dtype)
        self.forwards = LSTM(width, hidden, dtype=dtype)
        self.backwards = LSTM(width, hidden, dtype=dtype)
        self.summary = Linear(2 * hidden, width, dtype=dtype)
        self.target = Embedding(target_vocab, width, dtype=dtype)
        self.decoder = LSTM(width, 2 * hidden, dtype=dtype)
        self.query = Linear(2 * hidden, 2 * hidden, bias=False, dtype=dtype)
        self.combine = Linear(4 * hidden, width, dtype=dtype)
        self.dropout = Dropout(dropout)
        self.output = Embedding(target_vocab, width, dtype=dtype)
        self.bias = Embedding(target_vocab, 1, init=("constant", 0.0), dtype=dtype)

    def loss(self, batch: SentencePairs) -> Tensor:
        """Return the mean negative log likelihood of the target words, ends included, padding not. Local; pulls rows.

        Raises UsageError for a batch without sentences or with an empty one, SparseIndexError for a word outside its
        vocabulary.
        """
        hidden, targets = self._predictors(batch)
        return word_loss(hidden, targets, self.output, self.bias, self.sampler)

    def rows_wanted(self, batch: SentencePairs) -> dict[str, np.ndarray]:
        """Return the ids of the rows that `loss` will pull for a batch, by table, as the step's draws decide. Local."""
        source, target = (
            words[_within(lengths, words.shape[1])]
            for words, lengths in ((batch.source, batch.source_lengths), (batch.target, batch.target_lengths))
        )
        inputs = batch.target[:, :-1][_within(batch.target_lengths, batch.target.shape[1])[:, 1:]]
        return {"source": source, "target": inputs, **rows_of_loss(target, self.sampler)}

    def flops(self, batch: SentencePairs, rows: Mapping[str, int]) -> float:
        """Return the additions and multiplications of the matrix products of `loss` and its backward, for a batch that
        takes so many different `rows` of each table. Local."""
        (count, source), target = batch.source.shape, batch.target.shape[1]
        words, width, hidden = int(batch.target_lengths.sum()), self.source.dim, self.forwards.hidden
        both = 2 * hidden  # the encoder's two directions, and what the decoder has
        encoder = 2 * (rows["source"] * width + count * source * hidden) * 4 * hidden + count * both * width
        decoder = ((rows["target"] + count) * width + count * target * both) * 4 * both
        attention = count * target * (both * both + 2 * source * both)
        return PASSES * 2 * (encoder + decoder + attention + words * width * (2 * both + rows["output"]))

    def evaluate(self, batch: SentencePairs) -> tuple[float, int]:
        """Return the sum of negative log likelihoods of the target words, in double precision, and their number. Local;
        pulls rows.

        By the full softmax; the output table is streamed once per call. Raises UsageError in training mode.
        """
        self._require_evaluation("evaluate")
        if not len(batch.source):
            return 0.0, 0
        with no_grad():
            hidden, targets = self._predictors(batch)
            return negative_log_likelihood(hidden.data, targets, self.output, self.bias), len(targets)

    def translate(self, batch: SentencePairs, end: int, longest: int) -> list[np.ndarray]:
        """Return a translation of each source sentence, int64 ids without the end: greedily, the likeliest word after
        the other. Local; pulls rows.

        end: the id of the end-of-sentence word; longest: words after which a sentence without an end is cut. Raises
        UsageError in training mode.
        """
        self._require_evaluation("translate")
        count = len(batch.source)
        words = np.full((count, longest), end)
        if not words.size:
            return [np.empty(0, np.int64)] * count
        _check(batch, "source")
        with no_grad():
            memory, inputs = self._encode(batch)
            output, bias = whole_table(self.output), whole_table(self.bias)[:, 0]
            positions, state, open_ = np.arange(count)[:, None], None, np.ones(count, bool)
            for step in range(longest):
                states, state = self.decoder(inputs, state, positions)
                hidden = self._attend(states, memory, batch.source_lengths, np.arange(count))
                words[:, step] = np.where(open_, likeliest(hidden.data, output, bias), end)
                open_ &= words[:, step] != end
                if not open_.any():
                    break
                distinct, positions = self.target.distinct(words[:, step : step + 1])
                inputs = self.target.rows_of(distinct)
        lengths = np.where((words == end).any(axis=1), (words == end).argmax(axis=1), longest)
        return [sentence[:length] for sentence, length in zip(words, lengths, strict=True)]

    def _predictors(self, batch: SentencePairs) -> tuple[Tensor, np.ndarray]:
        """Return what each target word is predicted from, [n, width], and the words, [n], sentence by sentence."""
        _check(batch, "source", "target")
        memory, summary = self._encode(batch)
        given = _within(batch.target_lengths, batch.target.shape[1])
        # Inputs are the target words moved on by one, after the summary: the last word of a sentence is never one.
        used = given[:, 1:]
        distinct, places = self.target.distinct(batch.target[:, :-1][used])
        rows = autograd.concatenate([self.target.rows_of(distinct), summary])
        count = len(given)
        positions = np.empty(given.shape, np.int64)
        positions[:, 0] = len(distinct) + np.arange(count)
        positions[:, 1:] = positions[:, :1]  # beyond the end any row will do that is there anyway
        positions[:, 1:][used] = places
        states, _ = self.decoder(rows, None, positions)
        return self._attend(states, memory, batch.source_lengths, np.flatnonzero(given)), batch.target[given]

    def _encode(self, batch: SentencePairs) -> tuple[Tensor, Tensor]:
        """Return the memory of the source, [b, S, 2 hidden], and the summaries of its sentences, [b, width]."""
        lengths, steps = batch.source_lengths, batch.source.shape[1]
        count, given = len(lengths), _within(lengths, steps)
        distinct, places = self.source.distinct(batch.source[given])
        rows = self.source.rows_of(distinct)
        positions = np.zeros((count, steps), np.int64)  # beyond the end any row will do that is there anyway
        positions[given] = places
        # The other direction reads each sentence from its own end; `turned` is its own inverse.
        turned = np.where(given, lengths[:, None] - 1 - np.arange(steps), np.arange(steps))
        there, _ = self.forwards(rows, None, positions)
        back, _ = self.backwards(rows, None, np.take_along_axis(positions, turned, axis=1))
        there, back = (part.transpose(1, 0, 2).reshape(steps * count, -1) for part in (there, back))  # views
        sentences = np.arange(count)
        last = (lengths - 1) * count + sentences
        ends = [autograd.gather_rows(part, last) for part in (there, back)]
        memory = [
            autograd.gather_rows(there, np.arange(steps) * count + sentences[:, None]),
            autograd.gather_rows(back, turned * count + sentences[:, None]),
        ]
        return self.dropout(autograd.concatenate(memory, axis=2)), self.summary(autograd.concatenate(ends, axis=1))

    def _attend(self, states: Tensor, memory: Tensor, lengths: np.ndarray, wanted: np.ndarray) -> Tensor:
        """Return tanh(W [context; state]) of the `wanted` ones, int [n], of the decoder's states [b, T, 2 hidden]."""
        count, steps, size = states.shape
        # Time first, as the LSTM leaves them: views, and one product for all.
        queries = self.query(states.transpose(1, 0, 2).reshape(steps * count, size))
        contexts = autograd.attention(queries.reshape(steps, count, size).transpose(1, 0, 2), memory, lengths)
        both = [autograd.gather_rows(part.reshape(count * steps, size), wanted) for part in (contexts, states)]
        return self.dropout(autograd.tanh(self.combine(autograd.concatenate(both, axis=1))))

    def _require_evaluation(self, what: str) -> None:
        if self.training:
            raise UsageError(f"TranslationModel.{what} in training mode: call eval() before and train() after")


def _within(lengths: np.ndarray, steps: int) -> np.ndarray:
    """Return which of [b, steps] lie within their sentences, bool."""
    return np.arange(steps) < lengths[:, None]


def _check(batch: SentencePairs, *sides: str) -> None:
    """Raise UsageError for a batch without sentences, or with a length that its words do not have."""
    if not len(batch.source):
        raise UsageError("TranslationModel: a batch without sentences: a rank that has none must not call it")
    for what in sides:
        words, lengths = getattr(batch, what), getattr(batch, f"{what}_lengths")
        if lengths.shape != words.shape[:1] or lengths.min() < 1 or lengths.max() > words.shape[1]:
            raise UsageError(
                f"TranslationModel: {what} {words.shape} with {len(lengths)} lengths from {lengths.min()} to "
                f"{lengths.max()}: expected one for each sentence, at least 1 (the end of the sentence) and at most "
                f"{words.shape[1]}"
            )
