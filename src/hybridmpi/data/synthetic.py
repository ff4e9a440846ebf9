"""Words drawn from a Zipf distribution: text of any vocabulary without a file, for benchmarks."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from hybridmpi.data.sharding import block
from hybridmpi.data.streams import Batch
from hybridmpi.field_types import Amount, Count, Natural, Seed, checks_arguments


class ZipfStreams:
    """Endless batches of independent words, word i with a chance proportional to (i + 1) ** -exponent.

    Ids are sorted by frequency, like those of a Vocabulary. `streams` is the global number, shared out as in Streams;
    every rank draws its own share from numpy's default generator seeded by (seed, rank). Targets are the inputs shifted
    by one, and a batch goes on where the last one ended. Iterating again begins again. Local.
    Raises UsageError for sizes below 1 or an impossible rank.
    """

    @checks_arguments
    def __init__(
        self,
        vocabulary: Count,
        exponent: Amount,
        streams: Count,
        steps: Count,
        seed: Seed,
        rank: Natural = 0,
        ranks: Count = 1,
    ) -> None:
        self.first_stream, self.count = block(streams, rank, ranks)
        self.steps, self._seed = steps, [seed, rank]
        weights = np.arange(1, vocabulary + 1, dtype=np.float64) ** -exponent
        self._cumulated = np.cumsum(weights) / weights.sum()

    def __iter__(self) -> Iterator[Batch]:
        random, position = np.random.default_rng(self._seed), 0
        last = self._draw(random, 1)
        while True:
            window = np.concatenate([last, self._draw(random, self.steps)], axis=1)
            last = window[:, -1:]
            inputs, targets = window[:, :-1].copy(), window[:, 1:].copy()
            yield Batch(inputs, targets, self.first_stream, position, position == 0)
            position += 1

    def _draw(self, random: np.random.Generator, length: int) -> np.ndarray:
        """Return int64 [streams of this rank, length], by inverting the cumulated distribution."""
        drawn = np.searchsorted(self._cumulated, random.random((self.count, length)))
        return np.minimum(drawn, len(self._cumulated) - 1)  # the last sum may round to just below 1
