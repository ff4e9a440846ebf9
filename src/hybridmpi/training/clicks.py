"""Jobs of kind "ctr": the prediction of clicks from many categorical features."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import numpy as np

from hybridmpi import data
from hybridmpi.autograd import logistic_loss
from hybridmpi.data import open_bandit
from hybridmpi.field_types import Amount, Count, Counts, FilePath, Natural, Seed
from hybridmpi.models.ctr import ClickModel
from hybridmpi.models.ranking import area_under_curve
from hybridmpi.optim import Adagrad
from hybridmpi.training.job import CheckpointSection, Job, TrainingSection
from hybridmpi.training.task import Evaluation, Task
from hybridmpi.world import World

# Held-out examples that one call of the model evaluates.
EVALUATION_BATCH = 4096


@dataclass(frozen=True, slots=True)
class ModelSection:
    """[model]: the click model's sizes."""

    kind: Annotated[
        Literal["ctr"], "embedding bags, dot products of every two of them, layers below and above: DLRM"
    ] = "ctr"
    width: Annotated[Count, "of the embedding rows"] = 16
    bottom: Annotated[Counts, "hidden layers between the numbers of an example and a vector of that width"] = (64,)
    top: Annotated[Counts, "hidden layers between the dot products and the logit"] = (64,)


@dataclass(frozen=True, slots=True)
class DataSection:
    """[data]: the click log; `batch` is the number of examples over all ranks."""

    source: Annotated[
        FilePath,
        '"generated"; "open-bandit": the installed obp package\'s files; or a folder with such files',
    ] = "generated"
    batch: Annotated[Count, "examples of one step over all ranks, whatever the number of ranks"] = 2048
    held_out: Annotated[Natural, "examples that are only evaluated on; of a log that is read, the last ones"] = 20_000
    seed: Annotated[Seed, "of what is generated, or of the order in which a log is read"] = 1
    divide: Annotated[Count, "generated: the benchmark's 33.8 million rows of the tables divided by this"] = 1000
    exponent: Annotated[Amount, "generated: of the power law of the ids; larger: fewer rows make up most"] = 1.05
    bag: Annotated[Count, "generated: ids of each table in an example"] = 2


class ClickTask(Task):
    """The prediction of clicks."""

    about = (
        "Click-through prediction from 26 tables and 13 numbers, the sizes of a benchmark, on a log that is made as it "
        "is read."
    )
    tries = ("",)
    defaults = Job(
        ModelSection(),
        DataSection(),
        Adagrad(rate=0.05, initial=1e-5),
        training=TrainingSection(steps=600),
        checkpoint=CheckpointSection("runs/ctr"),
    )
    fixed = ("source", "batch", "held_out", "seed", "divide", "exponent", "bag")

    def load(self) -> data.Clicks:
        """Read or prepare the click log."""
        section = self.job.data
        if section.source == "generated":
            return data.GeneratedClicks(section.divide, section.exponent, section.bag, section.held_out, section.seed)
        folder = open_bandit.installed() if section.source == "open-bandit" else Path(section.source)
        return open_bandit.read(folder, section.held_out, section.seed)

    def build(self) -> ClickModel:
        """Return the model of the log's tables."""
        model = self.job.model
        return ClickModel(self.data.tables, self.data.features, model.width, model.bottom, model.top)

    def batches(self, first: int, rank: int, ranks: int) -> Iterator[data.ClickBatch | None]:
        """Yield a rank's share of the global batches."""
        return data.training_batches(self.data, self.job.data.batch, first, rank, ranks)

    def evaluate(self, world: World) -> Evaluation | None:
        """Return log loss and AUC of all held-out examples, beside the best constant and the labels' own model."""
        if not self.data.held_out:
            return None
        place = world.compute.Get_rank(), world.compute.Get_size()
        batches = list(data.held_out_batches(self.data, EVALUATION_BATCH, *place))
        mine = [np.concatenate(part) if part else np.empty(0) for part in (
            [self.model.evaluate(batch) for batch in batches],
            [batch.labels for batch in batches],
            [batch.logits for batch in batches if batch.logits is not None],
        )]  # fmt: skip
        logits, labels, true = (np.concatenate(parts) for parts in zip(*world.gather(mine), strict=True))
        loss, curve, share = _loss(logits, labels), area_under_curve(logits, labels), float(labels.mean())
        constant = _loss(np.full(len(labels), _logit(share)), labels)
        text, values = f"base rate: {constant:.4f}", {"base_rate_log_loss": constant, "base_rate": share}
        if len(true):
            best, best_curve = _loss(true, labels), area_under_curve(true, labels)
            text += f"; the model that drew the labels: {best:.4f}, {best_curve:.4f}"
            values |= {"best_log_loss": best, "best_auc": None if math.isnan(best_curve) else best_curve}
        if broken := int(np.isnan(logits).sum()):
            text += f"; {broken:,} SCORES ARE NaN"
        return Evaluation(
            f"held-out log loss {loss:.4f}, AUC {curve:.4f} on {len(labels):,} examples ({text})",
            # Without a click, with nothing else, or with scores that are NaN there is no AUC; JSON has no NaN.
            {"log_loss": loss, "auc": None if math.isnan(curve) else curve, **values, "examples": len(labels)},
        )


def _loss(logits: np.ndarray, labels: np.ndarray) -> float:
    """Return the mean logistic loss in double precision."""
    return float(logistic_loss(logits.astype(np.float64), labels).mean())


def _logit(share: float) -> float:
    """Return the logit of a probability, within what double precision tells from 0 and 1."""
    share = min(max(share, 1e-300), 1 - 1e-16)
    return math.log(share / (1 - share))
