"""Treebanks: the user's files of trees in brackets, `(3 (2 It) (4 (2 's) (4 good)))`, with a label at every vertex."""

from __future__ import annotations

import stat
from pathlib import Path

from hybridmpi.data.labelled_graphs import LabelledGraphs, kept, of_trees
from hybridmpi.data.text_file import TextFile, status_of
from hybridmpi.data.vocabulary import Numbers, Provisional
from hybridmpi.errors import DataError, UsageError
from hybridmpi.graphs import Graphs, from_brackets

FOLDER_PARTS = "train.txt", "dev.txt"
"""The files of a folder that is named in place of two files, as the Stanford Sentiment Treebank comes."""


def load_treebank(
    train: str,
    held_out: str,
    vocabulary_limit: int,
    lower: bool = False,
    two_children: bool = True,
    cache_dir: Path | None = None,
) -> LabelledGraphs:
    """Return the trees of two files, or of train.txt and dev.txt in the folder `train`, from the cache if there. Local.

    Files are UTF-8 with a tree on each line, vertices `(label word)` or `(label tree tree ...)`; types ("leaf",
    "inner"), data "word" and "label". Labels may be integers or names; those of both files are the classes. With
    `lower`, words are taken in lower case, as pretrained vectors want them (Tai et al., arXiv 1503.00075). With
    `two_children` vertices with more children are made binary (see binary_trees). `vocabulary_limit`: words kept,
    `<unk>` among them. Raises UsageError for wrong arguments; DataError for files that are missing, empty, no text or
    no trees, with the line.
    """
    if vocabulary_limit < 2:
        raise UsageError(f"a vocabulary of {vocabulary_limit}: expected at least 2, <unk> and one word")
    files = _files(train, held_out)
    identity = ["treebank", *(file.identity() for file in files), vocabulary_limit, lower, two_children]
    return kept(identity, cache_dir, lambda: _made(files, vocabulary_limit, lower, two_children))


def _files(train: str, held_out: str) -> list[TextFile]:
    """Return the files of both parts."""
    status = status_of(Path(train))
    if train and status is not None and stat.S_ISDIR(status.st_mode):
        if held_out:
            raise UsageError(
                f"held-out trees '{held_out}' beside the folder '{train}', which has its own: leave it out"
            )
        missing = [name for name in FOLDER_PARTS if status_of(Path(train) / name) is None]
        if missing:
            raise DataError(
                f"data source '{train}' is a folder without {' and '.join(missing)}: expected {FOLDER_PARTS[0]} and "
                f"{FOLDER_PARTS[1]} in it, or name two files of trees"
            )
        return [TextFile(str(Path(train) / name)) for name in FOLDER_PARTS]
    first = TextFile(train)
    if not held_out:
        raise UsageError(f"trees to train on, '{train}', and none that are held out: name a second file of trees")
    return [first, TextFile(held_out)]


def _made(files: list[TextFile], limit: int, lower: bool, two_children: bool) -> LabelledGraphs:
    words, labels = Provisional(), Numbers()
    parts = [_read(file, words, labels, lower) for file in files]
    description = {"source": str(files[0].path), "held out": str(files[1].path)}
    return of_trees(*parts, words, labels, limit, two_children, description)


def _read(file: TextFile, words: Provisional, labels: Numbers, lower: bool) -> Graphs:
    lines = "".join(file.blocks()).split("\n")
    try:
        graphs = from_brackets(lines, (lambda word: words[word.lower()]) if lower else words, labels)
    except DataError as error:
        raise DataError(f"'{file.path}', {error}") from error
    if not len(graphs):
        raise DataError(f"'{file.path}' has no trees: expected one on each line, such as (3 (2 It) (3 works))")
    return graphs
