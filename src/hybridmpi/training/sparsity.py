"""Measured sparsity of a running job: which fraction of each table's rows a step touches, at every level."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from hybridmpi.planning.alpha import Alpha, AlphaMean
from hybridmpi.sparse.replica import Replica
from hybridmpi.training.tables import TableExchange

# What one look weighs in the mean beside the one before: a run whose data change is believed after a few.
DECAY = 0.5


class Sparsity:
    """Alpha of every table: its moving mean for a rank, what all ranks together touched, and a node between them.

    A rank's is known after every step; what all touch together is asked of the owners when `levels` is called.
    """

    def __init__(self, exchange: TableExchange) -> None:
        self.exchange = exchange
        self._means = [AlphaMean(DECAY) for _ in exchange.tables]
        self._steps = 0
        self._rows = np.zeros(len(exchange.tables), np.int64)

    def add(self, rows: np.ndarray) -> None:
        """Take in how many distinct rows of each table the ranks touched in a step, added up. Local."""
        self._steps += 1
        self._rows += rows

    def of_ranks(self) -> dict[str, float]:
        """Return what a rank touched of each table, on average since the last call of `levels`. Local."""
        ranks = len(self.exchange.world.clients)
        touched = self._rows / max(1, self._steps * ranks)
        return {t.name: n / max(1, t.rows) for t, n in zip(self.exchange.tables, touched.tolist(), strict=True)}

    def levels(self) -> dict[str, Alpha]:
        """Return the moving mean of every table's alpha, once there was a step. Collective over compute; waits for the
        owners.

        That of a node is not counted: its ranks together act as so many independent ones as fits what all touch.
        """
        if self._steps:
            everybody = self._touched_by_all() / self._steps
            ranks = self.of_ranks()
            for table, mean, touched in zip(self.exchange.tables, self._means, everybody.tolist(), strict=True):
                rank = ranks[table.name]
                together = min(1.0, max(rank, touched / max(1, table.rows)))
                mean.add(rank, self._of_node(rank, together), together)
            self._steps, self._rows[:] = 0, 0
        means = {table.name: mean.mean for table, mean in zip(self.exchange.tables, self._means, strict=True)}
        return {name: mean for name, mean in means.items() if mean is not None}

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
        """Return the means as JSON values for a checkpoint's meta. Local."""
        return [mean.state() for mean in self._means]

    def restore(self, state: Sequence[Mapping[str, Any]]) -> None:
        """Go on with the means that `state` described. Local."""
        self._means = [AlphaMean.restored(mean) for mean in state]
