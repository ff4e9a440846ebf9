"""What `hybridmpi bench dynamic` trains: models, and the graphs that they are trained on."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from hybridmpi.bench.complete_trees import WORDS, complete_trees
from hybridmpi.data import load_syntax_trees
from hybridmpi.data.binary_trees import binary
from hybridmpi.data.text_file import STANDARD_LIBRARY, TextFile
from hybridmpi.dynamic import Batching, Report
from hybridmpi.errors import UsageError
from hybridmpi.graphs import Graphs, from_brackets
from hybridmpi.models.recursive_tree_lstm import RecursiveTreeLSTM
from hybridmpi.models.tree_fc import TreeFC
from hybridmpi.models.tree_lstm import TreeLSTM

MODELS = "tree-lstm", "tree-fc"
FORMS = "vertex", "recursive"
SYNTAX_TREES = 20_000, 100, 2_000
"""Of the standard library: words at most, vertices of a tree, trees."""
FEW = 4
"""Trees of the step that is held against float64."""


@dataclass(frozen=True)
class Work:
    """What is trained: `model(dtype)` on the first `trees(batch)` of `graphs`, a rate of `rate` for a sum of losses.

    oracle(): the same in float64, one vertex after the other. ready(model, graphs): graphs as the model wants them.
    report(model, work): what its passes did within `work()`.
    """

    model: Callable[[Any], Any]
    oracle: Callable[[], Any]
    graphs: Graphs
    trees: Callable[[int], int]
    rate: float
    ready: Callable[[Any, Graphs], Graphs]
    report: Callable[[Any, Callable[[], Any]], Report]


def work_of(options: argparse.Namespace) -> Work:
    """Return what the options say, and fill in the size of a state where it is open. Local.

    Raises UsageError or DataError for trees that are missing or impossible.
    """
    recursive = options.form == "recursive"
    if recursive and (options.model != "tree-lstm" or options.no_eager or options.no_lazy or options.no_fusion):
        raise UsageError("--form recursive is there for tree-lstm, without --no-eager, --no-lazy and --no-fusion")
    if options.model == "tree-fc":
        options.hidden = options.hidden or 256
        most = max(max(_trees_of_tree_fc(batch) for batch in options.batch), FEW)
        table = np.random.default_rng(1).standard_normal((WORDS, options.hidden))
        make, graphs, trees, rate = _tree_fc(table), complete_trees(most, options.leaves), _trees_of_tree_fc, 1e-8
    else:
        options.hidden = options.hidden or 150
        graphs, words, labels = _trees_to_learn(options.data, options.cell == "nary" or recursive)
        sizes = words, labels, options.width, options.hidden, options.cell
        make, trees, rate = _tree_lstm(TreeLSTM, sizes), _trees_of_tree_lstm, 1e-5

    def oracle() -> Any:
        made = make(np.float64)
        made.passing.policy = "serial"
        return made

    if recursive:
        model = _tree_lstm(RecursiveTreeLSTM, sizes)
        return Work(model, oracle, graphs, trees, rate, RecursiveTreeLSTM.lower, lambda m, do: m.encode.report(do))
    batching = Batching(not options.no_eager, not options.no_lazy, not options.no_fusion)

    def batched(dtype: Any) -> Any:
        made = make(dtype)
        made.passing.batching = batching
        return made

    return Work(batched, oracle, graphs, trees, rate, lambda _, whole: whole, lambda m, do: m.passing.report(do))


def _trees_to_learn(source: str, two_children: bool) -> tuple[Graphs, int, int]:
    """Return trees, and how many words and labels they have."""
    if source == STANDARD_LIBRARY:
        found = load_syntax_trees(*SYNTAX_TREES, held_out=0.0, two_children=two_children)
        return found.train, len(found.vocabulary), len(found.labels)
    words: dict[str, int] = {}
    labels: dict[str, int] = {}
    graphs = from_brackets("".join(TextFile(source).blocks()).split("\n"), words, labels)
    return (binary(graphs) if two_children else graphs), len(words), len(labels)


def _tree_lstm(kind: type, sizes: tuple[int, int, int, int, str]) -> Callable[[Any], Any]:
    def make(dtype: Any) -> Any:
        model = kind(*sizes, dtype=dtype)
        for parameter in model.parameters():
            parameter.init = ("uniform", -0.1, 0.1)
        return model

    return make


def _trees_of_tree_lstm(batch: int) -> int:
    return -(-max(128, min(512, 32 * batch)) // batch) * batch


def _tree_fc(table: np.ndarray) -> Callable[[Any], TreeFC]:
    return lambda dtype: TreeFC(table.astype(np.float32).astype(dtype))


def _trees_of_tree_fc(batch: int) -> int:
    return max(32, 2 * batch) // batch * batch
