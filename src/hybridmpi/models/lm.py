"""A language model whose step touches few rows of large tables (Jozefowicz et al. 2016, arXiv 1602.02410)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, Self

import numpy as np

from hybridmpi.autograd import Tensor, no_grad
from hybridmpi.errors import UsageError
from hybridmpi.field_types import Count, Share, checks_arguments
from hybridmpi.models.prediction import PASSES, Softmax, negative_log_likelihood, rows_of_loss, sampler_for, word_loss
from hybridmpi.nn import LSTM, Dropout, Embedding, Module
from hybridmpi.nn.lstm import State

EVALUATED_STEPS = 64  # words of a stream that the LSTM sees at once in evaluation: bounds its memory


class TextBatch(Protocol):
    """A window of text: `inputs` int [b, T], `targets` the words that follow; `new_epoch`: the streams start anew."""

    inputs: np.ndarray
    targets: np.ndarray
    new_epoch: bool


class LanguageModel(Module):
    """Embedding, one LSTM with projection, softmax over an output table.

    Three tables: `embedding` and `output` [vocab, width], `bias` [vocab, 1].
    softmax: "sampled" trains on `samples` log-uniform candidates a step, the same on all ranks; "full" on the whole
    vocabulary. Word ids are sorted by falling frequency. The LSTM state is carried from batch to batch (truncated
    back-propagation), one row for each stream; a batch with `new_epoch` starts from zeros.
    """

    @checks_arguments
    def __init__(
        self,
        vocab: Count,
        width: Count = 128,
        hidden: Count = 256,
        samples: Count = 1024,
        dropout: Share = 0.0,
        softmax: Softmax = "sampled",
        dtype: Any = np.float32,
    ) -> None:
        self.sampler = sampler_for(softmax, vocab, samples)
        self.embedding = Embedding(vocab, width, dtype=dtype)
        self.dropout = Dropout(dropout)
        self.lstm = LSTM(width, hidden, projection=width, dtype=dtype)
        self.output = Embedding(vocab, width, dtype=dtype)
        self.bias = Embedding(vocab, 1, init=("constant", 0.0), dtype=dtype)
        self._state: State | None = None
        self._evaluation_state: State | None = None

    def loss(self, batch: TextBatch) -> Tensor:
        """Return the mean negative log likelihood of the batch's words and carry the state on. Local; pulls rows.

        Raises UsageError for an empty batch or another number of streams than the carried state has, SparseIndexError
        for a word outside the vocabulary.
        """
        if not batch.inputs.size:
            raise UsageError(
                f"LanguageModel.loss: empty batch {batch.inputs.shape}: a rank without words must not call it"
            )
        state = _state_for(batch, self._state)
        hidden, self._state = self._hidden(batch.inputs, state)
        targets = batch.targets.T.reshape(-1)  # time first, as hidden
        return word_loss(hidden, targets, self.output, self.bias, self.sampler)

    def rows_wanted(self, batch: TextBatch) -> dict[str, np.ndarray]:
        """Return the ids of the rows that `loss` will pull for a batch, by table, as the step's draws decide. Local."""
        return {"embedding": batch.inputs, **rows_of_loss(batch.targets.reshape(-1), self.sampler)}

    def flops(self, batch: TextBatch, rows: Mapping[str, int]) -> float:
        """Return the additions and multiplications of the matrix products of `loss` and its backward, for a batch that
        takes so many different `rows` of each table. Local."""
        words, hidden, width = batch.inputs.size, self.lstm.hidden, self.embedding.dim
        inputs = words if self.dropout.rate else rows["embedding"]
        gates = (inputs * width + words * self.lstm.outputs) * 4 * hidden
        return PASSES * 2 * (gates + words * hidden * self.lstm.outputs + words * rows["output"] * width)

    def evaluate(self, batch: TextBatch) -> tuple[float, int]:
        """Return the sum of negative log likelihoods, in double precision, and the number of words. Local; pulls rows.

        By the full softmax. The output table is streamed by blocks of rows, once per call: pass long batches.
        Evaluation has a state of its own, carried from call to call; eval() starts it from zeros. Raises UsageError in
        training mode.
        """
        if self.training:
            raise UsageError("LanguageModel.evaluate in training mode: call eval() before and train() after")
        if not batch.inputs.size:
            return 0.0, 0
        with no_grad():
            state, parts = _state_for(batch, self._evaluation_state), []
            for first in range(0, batch.inputs.shape[1], EVALUATED_STEPS):
                hidden, state = self._hidden(batch.inputs[:, first : first + EVALUATED_STEPS], state)
                parts.append(hidden.data)
            self._evaluation_state = state
            targets = batch.targets.T.reshape(-1)
            total = negative_log_likelihood(np.concatenate(parts), targets, self.output, self.bias)
            return total, len(targets)

    def train(self, training: bool = True) -> Self:
        """Go back to training, or begin an evaluation, whose carried state is zero; that of training stays. Local."""
        self._evaluation_state = None
        return super().train(training)

    def state_arrays(self) -> dict[str, Any]:
        """Return the carried state: "h" [streams, width], "c" [streams, hidden]; no rows at the start. Local."""
        h, c = self._state or (
            np.empty((0, self.lstm.outputs), self.output.dtype),
            np.empty((0, self.lstm.hidden), self.output.dtype),
        )
        return {"h": h, "c": c}

    def set_state_arrays(self, arrays: dict[str, Any]) -> None:
        """Carry on from what state_arrays returned. Local. Raises UsageError for other names or widths."""
        widths = {"h": self.lstm.outputs, "c": self.lstm.hidden}
        found = {name: array.shape[1] for name, array in arrays.items() if array.ndim == 2}
        if found != widths or len(arrays["h"]) != len(arrays["c"]):
            shapes = {name: array.shape for name, array in arrays.items()}
            raise UsageError(f"LanguageModel.set_state_arrays: got {shapes}; expected streams x {widths}")
        self._state = (arrays["h"], arrays["c"]) if len(arrays["h"]) else None

    def reset_state(self) -> None:
        """Start the streams of training from zeros. Local."""
        self._state = None

    def _hidden(self, words: Any, state: State | None) -> tuple[Tensor, State]:
        """Return the LSTM's outputs for words [b, T], time first: [T * b, width], and its last state."""
        if self.training and self.dropout.rate:
            # Each occurrence of a word has a mask of its own: rows cannot be shared. Time first, as the LSTM wants it.
            outputs, state = self.lstm(self.dropout(self.embedding(words.T)).transpose(1, 0, 2), state)
        else:
            distinct, positions = self.embedding.distinct(words)
            outputs, state = self.lstm(self.embedding.rows_of(distinct), state, positions)
        hidden = outputs.transpose(1, 0, 2).reshape(-1, self.lstm.outputs)  # a view: no copy
        return self.dropout(hidden), state


def _state_for(batch: TextBatch, state: State | None) -> State | None:
    """Return the state a batch starts from; UsageError if it has another number of streams."""
    if state is None or batch.new_epoch:
        return None
    if len(state[0]) != len(batch.inputs):
        raise UsageError(
            f"LanguageModel: a batch of {len(batch.inputs)} streams after one of {len(state[0])}: the carried state "
            "belongs to streams; call reset_state() where they change"
        )
    return state
