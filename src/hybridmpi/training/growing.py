"""Jobs of kind "top-down": a distribution of trees, from which new ones can be drawn."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np

from hybridmpi import data
from hybridmpi.autograd import no_grad
from hybridmpi.data.graph_baselines import frequencies
from hybridmpi.field_types import Count, FilePath, OptionalPath, Range, Share
from hybridmpi.graphs import Graphs
from hybridmpi.models.score import perplexity
from hybridmpi.models.td_tree_lstm import TopDownTreeLSTM
from hybridmpi.training.job import CheckpointSection, Job, TrainingSection
from hybridmpi.training.task import Evaluation, Task
from hybridmpi.training.vertices import EVALUATION_GRAPHS, training_batches
from hybridmpi.world import World

# The words that trees are read with, which nothing here looks at: as in kind "trees", which shares its cache.
WORDS = 10_000

UNLABELLED = "_"

# How many levels the tree has at most that each evaluation draws: one line of text.
DRAWN_LEVELS = 12


@dataclass(frozen=True, slots=True)
class ModelSection:
    """[model]: the sizes of the Tree-LSTM."""

    kind: Annotated[
        Literal["top-down"],
        "a Tree-LSTM with state from the parent, softmax over kinds and over numbers of children",
    ] = "top-down"
    width: Annotated[Count, "of the rows of kinds of vertices"] = 64
    hidden: Annotated[Count, "of a vertex' state"] = 100


@dataclass(frozen=True, slots=True)
class DataSection:
    """[data]: the trees; `graphs` is the number over all ranks."""

    source: Annotated[
        FilePath,
        '"stdlib", or a file of trees in brackets, one a line: (3 (2 It) (4 (2 \'s) (4 good))), '
        "whose labels are the kinds; or a folder with train.txt and dev.txt",
    ] = "stdlib"
    dev: Annotated[OptionalPath, "the file of held-out trees, where source is a file"] = ""
    longest: Annotated[
        int, Range(2), 'vertices that a tree of "stdlib" may have; of longer statements the parts are taken'
    ] = 60
    most: Annotated[
        Count,
        'trees of "stdlib" read at most; each rank prepares all trees, some 25,000 vertices a second',
    ] = 20_000
    held_out: Annotated[Share, 'share of the trees of "stdlib" that is only evaluated on'] = 0.1
    graphs: Annotated[Count, "trees in one step over all ranks: the global batch, whatever the number of ranks"] = 64
    cache: Annotated[
        OptionalPath, 'folder for the trees as numbers; "": $XDG_CACHE_HOME/hybridmpi or ~/.cache/hybridmpi'
    ] = ""


@dataclass(frozen=True, slots=True)
class Shapes:
    """Trees of at most two children a vertex, with data "label", -1 for none. `frequencies`: nats a held-out vertex of
    a model that knows only how often kinds and numbers of children are, NaN without held-out trees."""

    train: Graphs
    held_out: Graphs
    labels: list[str]
    frequencies: float
    origin: str

    def __str__(self) -> str:
        known = f"; their frequencies tell held-out ones at {self.frequencies:.4f} nats each" if self.held_out else ""
        return (
            f"{self.origin}; {len(self.train):,} training and {len(self.held_out):,} held-out trees, "
            f"{self.train.vertices:,} and {self.held_out.vertices:,} vertices of {len(self.labels):,} kinds{known}"
        )


class GrowingTask(Task):
    """The kinds of the vertices of trees, and how many children they have, from the root down."""

    about = (
        "A distribution of trees, learnt from the root down: the kind of each vertex and how many children it has, and "
        "from these what its children are. Trees can be drawn from it, and each evaluation shows one. Without other "
        "data: syntax trees of Python's standard library."
    )
    tries = ("--set training.steps=500", "--set data.source=train.txt --set data.dev=dev.txt")
    unit = "vertices"
    defaults = Job(
        ModelSection(),
        DataSection(),
        training=TrainingSection(steps=2000),
        checkpoint=CheckpointSection("runs/top-down"),
    )
    fixed = ("source", "dev", "longest", "most", "held_out", "graphs", "training.seed")

    def load(self) -> Shapes:
        """Read the trees, and make them binary."""
        section = self.job.data
        cache = Path(section.cache) if section.cache else None
        if section.source == "stdlib":
            found = data.load_syntax_trees(WORDS, section.longest, section.most, section.held_out, True, cache)
        else:
            found = data.load_treebank(section.source, section.dev, WORDS, False, True, cache)
        origin = ", ".join(f"{name} {value}" for name, value in found.description.items())
        return Shapes(found.train, found.held_out, found.labels, frequencies(found.train, found.held_out), origin)

    def build(self) -> TopDownTreeLSTM:
        """Return the model, and lower the trees for it: their graphs are of that model alone, so each rank makes its
        own."""
        model = TopDownTreeLSTM(len(self.data.labels), self.job.model.width, self.job.model.hidden)
        self.train, self.held_out = model.lower(self.data.train), model.lower(self.data.held_out)
        return model

    def batches(self, first: int, rank: int, ranks: int) -> Iterator[data.GraphBatch | None]:
        """Yield a rank's share of the batches of trees, dealt by their vertices."""
        return training_batches(self.job, self.train, first, rank, ranks)

    def evaluate(self, world: World) -> Evaluation | None:
        """Return how likely held-out vertices are, beside what their frequencies alone tell; and a tree that the model
        draws, always with the same random numbers."""
        if not len(self.held_out):
            return None
        place = world.compute.Get_rank(), world.compute.Get_size()
        nats, vertices = 0.0, 0
        with no_grad():
            for batch in data.held_out_graph_batches(self.held_out, EVALUATION_GRAPHS, *place).one_pass():
                if batch.weight:
                    nats += batch.weight * float(self.model.loss(batch))
                    vertices += batch.weight
        nats, vertices = np.sum(world.gather((nats, vertices)), axis=0).tolist()
        loss, known = nats / vertices, self.data.frequencies
        drawn = world.from_root(lambda: self.model.draw(1, DRAWN_LEVELS, self.job.training.seed)[0])
        shown = bracketed(drawn, self.words())
        text = (
            f"held-out loss {loss:.4f} a vertex, perplexity {perplexity(loss):.2f}; by frequencies alone {known:.4f}, "
            f"{perplexity(known):.2f}; a tree drawn: {shown}"
        )
        values = {"loss": loss, "perplexity": perplexity(loss), "vertices": int(vertices), "drawn": shown}
        return Evaluation(text, {**values, "baselines": {"the frequencies of kinds and numbers of children": known}})

    def words(self) -> list[str]:
        """Return the kinds of vertices, the last of which stands for those without a label."""
        return [*self.data.labels, UNLABELLED]


def bracketed(tree: Any, kinds: list[str]) -> str:
    """Return a tree (kind, *children) as text: `Return`, or `(Return (Call _ _))`. Local.

    Children of a vertex of the last of `kinds` go to its parent: it was put in to make the tree binary.
    """
    return " ".join(_texts(tree, kinds))


def _texts(tree: Any, kinds: list[str]) -> list[str]:
    kind, *children = tree
    below = [text for child in children for text in _texts(child, kinds)]
    if not below:
        return [kinds[kind]]
    return below if kind == len(kinds) - 1 else [f"({kinds[kind]} {' '.join(below)})"]
