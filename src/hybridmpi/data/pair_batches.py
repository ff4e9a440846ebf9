"""Batches of sentence pairs of about equal length, dealt out to the ranks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from hybridmpi.data.sentences import Pairs
from hybridmpi.data.sharding import shard
from hybridmpi.errors import DataError
from hybridmpi.field_types import Count, Natural, Seed, checks_arguments


@dataclass(frozen=True, slots=True)
class PairBatch:
    """`b` sentence pairs: `source` int64 [b, S] and `target` int64 [b, T], filled up with zeros beyond the lengths.

    `source_lengths`, `target_lengths`: int64 [b], ends of sentences included. `pairs`: int64 [b], the pairs' numbers.
    `position`: batches read before this one since training began.
    """

    source: np.ndarray
    source_lengths: np.ndarray
    target: np.ndarray
    target_lengths: np.ndarray
    pairs: np.ndarray
    position: int

    @property
    def weight(self) -> int:
        """The number of target words, 0 on a rank without sentences: what a mean over ranks is weighted by."""
        return int(self.target_lengths.sum())


class PairBatches:
    """Batches of `sentences` pairs over all ranks; pair i of a batch goes to rank i mod `ranks`.

    Each epoch shuffles the pairs, sorts them by their lengths, so that little is filled up, cuts them into batches and
    reads these in random order; up to sentences - 1 pairs of an epoch are not read. All of it is a function of `seed`
    and the epoch: a text gives the same pairs in the same step on any number of ranks. A rank beyond `sentences` gets
    empty batches; their number is the same on every rank.

    Iterating yields batches without end from `position` (0, or set it to resume) and never changes it. To resume after
    a batch, set `position` to the position of that batch plus one. Local.
    Raises UsageError for sizes below 1 or an impossible rank; DataError for a text shorter than one batch.
    """

    @checks_arguments
    def __init__(self, pairs: Pairs, sentences: Count, seed: Seed, rank: Natural = 0, ranks: Count = 1) -> None:
        shard((), rank, ranks)  # refuses an impossible rank
        if len(pairs) < sentences:
            raise DataError(
                f"{len(pairs)} pairs of sentences are too few for a batch of {sentences}: give more text, or fewer "
                "sentences a batch"
            )
        self.sentences, self.position = sentences, 0
        self.batches_per_epoch = len(pairs) // sentences
        self._pairs, self._seed, self._rank, self._ranks = pairs, seed, rank, ranks
        self._epoch, self._order = -1, np.empty(0, np.int64)

    def batch(self, position: int) -> PairBatch:
        """Return the batch at `position` >= 0: a function of the position alone. Local."""
        epoch, number = divmod(position, self.batches_per_epoch)
        if epoch != self._epoch:
            self._epoch, self._order = epoch, _order_of(self._pairs, self.sentences, self._seed, epoch)
        return self._batch(self._order[number], position)

    def __iter__(self) -> Iterator[PairBatch]:
        position = self.position
        while True:
            yield self.batch(position)
            position += 1

    def one_pass(self) -> Iterator[PairBatch]:
        """Yield every pair once, sorted by length; the last batch may be smaller. Local.

        For evaluation. The number of batches is the same on every rank.
        """
        order = _by_length(self._pairs, np.arange(len(self._pairs)))
        for position, first in enumerate(range(0, len(order), self.sentences)):
            yield self._batch(order[first : first + self.sentences], position)

    def _batch(self, pairs: np.ndarray, position: int) -> PairBatch:
        mine = pairs[self._rank :: self._ranks]
        return PairBatch(*self._pairs.source.padded(mine), *self._pairs.target.padded(mine), mine, position)


@lru_cache(maxsize=1)  # the same for all ranks, which a plan reads in one process
def _order_of(pairs: Pairs, sentences: int, seed: int, epoch: int) -> np.ndarray:
    """Return the pairs of each batch of an epoch, int64 [batches, sentences]."""
    random = np.random.default_rng([seed, epoch])
    order = _by_length(pairs, random.permutation(len(pairs)))
    # What does not fill a batch is left out here and there, not always among the longest.
    order = np.delete(order, random.choice(len(order), len(order) % sentences, replace=False))
    batches = order.reshape(-1, sentences)
    return batches[random.permutation(len(batches))]


def _by_length(pairs: Pairs, order: np.ndarray) -> np.ndarray:
    """Return `order` sorted by the lengths of the pairs."""
    lengths = [side.lengths[order] for side in (pairs.source, pairs.target)]
    return order[np.lexsort(lengths)]  # by target, then by source, else as they came


@checks_arguments
def held_out_pair_batches(pairs: Pairs, sentences: Count, rank: Natural = 0, ranks: Count = 1) -> PairBatches:
    """Return batches for one pass over held-out pairs, of which there is at least one; few pairs make smaller ones.

    The sums over them are the same for any number of ranks. Local. Raises DataError for no pairs.
    """
    if not len(pairs):
        raise DataError("no held-out pairs of sentences: raise data.held_out, or give more text")
    return PairBatches(pairs, min(sentences, len(pairs)), 0, rank, ranks)
