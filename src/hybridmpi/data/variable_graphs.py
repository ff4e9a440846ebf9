"""Graphs that every machine has: functions of Python's standard library, in which some variables' names are to be told.

A function is its syntax tree, but that each variable (an argument, or a name that is assigned) is one vertex, the child
of every place where it occurs: `a + a` has two occurrences and one vertex below both. What a masked variable is called
follows from what is done with it: from all of its parents, and from theirs. So a model runs from the leaves up, and
then down over the reversed graphs. Nested functions are part of their function, and equal names in it one variable.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from hybridmpi.data import graph_baselines
from hybridmpi.data.function_graphs import NODE, VARIABLE, Function, functions
from hybridmpi.data.labelled_graphs import LabelledGraphs, kept, renumbered
from hybridmpi.data.library_parts import LibraryParts
from hybridmpi.data.vocabulary import Provisional, build
from hybridmpi.errors import DataError, UsageError
from hybridmpi.graphs import Graphs

MASK = "<mask>"
MASKED = 0.5
"""The share of variables that are masked, those whose name is a class; at least one of each function, if it has one."""
GIVEN = ("self", "cls")
"""Names that are never masked: where they stand gives them away."""


def load_variable_graphs(
    vocabulary_limit: int,
    names_limit: int,
    longest: int,
    most: int,
    held_out: float,
    cache_dir: Path | None = None,
) -> LabelledGraphs:
    """Return functions of the standard library as graphs, from the cache where they have been made before. Local.

    Type names are ("node", "variable"). Data: "kind", what a vertex is and for what (`value:Call`, `args:arg`), all
    variables being one kind; "word", the name, attribute, operator or kind of constant that it has, `<mask>` at masked
    variables, -1 for none; "label", the name of a masked variable, -1 elsewhere. Classes are the `names_limit` most
    frequent names of variables in the training part: others are shown, never masked. What is masked is drawn once.
    At most `most` functions of at most `longest` vertices with something masked, none twice; `held_out` of them, in
    [0, 1), from files that no training function comes from. `vocabulary_limit`: words kept, `<unk>` and `<mask>` among
    them. A function of the arguments and of this Python's library.
    Raises UsageError for wrong arguments; DataError where this Python has no source files.
    """
    if not 0 <= held_out < 1:
        raise UsageError(f"a held-out share of {held_out}: expected at least 0 and below 1, such as 0.1")
    if vocabulary_limit < 3 or names_limit < 1 or longest < 2 or most < 1:
        raise UsageError(
            f"a vocabulary of {vocabulary_limit}, {names_limit} names, functions of at most {longest} vertices, at "
            f"most {most} functions: expected at least 3 (<unk>, <mask> and one word), 1, 2 and 1"
        )
    library = LibraryParts()
    identity = ["variable graphs", *library.identity(), vocabulary_limit, names_limit, longest, most, held_out]
    return kept(identity, cache_dir, lambda: _made(library, vocabulary_limit, names_limit, longest, most, held_out))


def _made(
    library: LibraryParts, limit: int, names_limit: int, longest: int, most: int, held_out: float
) -> LabelledGraphs:
    words, kinds = Provisional(), Provisional()
    mask = words[MASK]
    found = library.read(lambda text: functions(text, longest, words, kinds), tuple, most, held_out)
    parts = [_graphs(part) for part in found]
    names = _most_frequent_names(parts[0], words, names_limit)
    class_of = np.full(len(words), -1, np.int32)
    class_of[names] = np.arange(len(names))
    if not len(names):
        raise DataError(f"the standard library has no functions of up to {longest} vertices with variables to mask")
    parts = [_masked(graphs, class_of, mask, seed) for seed, graphs in enumerate(parts)]
    shown, kind = parts[0].data["word"], parts[0].data["kind"]
    vocabulary, to_word = build(words, np.bincount(shown[shown >= 0], minlength=len(words)), limit, MASK)
    of_kinds, to_kind = build(kinds, np.bincount(kind, minlength=len(kinds)), len(kinds))
    parts = [
        graphs.with_data(word=renumbered(graphs.data["word"], to_word), kind=renumbered(graphs.data["kind"], to_kind))
        for graphs in parts
    ]
    seen = [graphs.reversed() for graphs in parts]
    baselines = {
        "the most frequent name": graph_baselines.majority(*parts),
        "a table of the kinds of a variable's occurrences": graph_baselines.by_children(*seen, "kind"),
    }
    description = {"source": f"functions of the standard library of {library.python}", "files": library.files_read}
    as_written = list(words)
    return LabelledGraphs(*parts, vocabulary, [as_written[n] for n in names], of_kinds, baselines, description)


def _graphs(parts: list[Function]) -> Graphs:
    """Return functions as graphs, words and kinds as they are."""
    kinds, words, variables, arities, children = (
        np.frombuffer(b"".join(part[which] for part in parts), np.int32) for which in range(5)
    )
    sizes = np.array([len(part[0]) // kinds.itemsize for part in parts], np.int64)
    starts = np.concatenate([[0], np.cumsum(sizes)])
    child_starts = np.concatenate([[0], np.cumsum(arities, dtype=np.int64)])
    return Graphs(
        starts,
        variables,
        child_starts,
        children + np.repeat(np.repeat(starts[:-1], sizes), arities),
        np.arange(len(children)) - np.repeat(child_starts[:-1], arities),
        (NODE, VARIABLE),
        {"word": words, "kind": kinds},
    )


def _most_frequent_names(graphs: Graphs, words: Provisional, limit: int) -> np.ndarray:
    """Return the numbers of the variables' most frequent names, falling, ties by first occurrence."""
    counts = np.bincount(graphs.data["word"][graphs.types == 1], minlength=len(words))
    counts[[words[name] for name in GIVEN if name in words]] = 0
    order = np.argsort(-counts, kind="stable")[:limit]
    return order[counts[order] > 0]


def _masked(graphs: Graphs, class_of: np.ndarray, mask: int, seed: int) -> Graphs:
    """Return the graphs that have a variable with a class, of each some such masked, which are labelled."""
    word = graphs.data["word"]
    chosen = np.flatnonzero((graphs.types == 1) & (class_of[word] >= 0))
    graph = np.searchsorted(graphs.starts, chosen, side="right") - 1
    draw = np.random.default_rng(seed).random(len(chosen))
    # The least draw of a graph is masked, and every other below MASKED.
    least = np.full(len(graphs), 2.0)
    np.minimum.at(least, graph, draw)
    masked = chosen[(draw < MASKED) | (draw == least[graph])]
    label = np.full(graphs.vertices, -1, np.int32)
    label[masked] = class_of[word[masked]]
    shown = word.copy()
    shown[masked] = mask
    return graphs.with_data(word=shown, label=label).select(np.unique(graph))
