"""A corpus: the words of a text as ids, split into a training and a held-out part, with its vocabulary."""

from __future__ import annotations

import platform
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from hybridmpi.data import cache, python_source
from hybridmpi.data.text_file import STANDARD_LIBRARY, TextFile
from hybridmpi.data.vocabulary import Provisional, Vocabulary, build
from hybridmpi.errors import DataError, UsageError
from hybridmpi.folders import cache_folder

END_OF_LINE = "<eol>"
FORMAT = 1
"""Part of every cache key: raise it whenever tokens, split or vocabulary would come out differently."""


@dataclass(frozen=True, slots=True)
class Corpus:
    """`train` int32 [n] and `held_out` int32 [m], ids of `vocabulary`; `description` is JSON-able: where it is from."""

    train: np.ndarray
    held_out: np.ndarray
    vocabulary: Vocabulary
    description: dict[str, object]

    def __str__(self) -> str:
        origin = ", ".join(f"{name} {value}" for name, value in self.description.items())
        unknown = self.vocabulary.counts[self.vocabulary.unknown] / max(1, len(self.train))
        return (
            f"{origin}; {len(self.train):,} training and {len(self.held_out):,} held-out words, "
            f"vocabulary of {len(self.vocabulary):,} ({unknown:.1%} of the training words are unknown)"
        )


def load(source: str, vocabulary_limit: int, held_out: float, cache_dir: Path | None = None) -> Corpus:
    """Return the corpus of `source`, from the cache where it has been made before. Local.

    `source`: "stdlib" (the source code of Python's standard library, tokenised; held out are whole files, chosen by a
    hash of their names) or the path of a UTF-8 text file (words are what white space separates, `<unk>` being
    one that is not known, and `<eol>`, which the text must not have, the end of a line; held out is the last
    part). `vocabulary_limit`: words kept, `<unk>` among them; the vocabulary is that of the training part. `held_out`:
    share in [0, 1). `cache_dir`: default $XDG_CACHE_HOME/hybridmpi. The result is a function of the arguments and of
    the files read: every run, rank count and machine with those files gets the same ids.
    Raises UsageError for wrong arguments; DataError for a source that is missing, empty or no text.
    """
    if not 0 <= held_out < 1:
        raise UsageError(f"a held-out share of {held_out}: expected at least 0 and below 1, such as 0.02")
    if vocabulary_limit < 2:
        raise UsageError(f"a vocabulary limit of {vocabulary_limit}: expected at least 2, one word and <unk>")
    maker = _StandardLibrary(held_out) if source == STANDARD_LIBRARY else _TextFile(source, held_out)
    folder = cache_folder() if cache_dir is None else Path(cache_dir)
    path = cache.path(folder, [FORMAT, *maker.identity(), vocabulary_limit, held_out])
    if (stored := cache.read(path)) is not None:
        arrays, texts = stored
        vocabulary = Vocabulary(texts["words"], arrays["counts"])
        return Corpus(arrays["train"], arrays["held_out"], vocabulary, texts["description"])

    corpus = _make(maker, vocabulary_limit)
    arrays = {"train": corpus.train, "held_out": corpus.held_out, "counts": corpus.vocabulary.counts}
    texts = {"words": corpus.vocabulary.words, "description": corpus.description}
    cache.keep(path, arrays, texts, "corpus")
    return corpus


def _make(maker: _StandardLibrary | _TextFile, limit: int) -> Corpus:
    """Return the corpus that `maker` reads: encode by first occurrence, count, then number by falling count."""
    provisional = Provisional()
    train, held_out = maker.read(provisional)
    counts = np.bincount(train, minlength=len(provisional))
    vocabulary, mapping = build(provisional, counts, limit)
    return Corpus(mapping[train], mapping[held_out], vocabulary, maker.description())


class _StandardLibrary:
    """Reads the source files of Python's standard library."""

    def __init__(self, held_out: float) -> None:
        self.files = python_source.standard_library()
        if not self.files:
            raise DataError("this Python has no .py files of its standard library: name a text file as data.source")
        self.parts = python_source.split(self.files, held_out)
        self.skipped = 0

    def identity(self) -> list[object]:
        return [STANDARD_LIBRARY, platform.python_version(), [(f.name, f.size, f.modified) for f in self.files]]

    def description(self) -> dict[str, object]:
        return {
            "source": f"standard library of Python {platform.python_version()}",
            "files": len(self.files) - self.skipped,
            "files skipped": self.skipped,
        }

    def read(self, provisional: Provisional) -> tuple[np.ndarray, np.ndarray]:
        """Return the provisional ids of both parts, the training part first: `build` breaks ties in that order."""
        train, held_out = (
            np.concatenate([np.empty(0, np.int32), *self._encode(part, provisional)]) for part in self.parts
        )
        if len(train) == 0:
            raise DataError(f"none of the {len(self.files)} files of the standard library could be tokenised")
        return train, held_out

    def _encode(self, files: list[python_source.SourceFile], provisional: Provisional) -> Iterator[np.ndarray]:
        for file in files:
            try:
                words = python_source.read(file.path)
            except (python_source.NotPythonError, OSError):  # the library tests its own parser on broken files
                self.skipped += 1
                continue
            yield provisional.encode(words)


class _TextFile:
    """Reads a UTF-8 text file."""

    def __init__(self, source: str, held_out: float) -> None:
        self.file, self.share = TextFile(source), held_out

    def identity(self) -> list[object]:
        return self.file.identity()

    def description(self) -> dict[str, object]:
        return {"source": str(self.file.path), "bytes": self.file.status.st_size}

    def read(self, provisional: Provisional) -> tuple[np.ndarray, np.ndarray]:
        """Return the provisional ids of both parts: the cut is at a word, `held_out` of all words from the end."""
        blocks = (text.replace("\n", f" {END_OF_LINE} ").split() for text in self._checked_blocks())
        ids = np.concatenate([provisional.encode(words) for words in blocks])
        if set(provisional) <= {"<unk>", END_OF_LINE}:
            size = self.file.status.st_size
            raise DataError(f"data source '{self.file.path}' has no words: its {size} bytes are white space")
        cut = len(ids) - round(len(ids) * self.share)
        return ids[:cut], ids[cut:]

    def _checked_blocks(self) -> Iterator[str]:
        """Yield the text in blocks; refuse a word that is no word."""
        before = 0
        for text in self.file.blocks():
            if END_OF_LINE in text:  # as a part of a word it may stand there
                for number, line in enumerate(text.split("\n"), before + 1):
                    if END_OF_LINE in line.split():
                        self.file.refuse(END_OF_LINE, number, "the end of a line")
            before += text.count("\n")
            yield text
