"""Jobs of kind "trees": the labels of the vertices of trees, by one of several models."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from hybridmpi import data
from hybridmpi.field_types import Count, FilePath, OptionalPath, Range, Share
from hybridmpi.models.rntn import TensorNetwork
from hybridmpi.models.sequence_lstm import SequenceLSTM
from hybridmpi.models.tree_lstm import TreeLSTM
from hybridmpi.models.tree_rnn import TreeRNN
from hybridmpi.models.vertex_classifier import VertexClassifier
from hybridmpi.training.job import CheckpointSection, Job, TrainingSection
from hybridmpi.training.vertices import VertexTask


@dataclass(frozen=True, slots=True)
class ModelSection:
    """[model]: which model, and its sizes."""

    kind: Annotated[Literal["trees"], "words at the leaves, a state at each vertex, softmax over the classes"] = "trees"
    cell: Annotated[
        Literal["nary", "sum", "rnn", "rntn", "sequence"],
        'Tree-LSTM: "nary", a left and a right child; "sum", any number of children, which are added; "rnn" or '
        '"rntn": a recursive network, without or with a tensor; "sequence": an LSTM over the words alone, which tells '
        "the root's label",
    ] = "nary"
    width: Annotated[Count, "of the words' rows"] = 100
    hidden: Annotated[Count, 'of a vertex\' state; for "rntn", whose tensor has 4 hidden^3 entries, take 30'] = 100
    dropout: Annotated[Share, "share dropped of words' rows and of what labels are told from"] = 0.0


@dataclass(frozen=True, slots=True)
class DataSection:
    """[data]: the trees; `graphs` is the number over all ranks."""

    source: Annotated[
        FilePath,
        '"stdlib", or a file of trees in brackets, one a line: (3 (2 It) (4 (2 \'s) (4 good))), '
        "each vertex with its label; or a folder with train.txt and dev.txt",
    ] = "stdlib"
    dev: Annotated[OptionalPath, "the file of held-out trees, where source is a file"] = ""
    vocabulary: Annotated[int, Range(2), "most frequent words kept, <unk> among them: the rows of the table"] = 10_000
    lower: Annotated[bool, "true: words of files are taken in lower case"] = False
    longest: Annotated[
        int, Range(2), 'vertices that a tree of "stdlib" may have; of longer statements the parts are taken'
    ] = 60
    most: Annotated[Count, 'trees of "stdlib" read at most'] = 100_000
    held_out: Annotated[Share, 'share of the trees of "stdlib" that is only evaluated on'] = 0.1
    graphs: Annotated[Count, "trees in one step over all ranks: the global batch, whatever the number of ranks"] = 64
    cache: Annotated[
        OptionalPath, 'folder for the trees as numbers; "": $XDG_CACHE_HOME/hybridmpi or ~/.cache/hybridmpi'
    ] = ""


class TreeTask(VertexTask):
    """The labels of the vertices of trees."""

    about = (
        "Labels of the vertices of trees. Without other data: the kinds of inner vertices of syntax trees of Python's "
        "standard library, of which only the leaves are shown."
    )
    tries = ("--set training.steps=500", "--set data.source=train.txt --set data.dev=dev.txt")
    defaults = Job(
        ModelSection(),
        DataSection(),
        training=TrainingSection(steps=2000),
        checkpoint=CheckpointSection("runs/trees"),
    )
    fixed = ("source", "dev", "lower", "longest", "most", "held_out", "graphs", "training.seed", "model.cell")

    def load(self) -> data.LabelledGraphs:
        """Read the trees: for child sums as they are, else made binary; for sequences only their words, and the label
        of the root."""
        section, cell = self.job.data, self.job.model.cell
        cache, binary = Path(section.cache) if section.cache else None, cell != "sum"
        if section.source == "stdlib":
            found = data.load_syntax_trees(
                section.vocabulary, section.longest, section.most, section.held_out, binary, cache
            )
        else:
            found = data.load_treebank(section.source, section.dev, section.vocabulary, section.lower, binary, cache)
        return data.as_sequences(found) if cell == "sequence" else found

    def build(self) -> VertexClassifier:
        """Return the model of the trees' words and classes."""
        model = self.job.model
        sizes = len(self.data.vocabulary), len(self.data.labels), model.width, model.hidden
        if model.cell in ("nary", "sum"):
            return TreeLSTM(*sizes, model.cell, model.dropout)
        kinds = {"rnn": TreeRNN, "rntn": TensorNetwork, "sequence": SequenceLSTM}
        return kinds[model.cell](*sizes, model.dropout)
