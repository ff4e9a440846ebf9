"""Words and their ids, sorted by how often the training part uses them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from hybridmpi.errors import DataError

UNKNOWN = "<unk>"


class Numbers(dict):
    """Numbers in order of first occurrence: looking up a new name gives it the next number."""

    def __missing__(self, name: str) -> int:
        self[name] = number = len(self)
        return number


class Provisional(Numbers):
    """Ids of words in order of first occurrence. `<unk>` is id 0 from the start."""

    def __init__(self) -> None:
        super().__init__({UNKNOWN: 0})

    def encode(self, words: Sequence[str]) -> np.ndarray:
        """Return the ids of `words`, int32 [n], taking in those that are new. Local."""
        return np.fromiter(map(self.__getitem__, words), np.int32, len(words))


class Vocabulary:
    """The words that a model knows; a word's id is its rank by training count, so id 0 is the most frequent.

    `words`: distinct strings in order of falling count, `<unk>` among them at the place of its own count (it stands for
    every word left out). `counts` int64 [n]: how often each occurs in the training part. With this order a
    log-uniform draw over ids approximates the unigram distribution, which sampled softmax relies on. Local.
    """

    def __init__(self, words: Sequence[str], counts: np.ndarray) -> None:
        self.words = list(words)
        self.counts = np.asarray(counts, np.int64)
        self._ids = {word: number for number, word in enumerate(self.words)}
        if len(self.counts) != len(self.words) or len(self._ids) != len(self.words):
            raise DataError(
                f"a vocabulary of {len(self.words)} words ({len(self._ids)} distinct) with {len(self.counts)} counts: "
                "expected distinct words and one count for each"
            )
        if UNKNOWN not in self._ids:
            raise DataError(f"a vocabulary of {len(self.words)} words without {UNKNOWN}: add it, with its count")
        self.unknown = self._ids[UNKNOWN]

    def __len__(self) -> int:
        return len(self.words)

    def encode(self, words: Iterable[str]) -> np.ndarray:
        """Return the ids of `words`, int32 [n]; a word that is not in the vocabulary becomes `unknown`. Local."""
        get, unknown = self._ids.get, self.unknown
        return np.fromiter((get(word, unknown) for word in words), np.int32)

    def decode(self, ids: Iterable[int]) -> list[str]:
        """Return the words of `ids`. Local."""
        return [self.words[number] for number in ids]

    def unigram_perplexity(self, ids: np.ndarray) -> float:
        """Return the perplexity on `ids` of add-one smoothed training counts: what a model without context reaches.

        exp of the mean of -log((count + 1) / (total + words)), in float64; NaN for no ids. Local.
        """
        log_share = np.log(self.counts + 1.0) - np.log(self.counts.sum() + float(len(self)))
        return float(np.exp(-log_share[ids].mean())) if len(ids) else float("nan")


def build(
    provisional: Provisional, counts: np.ndarray, limit: int, always: str | None = None
) -> tuple[Vocabulary, np.ndarray]:
    """Return the vocabulary of at most `limit` words and the map from provisional ids to its ids, int32. Local.

    `counts` int64 [len(provisional)]: occurrences in the training part. The most frequent words are kept, ties by first
    occurrence; words that the training part lacks are unknown. `always`: a word that is kept in any case.
    """
    order = np.argsort(-counts[1:], kind="stable") + 1
    kept = order[: limit - 1]
    if always is not None and (number := list(provisional).index(always)) not in kept:
        kept = np.append(kept[:-1], number)
    kept = kept[counts[kept] > 0]
    left_out = counts.sum() - counts[kept].sum()
    place = int(np.searchsorted(-counts[kept], -left_out, side="right"))
    kept = np.insert(kept, place, 0)
    new_counts = counts[kept]
    new_counts[place] = left_out
    mapping = np.full(len(provisional), place, np.int32)
    mapping[kept] = np.arange(len(kept), dtype=np.int32)
    words = list(provisional)
    return Vocabulary([words[number] for number in kept], new_counts), mapping
