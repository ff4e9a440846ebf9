"""What a dynamic model is trained on: instance graphs with labels, and the words and classes that numbers stand for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from hybridmpi.data import cache, graph_baselines
from hybridmpi.data.binary_trees import binary
from hybridmpi.data.vocabulary import Numbers, Provisional, Vocabulary, build
from hybridmpi.folders import cache_folder
from hybridmpi.graphs import Graphs

FORMAT = 1
"""Part of every cache key: raise it whenever graphs, split or vocabularies would come out differently."""
_STRUCTURE = ("starts", "types", "child_starts", "children", "slots")


@dataclass(frozen=True, slots=True)
class LabelledGraphs:
    """A training and a held-out part, both with data "label" (-1 where there is nothing to tell) and "word" (-1: none).

    `vocabulary` numbers the words, by falling count in the training part; `labels` names the classes. `kinds`: what the
    numbers of data "kind" stand for, None for graphs without. `baselines`: {what it knows: the share of held-out labels
    that it gets right}, models without training, see graph_baselines. `description` is JSON-able: where it is from.
    """

    train: Graphs
    held_out: Graphs
    vocabulary: Vocabulary
    labels: list[str]
    kinds: Vocabulary | None
    baselines: dict[str, float]
    description: dict[str, object]

    def __str__(self) -> str:
        origin = ", ".join(f"{name} {value}" for name, value in self.description.items())
        known = ", ".join(f"{name} {100 * share:.1f} %" for name, share in self.baselines.items())
        return (
            f"{origin}; {len(self.train):,} training and {len(self.held_out):,} held-out graphs, "
            f"{self.train.vertices:,} and {self.held_out.vertices:,} vertices, "
            f"{np.count_nonzero(self.train.data['label'] >= 0):,} and "
            f"{np.count_nonzero(self.held_out.data['label'] >= 0):,} labelled; a vocabulary of "
            f"{len(self.vocabulary):,}, {len(self.labels):,} classes; held-out labels told by {known}"
        )


def kept(identity: list[object], cache_dir: Path | None, make: Callable[[], LabelledGraphs]) -> LabelledGraphs:
    """Return what the cache has for the JSON-able `identity`, or make and keep it. Local.

    `cache_dir`: default $XDG_CACHE_HOME/hybridmpi.
    """
    path = cache.path(cache_folder() if cache_dir is None else Path(cache_dir), ["graphs", FORMAT, *identity])
    if (stored := cache.read(path)) is not None:
        return _restored(*stored)
    made = make()
    cache.keep(path, *_stored(made), "graphs")
    return made


def of_trees(
    train: Graphs,
    held_out: Graphs,
    words: Provisional,
    labels: Numbers,
    limit: int,
    two_children: bool,
    description: dict[str, object],
) -> LabelledGraphs:
    """Return trees whose data "word" and "label" are numbers in `words` and `labels`, numbered anew. Local.

    Words by a vocabulary of `limit`; labels sorted, by value where all are integers. With `two_children` made binary.
    """
    shown = train.data["word"]
    vocabulary, mapping = build(words, np.bincount(shown[shown >= 0], minlength=len(words)), limit)
    try:
        names = sorted(labels, key=int)
    except ValueError:
        names = sorted(labels)
    place = {name: number for number, name in enumerate(names)}
    classes = np.array([place[name] for name in labels], np.int32)
    parts = []
    for graphs in (train, held_out):
        word, label = (renumbered(graphs.data[name], to) for name, to in (("word", mapping), ("label", classes)))
        numbered = graphs.with_data(word=word, label=label)
        parts.append(binary(numbered) if two_children else numbered)
    baselines = {
        "the most frequent class": graph_baselines.majority(*parts),
        "the most frequent class of roots, at roots": graph_baselines.majority(*map(_at_roots, parts)),
        "a table of the children's words": graph_baselines.by_children(*parts, "word"),
    }
    return LabelledGraphs(*parts, vocabulary, names, None, baselines, description)


def _at_roots(graphs: Graphs) -> Graphs:
    label = np.full(graphs.vertices, -1, np.int32)
    label[graphs.roots()] = graphs.data["label"][graphs.roots()]
    return graphs.with_data(label=label)


def renumbered(numbers: np.ndarray, mapping: np.ndarray) -> np.ndarray:
    """Return mapping[numbers], and -1 where a number is -1: int32 [V]. Local."""
    return np.append(mapping, -1).astype(np.int32)[numbers]


def _stored(made: LabelledGraphs) -> tuple[dict[str, np.ndarray], dict[str, object]]:
    """Return what the cache keeps."""
    arrays = {"counts": made.vocabulary.counts}
    texts: dict[str, object] = {
        "words": made.vocabulary.words,
        "labels": made.labels,
        "kinds": None,
        "baselines": made.baselines,
        "description": made.description,
        "types": made.train.type_names,
    }
    if made.kinds is not None:
        texts["kinds"], arrays["kinds"] = made.kinds.words, made.kinds.counts
    for part, graphs in (("train", made.train), ("held_out", made.held_out)):
        arrays |= {f"{part}.{name}": getattr(graphs, name) for name in _STRUCTURE}
        arrays |= {f"{part}.data.{name}": array for name, array in graphs.data.items()}
    return arrays, texts


def _restored(arrays: dict[str, np.ndarray], texts: dict[str, object]) -> LabelledGraphs:
    """Return what the cache kept."""
    parts = []
    for part in ("train", "held_out"):
        prefix = f"{part}.data."
        data = {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}
        parts.append(Graphs(*(arrays[f"{part}.{name}"] for name in _STRUCTURE), texts["types"], data))
    kinds = None if texts["kinds"] is None else Vocabulary(texts["kinds"], arrays["kinds"])
    vocabulary = Vocabulary(texts["words"], arrays["counts"])
    return LabelledGraphs(*parts, vocabulary, texts["labels"], kinds, texts["baselines"], texts["description"])
