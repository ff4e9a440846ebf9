"""Row gradients gathered to every compute rank: slices, as Horovod sends sparse gradients."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from hybridmpi.arrays import fit_to_receive, fit_to_send
from hybridmpi.large_counts import begin_allgather
from hybridmpi.sparse.forms import Form
from hybridmpi.sparse.replica import Replica
from hybridmpi.traffic import Traffic
from hybridmpi.world import World

if TYPE_CHECKING:
    from mpi4py import MPI


@dataclass
class _Gathered:
    """What all ranks have for one table: `counts` rows of each rank, one rank's after the other's."""

    counts: np.ndarray
    ids: np.ndarray
    values: np.ndarray


class RowGather:
    """Sends every rank's row gradients of some replicas to all ranks, and applies them there. Collective over compute.

    In a step: `start`, then `finish`, then `update` of every replica. Each rank's rows arrive once at every other rank:
    (p - 1) times its own bytes leave it, whichever algorithm MPI takes.
    """

    def __init__(self, world: World, replicas: Sequence[Replica], traffic: Traffic) -> None:
        self.world, self.replicas, self.traffic = world, list(replicas), traffic
        self._near = sum(world.same_node(rank) for rank in world.clients) - 1
        self._weights = np.empty(0)
        self._gathered: list[_Gathered] = []
        self._requests: list[MPI.Request] = []

    def start(self, gradients: Sequence[tuple[np.ndarray, np.ndarray]], weight: float) -> None:
        """Begin to send this rank's (ids [n], values [n, dim]) of each replica, and its examples. Waits for how many
        rows the others have."""
        if not self.replicas:
            return
        comm = self.world.compute
        ranks = comm.Get_size()
        mine = np.array([weight, *(len(ids) for ids, _ in gradients)], np.float64)
        everybody = np.empty((ranks, len(mine)), np.float64)
        self.world.wait_all([comm.Iallgather(mine, everybody)])
        self._weights, counts = everybody[:, 0], everybody[:, 1:].astype(np.int64)
        self._gathered, self._requests, self._sent = [], [], []
        for number, (replica, (ids, values)) in enumerate(zip(self.replicas, gradients, strict=True)):
            of_ranks = counts[:, number]
            total = int(of_ranks.sum())
            gathered = _Gathered(of_ranks, np.empty(total, np.int64), np.empty((total, replica.dim), replica.dtype))
            self._gathered.append(gathered)
            ids, values = fit_to_send(ids), fit_to_send(values.astype(replica.dtype, copy=False))
            self._sent.append((ids, values))
            flat, of_all = values.reshape(-1), fit_to_receive(gathered.values).reshape(-1)
            self._requests += begin_allgather(comm, ids, fit_to_receive(gathered.ids), of_ranks)
            self._requests += begin_allgather(comm, flat, of_all, of_ranks * replica.dim)
            for category, count in (("gather_ids", ids.nbytes), ("gather_rows", values.nbytes)):
                self.traffic.add(category, count * self._near, True)
                self.traffic.add(category, count * (ranks - 1 - self._near), False)

    def finish(self) -> None:
        """Wait until all rows are here, and sum them in the order of the ranks."""
        if not self.replicas:
            return
        self.world.wait_all(self._requests)
        for replica, gathered in zip(self.replicas, self._gathered, strict=True):
            start = 0
            for rank, count in enumerate(gathered.counts.tolist()):
                if count:
                    rows = slice(start, start + count)
                    replica.shard.staging.add(rank, gathered.ids[rows], gathered.values[rows], Form(replica.dtype))
                start += count
        self._gathered, self._requests, self._sent = [], [], []
        weights = dict(enumerate(self._weights.tolist()))
        for replica in self.replicas:
            replica.shard.aggregate(weights)

    def sums(self) -> list[tuple[str, np.ndarray]]:
        """Return the summed gradient of every replica, [rows touched, dim], by name. Local; after `finish`."""
        return [(replica.name, replica.shard.sums) for replica in self.replicas]

    def forget(self) -> None:
        """Drop the step that was summed. Local."""
        for replica in self.replicas:
            replica.shard.forget()

    def update(self, step: int) -> None:
        """Apply the step, which counts from 1, to every replica. Local; the same on every rank."""
        for replica in self.replicas:
            replica.shard.update(step)
