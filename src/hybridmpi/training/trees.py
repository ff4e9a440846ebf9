"""Jobs of kind "trees": the labels of the vertices of trees, by one of several models."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from hybridmpi import data
from hybridmpi.models.rntn import TensorNetwork
from hybridmpi.models.sequence_lstm import SequenceLSTM
from hybridmpi.models.tree_lstm import TreeLSTM
from hybridmpi.models.tree_rnn import TreeRNN
from hybridmpi.models.vertex_classifier import VertexClassifier
from hybridmpi.training.job import CheckpointSection, Job, TrainingSection
from hybridmpi.training.values import Count, Range
from hybridmpi.training.vertices import VertexTask


@dataclass(frozen=True, slots=True)
class ModelSection:
    """[model]: which model, and its sizes."""

    kind: Literal["trees"] = "trees"
    cell: Literal["nary", "sum", "rnn", "rntn", "sequence"] = "nary"
    width: Count = 100
    hidden: Count = 100
    dropout: Annotated[float, Range(0, 1)] = 0.0


@dataclass(frozen=True, slots=True)
class DataSection:
    """[data]: the trees; `graphs` is the number over all ranks."""

    source: str = "stdlib"
    dev: str = ""
    vocabulary: Annotated[int, Range(2)] = 10_000
    lower: bool = False
    longest: Annotated[int, Range(2)] = 60
    most: Count = 100_000
    held_out: Annotated[float, Range(0, 1)] = 0.1
    graphs: Count = 64
    cache: str = ""


class TreeTask(VertexTask):
    """The labels of the vertices of trees."""

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
