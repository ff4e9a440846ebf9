"""Batches for truncated back-propagation: a text as parallel streams that are read a window at a time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from hybridmpi import inputs
from hybridmpi.data.sharding import block
from hybridmpi.errors import DataError, UsageError
from hybridmpi.field_types import Count, Natural, checks_arguments


@dataclass(frozen=True, slots=True)
class Batch:
    """One window of `b` streams: `inputs` and `targets` (the words that follow them), int64 [b, T], C-contiguous.

    `first_stream`: the global number of the first stream. `position`: windows read before this one since training
    began. `new_epoch`: the streams begin (again) here, so that a state carried over from the last window must be reset.
    """

    inputs: np.ndarray
    targets: np.ndarray
    first_stream: int
    position: int
    new_epoch: bool

    @property
    def weight(self) -> int:
        """The number of words predicted, 0 on a rank without streams: what a mean over ranks is weighted by."""
        return self.inputs.size


class Streams:
    """A text of n words, cut into `streams` contiguous streams of equal length that are read `steps` words at a time.

    `tokens`: integers [n]. `streams` is a global number, so that a text gives the same words in the same step on any
    number of ranks; rank `rank` of `ranks` reads a contiguous share of them, which may be empty: its batches then
    have b = 0, and their number is the same on every rank. Stream i is fed the words [i L, (i + 1) L) and predicts each
    next word, L = (n - 1) // streams; up to streams - 1 words at the end of the text are not read, nor, in training,
    the last L mod steps words of a stream.

    Iterating yields batches without end, epoch after epoch, from `position` (0, or set it to resume) and never changes
    it: a batch carries its own position, which stays right when batches are prefetched. To resume after a batch, set
    `position` to the position of that batch plus one. Local.
    Raises UsageError for sizes below 1 or an impossible rank; DataError for a text shorter than one batch.
    """

    @checks_arguments
    def __init__(self, tokens: np.ndarray, streams: Count, steps: Count, rank: Natural = 0, ranks: Count = 1) -> None:
        tokens = inputs.plain_array(tokens, "tokens")
        if tokens.ndim != 1 or (len(tokens) and tokens.dtype.kind not in "iu"):
            raise UsageError(f"tokens of dtype {tokens.dtype}, shape {tokens.shape}: expected one row of integers")
        self.first_stream, self.count = block(streams, rank, ranks)
        length = (len(tokens) - 1) // streams if len(tokens) else 0
        if length < steps:
            raise DataError(
                f"{len(tokens)} words are too few for {streams} streams of {steps} steps: at least "
                f"{streams * steps + 1} are needed; give more text, fewer streams or fewer steps"
            )
        self.steps = steps
        self.length = length
        self.batches_per_epoch = length // steps
        self.position = 0
        mine = slice(self.first_stream, self.first_stream + self.count)
        self._inputs = tokens[: streams * length].reshape(streams, length)[mine]
        self._targets = tokens[1 : streams * length + 1].reshape(streams, length)[mine]

    def batch(self, position: int) -> Batch:
        """Return the batch at `position` >= 0: a function of the position alone. Local."""
        window = position % self.batches_per_epoch
        return self._window(window * self.steps, position, window == 0)

    def __iter__(self) -> Iterator[Batch]:
        position = self.position
        while True:
            yield self.batch(position)
            position += 1

    def one_pass(self) -> Iterator[Batch]:
        """Yield every window of the streams once; the last is shorter where `steps` does not divide L. Local.

        For evaluation: streams x L words are predicted, each once. The number of batches is the same on every rank.
        """
        for position, start in enumerate(range(0, self.length, self.steps)):
            yield self._window(start, position, position == 0)

    def _window(self, start: int, position: int, new_epoch: bool) -> Batch:
        columns = slice(start, start + self.steps)
        return Batch(
            self._inputs[:, columns].astype(np.int64, order="C"),
            self._targets[:, columns].astype(np.int64, order="C"),
            self.first_stream,
            position,
            new_epoch,
        )


@checks_arguments
def held_out_streams(tokens: np.ndarray, streams: Count, steps: Count, rank: Natural = 0, ranks: Count = 1) -> Streams:
    """Return streams for one pass over a held-out text of at least two words; shorter texts get fewer and shorter ones.

    With n words, n - 1 can be predicted, of which the pass leaves out at most streams - 1. Perplexities compare only
    between equal `streams`, since each stream begins without context; they are the same for any number of ranks. Local.
    Raises DataError for fewer than two words.
    """
    tokens = inputs.plain_array(tokens, "tokens")
    if tokens.size < 2:
        raise DataError(f"a held-out text of {len(tokens)} words: at least 2 are needed; raise data.held_out")
    streams = max(1, min(streams, (len(tokens) - 1) // steps))
    return Streams(tokens, streams, min(steps, len(tokens) - 1), rank, ranks)
