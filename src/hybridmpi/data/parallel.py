"""A parallel text: sentences and their translations as ids, a training and a held-out part, two vocabularies."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from hybridmpi.data import cache, syntax_pairs
from hybridmpi.data.library_parts import LibraryParts, distinct
from hybridmpi.data.sentences import Pairs, Sentences
from hybridmpi.data.syntax_pairs import Pair
from hybridmpi.data.text_file import STANDARD_LIBRARY, TextFile
from hybridmpi.data.vocabulary import Provisional, Vocabulary, build
from hybridmpi.errors import DataError, UsageError
from hybridmpi.folders import cache_folder

END = "<end>"
"""The last word of every sentence, in both vocabularies."""
FORMAT = 1
"""Part of every cache key: raise it whenever pairs, split or vocabularies would come out differently."""


@dataclass(frozen=True, slots=True)
class ParallelText:
    """Ids of `train` and `held_out` are those of the two vocabularies; `description` is JSON-able: where it is from."""

    train: Pairs
    held_out: Pairs
    source_vocabulary: Vocabulary
    target_vocabulary: Vocabulary
    description: dict[str, object]

    def __str__(self) -> str:
        origin = ", ".join(f"{name} {value}" for name, value in self.description.items())
        words = [f"{len(v):,}" for v in (self.source_vocabulary, self.target_vocabulary)]
        return (
            f"{origin}; {len(self.train):,} training and {len(self.held_out):,} held-out pairs of sentences, "
            f"{len(self.train.target.words):,} target words, vocabularies of {words[0]} and {words[1]}"
        )


def load_parallel(
    source: str,
    target: str,
    vocabulary_limit: int,
    longest: int,
    most: int,
    held_out: float,
    cache_dir: Path | None = None,
) -> ParallelText:
    """Return the parallel text of `source` and `target`, from the cache where it has been made before. Local.

    Two paths of UTF-8 text files, line i of one being the translation of line i of the other (words are what white
    space separates; held out are the last pairs); or source "stdlib" and target "": statements of Python's standard
    library and their syntax trees (see syntax_pairs; held out are whole files, and of them what the training part does
    not have). At most `most` pairs are read, each once however often it occurs; those with an empty side, or with more
    than `longest` words on one, are left out. `vocabulary_limit`: words kept on each side, `<unk>` and `<end>` among
    them. `held_out`: share in [0, 1). `cache_dir`: default $XDG_CACHE_HOME/hybridmpi. The result is a function of the
    arguments and of the files read. Raises UsageError for wrong arguments; DataError for files that are missing, empty,
    no text, or of unequal length.
    """
    if not 0 <= held_out < 1:
        raise UsageError(f"a held-out share of {held_out}: expected at least 0 and below 1, such as 0.02")
    if vocabulary_limit < 3 or longest < 1 or most < 1:
        raise UsageError(
            f"vocabularies of {vocabulary_limit}, sentences of at most {longest} words, at most {most} pairs: expected "
            "at least 3 (<unk>, <end> and one word), 1 and 1"
        )
    if source == STANDARD_LIBRARY and target:
        raise UsageError(f"a target '{target}' beside the source '{STANDARD_LIBRARY}', which has its own: leave it out")
    maker = _Syntax(longest, most) if source == STANDARD_LIBRARY else _TextFiles(source, target, longest, most)
    folder = cache_folder() if cache_dir is None else Path(cache_dir)
    identity = ["parallel", FORMAT, *maker.identity(), vocabulary_limit, longest, most, held_out]
    path = cache.path(folder, identity)
    if (stored := cache.read(path)) is not None:
        return _restored(*stored)
    train, later = maker.read(held_out)
    if not train:
        raise DataError(
            f"the parallel text of '{source}' has no pairs to train on: none has 1 to {longest} words on both sides"
        )
    text = _encoded(train, later, vocabulary_limit, maker.description())
    cache.keep(path, *_stored(text), "parallel text")
    return text


def _encoded(train: list[Pair], held_out: list[Pair], limit: int, description: dict[str, object]) -> ParallelText:
    """Return the pairs as ids: by first occurrence, counted, then numbered by falling count; each side by itself."""
    sides, vocabularies = [], []
    for side in (0, 1):
        provisional = Provisional()
        parts = [[provisional.encode([*pair[side], END]) for pair in part] for part in (train, held_out)]
        counts = np.bincount(np.concatenate(parts[0]), minlength=len(provisional))
        vocabulary, mapping = build(provisional, counts, limit, END)
        sides.append([Sentences.of(mapping[ids] for ids in part) for part in parts])
        vocabularies.append(vocabulary)
    return ParallelText(*(Pairs(*part) for part in zip(*sides, strict=True)), *vocabularies, description)


def _stored(text: ParallelText) -> tuple[dict[str, np.ndarray], dict[str, object]]:
    """Return what the cache keeps of a text."""
    arrays = {}
    for part in ("train", "held_out"):
        for side in ("source", "target"):
            sentences = getattr(getattr(text, part), side)
            arrays |= {f"{part}.{side}.words": sentences.words, f"{part}.{side}.starts": sentences.starts}
    texts: dict[str, object] = {"description": text.description}
    for side, vocabulary in (("source", text.source_vocabulary), ("target", text.target_vocabulary)):
        arrays[f"{side}.counts"], texts[side] = vocabulary.counts, vocabulary.words
    return arrays, texts


def _restored(arrays: dict[str, np.ndarray], texts: dict[str, object]) -> ParallelText:
    """Return the text of what the cache kept."""
    parts = [
        Pairs(*(Sentences(arrays[f"{part}.{s}.words"], arrays[f"{part}.{s}.starts"]) for s in ("source", "target")))
        for part in ("train", "held_out")
    ]
    vocabularies = [Vocabulary(texts[side], arrays[f"{side}.counts"]) for side in ("source", "target")]
    return ParallelText(*parts, *vocabularies, texts["description"])


def _words(pair: Pair) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return what is equal for equal pairs alone."""
    return tuple(pair[0]), tuple(pair[1])


