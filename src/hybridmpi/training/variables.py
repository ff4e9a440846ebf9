"""Jobs of kind "graphs": the names of masked variables in functions, as graphs whose vertices share children."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from hybridmpi import data
from hybridmpi.models.two_way_graph import TwoWayGraphModel
from hybridmpi.training.job import CheckpointSection, Job, TrainingSection
from hybridmpi.training.values import Count, Range
from hybridmpi.training.vertices import VertexTask


@dataclass(frozen=True, slots=True)
class ModelSection:
    """[model]: the sizes of the model with a pass up and one down."""

    kind: Literal["graphs"] = "graphs"
    width: Count = 100
    hidden: Count = 100
    dropout: Annotated[float, Range(0, 1)] = 0.3


@dataclass(frozen=True, slots=True)
class DataSection:
    """[data]: the functions of Python's standard library; `graphs` is the number over all ranks."""

    source: Literal["stdlib"] = "stdlib"
    vocabulary: Annotated[int, Range(3)] = 10_000
    names: Count = 500
    longest: Annotated[int, Range(2)] = 200
    most: Count = 20_000
    held_out: Annotated[float, Range(0, 1)] = 0.1
    graphs: Count = 64
    cache: str = ""


class VariableTask(VertexTask):
    """The names of masked variables."""

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
