"""What jobs share whose models tell the labels of vertices of graphs."""

from __future__ import annotations

from collections.abc import Iterator

from hybridmpi import data
from hybridmpi.graphs import Graphs
from hybridmpi.models.score import Score, score
from hybridmpi.training.job import Job
from hybridmpi.training.task import Evaluation, Task
from hybridmpi.world import World

# Held-out graphs that one call of the model evaluates on all ranks together.
EVALUATION_GRAPHS = 256


def training_batches(job: Job, graphs: Graphs, first: int, rank: int, ranks: int) -> Iterator[data.GraphBatch | None]:
    """Yield a rank's batches of graphs, [data] graphs of them a step over all ranks, from step `first` on; None where
    it got no label. Local."""
    batches = data.GraphBatches(graphs, job.data.graphs, job.training.seed, rank, ranks)
    batches.position = first
    return (batch if batch.weight else None for batch in batches)


class VertexTask(Task):
    """Telling the labels of vertices: a subclass has `load`, which returns LabelledGraphs, and `build`; its [data] has
    `graphs`, how many graphs a step takes over all ranks."""

    unit = "labels"

    def batches(self, first: int, rank: int, ranks: int) -> Iterator[data.GraphBatch | None]:
        """Yield a rank's share of the batches of graphs, dealt by their vertices."""
        return training_batches(self.job, self.data.train, first, rank, ranks)

    def evaluate(self, world: World) -> Evaluation | None:
        """Return how many of the held-out labels are told right, and how many of those of roots; of sentiment (classes
        "0" to "4") also on which side of neutral roots are. The values have what tables without training tell too."""
        held_out = self.data.held_out
        if not len(held_out):
            return None
        place = world.compute.Get_rank(), world.compute.Get_size()
        neutral = 2 if self.data.labels == list("01234") else None
        mine = Score()
        for batch in data.held_out_graph_batches(held_out, EVALUATION_GRAPHS, *place).one_pass():
            if batch.weight:
                mine += score(batch.graphs, self.model.evaluate(batch), neutral)
        found = sum(world.gather(mine), start=Score())
        if not found.vertices:
            return None
        values = {"loss": found.loss / found.vertices, "accuracy": found.right / found.vertices}
        text = f"held-out loss {values['loss']:.4f}, {values['accuracy']:.1%} of {found.vertices:,} labels right"
        if found.roots > 0:
            values |= {"root_accuracy": found.roots_right / found.roots, "roots": found.roots}
            text += f", {values['root_accuracy']:.1%} of {found.roots:,} at roots"
        if found.polar:
            values |= {"polar_accuracy": found.polar_right / found.polar, "polar_roots": found.polar}
            text += f", the side of neutral at {values['polar_accuracy']:.1%} of {found.polar:,} roots"
        return Evaluation(text, {**values, "labels": found.vertices, "baselines": dict(self.data.baselines)})

    def words(self) -> list[str]:
        """Return the words, then the kinds of vertices where there are any, then the classes."""
        kinds = self.data.kinds.words if self.data.kinds else []
        return [*self.data.vocabulary.words, *kinds, *self.data.labels]

    def words_begin(self) -> dict[str, int]:
        """Return where the words of each table begin."""
        return {"words": 0, "kinds": len(self.data.vocabulary.words)}