class _Syntax:
    """Statements of Python's standard library and their syntax trees."""

    def __init__(self, longest: int, most: int) -> None:
        self.library, self.longest, self.most = LibraryParts(), longest, most

    def identity(self) -> list[object]:
        return self.library.identity()

    def description(self) -> dict[str, object]:
        return {
            "source": f"statements of the standard library of {self.library.python}",
            "target": "their syntax trees",
            "files": self.library.files_read,
        }

    def read(self, held_out: float) -> tuple[list[Pair], list[Pair]]:
        """Return both parts, whole files being held out."""
        return self.library.read(lambda text: syntax_pairs.pairs(text, self.longest), _words, self.most, held_out)


class _TextFiles:
    """Two UTF-8 text files with a sentence on each line."""

    def __init__(self, source: str, target: str, longest: int, most: int) -> None:
        self.files = [TextFile(source), TextFile(target)]
        self.longest, self.most, self.left_out = longest, most, 0

    def identity(self) -> list[object]:
        return [self.files[0].identity(), self.files[1].identity()]

    def description(self) -> dict[str, object]:
        source, target = (str(file.path) for file in self.files)
        return {"source": source, "target": target, "pairs left out for their length": self.left_out}

    def read(self, held_out: float) -> tuple[list[Pair], list[Pair]]:
        """Return both parts: `held_out` of the pairs from the end, less those that the training part has too."""
        sides = [[line.split() for line in "".join(file.blocks()).split("\n")[:-1]] for file in self.files]
        if len(sides[0]) != len(sides[1]):
            raise DataError(
                f"'{self.files[0].path}' has {len(sides[0]):,} lines and '{self.files[1].path}' {len(sides[1]):,}: "
                "expected a sentence on each line and its translation on the same line of the other file"
            )
        for file, lines in zip(self.files, sides, strict=True):
            for number, words in enumerate(lines, 1):
                if END in words:
                    file.refuse(END, number, "the end of a sentence")
        some = [p for p in zip(*sides, strict=True) if all(1 <= len(words) <= self.longest for words in p)]
        self.left_out = len(sides[0]) - len(some)
        pairs = distinct(some, _words, set())[: self.most]
        cut = len(pairs) - round(len(pairs) * held_out)
        return pairs[:cut], pairs[cut:]
