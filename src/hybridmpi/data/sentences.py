"""Sentences of different lengths in two arrays, and pairs of them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from hybridmpi.inputs import integers


@dataclass(frozen=True, slots=True)
class Sentences:
    """`words` int32 [n], one sentence after the other; sentence i is words[starts[i] : starts[i + 1]]; starts int64."""

    words: np.ndarray
    starts: np.ndarray

    @classmethod
    def of(cls, sentences: Iterable[np.ndarray]) -> Sentences:
        """Return the sentences given one by one, integers [words]. Local. Raises UsageError for other kinds."""
        parts = [integers(part, "a sentence: word", -(1 << 31), 1 << 31) for part in sentences]
        starts = np.concatenate([[0], np.cumsum([len(part) for part in parts], dtype=np.int64)]).astype(np.int64)
        return cls(np.concatenate([np.empty(0, np.int32), *parts]).astype(np.int32), starts)

    def __len__(self) -> int:
        return len(self.starts) - 1

    def __getitem__(self, which: int) -> np.ndarray:
        return self.words[self.starts[which] : self.starts[which + 1]]

    @property
    def lengths(self) -> np.ndarray:
        """The number of words of each sentence, int64."""
        return np.diff(self.starts)

    def padded(self, which: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return sentences `which` int [b] as int64 [b, longest of them], filled up with zeros, and their lengths.
        Local."""
        lengths = self.lengths[which]
        within = np.arange(lengths.max(initial=0)) < lengths[:, None]
        words = np.zeros(within.shape, np.int64)
        words[within] = self.words[(self.starts[which][:, None] + np.arange(within.shape[1]))[within]]
        return words, lengths


@dataclass(frozen=True, slots=True, eq=False)
class Pairs:
    """Sentence i of `target` is the translation of sentence i of `source`."""

    source: Sentences
    target: Sentences

    def __len__(self) -> int:
        return len(self.source)

    def sample(self, count: int) -> Pairs:
        """Return `count` of the pairs, evenly spread; all where there are no more. Local."""
        which = np.unique(np.linspace(0, len(self) - 1, min(count, len(self))).astype(np.int64))
        return Pairs(*(Sentences.of(side[number] for number in which) for side in (self.source, self.target)))
