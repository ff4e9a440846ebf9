"""Measured sparsity of a running job: which fraction of each table's rows a step touches, at every level."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from hybridmpi.planning.alpha import Alpha, AlphaMean
from hybridmpi.planning.report import columns
from hybridmpi.sparse.replica import Replica
from hybridmpi.training.tables import TableExchange

# What one look weighs in the mean beside the one before: a run whose data change is believed after a few.
DECAY = 0.5


class Counts(NamedTuple):
    """Rows touched so far in so many `steps`: of each table, added over the steps, by the ranks, one by one and added
    up, and by all together."""

    steps: int
    ranks: np.ndarray
    all: np.ndarray


class Sparsity:
    """Alpha of every table: of a rank, of all ranks together, and of a node between them.

    What the ranks touch is known after every step; what all touch together is asked of the owners when alpha is.
    `levels` is the moving mean that decisions follow, one look after another; `lately` and `so_far` are for people.
    """

    def __init__(self, exchange: TableExchange) -> None:
        self.exchange = exchange
        self._means = [AlphaMean(DECAY) for _ in exchange.tables]
        tables = len(exchange.tables)
        self._start = Counts(0, np.zeros(tables, np.int64), np.zeros(tables))
        self._now = self._looked = self._told = self._start

    def add(self, rows: np.ndarray) -> None:
        """Take in how many distinct rows of each table the ranks touched in a step, added up. Local."""
        self._now = Counts(self._now.steps + 1, self._now.ranks + rows, self._now.all)

    def of_ranks(self) -> dict[str, float]:
        """Return what a rank touched of each table, on average since the last call of `levels`. Local."""
        return {name: rank for name, (rank, _) in self._between(self._looked).items()}

    def levels(self) -> dict[str, Alpha]:
        """Return the moving mean of every table's alpha, once there was a step. Collective over compute; waits for the
        owners.

        That of a node is not counted: its ranks together act as so many independent ones as fits what all touch.
        """
        alphas = self._since(self._looked)
        self._looked = self._now
        for table, mean in zip(self.exchange.tables, self._means, strict=True):
            if table.name in alphas:
                mean.add(*alphas[table.name])
        means = {table.name: mean.mean for table, mean in zip(self.exchange.tables, self._means, strict=True)}
        return {name: mean for name, mean in means.items() if mean is not None}

    def lately(self) -> dict[str, Alpha]:
        """Return every table's alpha on average over the steps since the last call; nothing without any. Collective
        over compute; waits for the owners."""
        alphas = self._since(self._told)
        self._told = self._now
        return alphas

    def so_far(self) -> dict[str, Alpha]:
        """Return every table's alpha on average over all steps of this run; nothing without any. Collective over
        compute; waits for the owners."""
        return self._since(self._start)

    def _since(self, before: Counts) -> dict[str, Alpha]:
        self._now = self._now._replace(all=self._now.all + self._touched_by_all())
        if self._now.steps == before.steps:
            return {}
        return {
            name: Alpha(rank, self._of_node(rank, everybody), everybody)
            for name, (rank, everybody) in self._between(before).items()
        }

    def _between(self, before: Counts) -> dict[str, tuple[float, float]]:
        """Return what was touched of each table on average since then, by a rank and by all."""
        now, ranks = self._now, len(self.exchange.world.clients)
        found, steps = {}, max(1, now.steps - before.steps)
        for number, table in enumerate(self.exchange.tables):
            rows = steps * max(1, table.rows)
            rank = float(now.ranks[number] - before.ranks[number]) / (rows * ranks)
            found[table.name] = rank, min(1.0, max(rank, float(now.all[number] - before.all[number]) / rows))
        return found

    def _touched_by_all(self) -> np.ndarray:
        """Return how many rows of each table were updated since the last call, added over the steps."""
        counted = np.zeros(len(self.exchange.tables))
        for answer in self.exchange.service.call("touched"):
            counted += answer[: len(counted)]
        for number, table in enumerate(self.exchange.tables):
            if isinstance(table, Replica):
                counted[number] = table.shard.take_touched()
        return counted

    def _of_node(self, rank: float, everybody: float) -> float:
        world = self.exchange.world
        nodes = [world.node_of[client] for client in world.clients]
        size, ranks = max(map(nodes.count, nodes)), len(nodes)
        if size == 1 or not 0 < rank < everybody:
            return rank
        if size == ranks or everybody >= 1:
            return everybody
        together = math.log1p(-everybody) / math.log1p(-rank)
        return -math.expm1(math.log1p(-rank) * (1 + (together - 1) * (size - 1) / (ranks - 1)))

    def state(self) -> list[Any]:
        """Return the moving means as JSON values for a checkpoint's meta. Local."""
        return [mean.state() for mean in self._means]

    def restore(self, state: Sequence[Mapping[str, Any]]) -> None:
        """Go on with the means that `state` described. Local."""
        self._means = [AlphaMean.restored(mean) for mean in state]


def as_table(alphas: Mapping[str, Alpha], exchange: TableExchange) -> str:
    """Return every table's alpha as lines for people, beside its rows and the way of its gradient. Local."""
    head = ("table", "rows", "way", "of a rank", "of a node", "of all")
    lines = [
        (table.name, f"{table.rows:,}", exchange.ways[table.name], *(f"{alpha:.3g}" for alpha in alphas[table.name]))
        for table in exchange.tables
        if table.name in alphas
    ]
    return "\n".join(["alpha, the share of a table's rows that a step touched:", *columns([head, *lines], left=(0, 2))])


def as_json(alphas: Mapping[str, Alpha]) -> dict[str, dict[str, float]]:
    """Return every table's alpha as JSON values, to six digits. Local."""
    return {name: {level: float(f"{value:.6g}") for level, value in a._asdict().items()} for name, a in alphas.items()}
