"""Jobs of kind "graphs": the names of masked variables in functions, as graphs whose vertices share children."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from hybridmpi import data
from hybridmpi.field_types import Count, OptionalPath, Range, Share
from hybridmpi.models.two_way_graph import TwoWayGraphModel
from hybridmpi.training.job import CheckpointSection, Job, TrainingSection
from hybridmpi.training.vertices import VertexTask


@dataclass(frozen=True, slots=True)
class ModelSection:
    """[model]: the sizes of the model with a pass up and one down."""

    kind: Annotated[
        Literal["graphs"],
        "gated recurrent units from the leaves up, then from the roots down; softmax over the names",
    ] = "graphs"
    width: Annotated[Count, "of the rows of words and of kinds of vertices"] = 100
    hidden: Annotated[Count, "of a vertex' state in each direction"] = 100
    dropout: Annotated[Share, "share dropped of these rows and of what names are told from"] = 0.3


@dataclass(frozen=True, slots=True)
class DataSection:
    """[data]: the functions of Python's standard library; `graphs` is the number over all ranks."""

    source: Annotated[Literal["stdlib"], "functions of Python's standard library: nothing to download"] = "stdlib"
    vocabulary: Annotated[
        int, Range(3), "most frequent words kept, <unk> and <mask> among them: the rows of the table"
    ] = 10_000
    names: Annotated[Count, "most frequent names of variables: the classes, half of whose occurrences are masked"] = 500
    longest: Annotated[int, Range(2), "vertices that a function may have; longer ones are left out"] = 200
    most: Annotated[Count, "functions read at most"] = 20_000
    held_out: Annotated[Share, "share of the functions that is only evaluated on"] = 0.1
    graphs: Annotated[Count, "functions in one step over all ranks: the global batch, whatever the number of ranks"] = (
        64
    )
    cache: Annotated[
        OptionalPath, 'folder for the graphs as numbers; "": $XDG_CACHE_HOME/hybridmpi or ~/.cache/hybridmpi'
    ] = ""


class VariableTask(VertexTask):
    """The names of masked variables."""

    about = (
        "Names of masked variables in functions of Python's standard library, as graphs: all occurrences of a variable "
        "have one vertex below them, which learns from all of its parents what it is used for."
    )
    tries = ("--set training.steps=500",)
    defaults = Job(
        ModelSection(),
        DataSection(),
        training=TrainingSection(steps=2000),
        checkpoint=CheckpointSection("runs/graphs"),
    )
    fixed = ("names", "longest", "most", "held_out", "graphs", "training.seed")

    def load(self) -> data.LabelledGraphs:
        """Read the functions."""
        section = self.job.data
        cache = Path(section.cache) if section.cache else None
        return data.load_variable_graphs(
            section.vocabulary, section.names, section.longest, section.most, section.held_out, cache
        )

    def build(self) -> TwoWayGraphModel:
        """Return the model of the functions' words, kinds of vertices and names."""
        model, of = self.job.model, self.data
        sizes = len(of.vocabulary), len(of.kinds), len(of.labels), model.width, model.hidden
        return TwoWayGraphModel(*sizes, model.dropout)
