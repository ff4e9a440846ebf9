"""Tables whose gradient is summed whole, by all-reduce: for those of which a step touches most rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from hybridmpi.collectives import AllReduce
from hybridmpi.collectives.shared import room_for
from hybridmpi.collectives.tuning import calibrate
from hybridmpi.large_counts import pieces
from hybridmpi.sparse.replica import Replica
from hybridmpi.traffic import Traffic
from hybridmpi.world import World


class TableSums:
    """Sums the gradients of some replicas over the ranks, each as one buffer of its whole size. Collective over
    compute.

    A row is updated if any rank touched it, as at an owner: beside the sum goes one bit for each row. `make_allreduce`
    returns an AllReduce with room for so many bytes.
    """

    def __init__(
        self, world: World, replicas: Sequence[Replica], make_allreduce: Callable[[int], AllReduce], traffic: Traffic
    ) -> None:
        self.world, self.replicas, self.traffic = world, list(replicas), traffic
        self.allreduce: AllReduce | None = None
        self._buffers: list[np.ndarray] = []
        self._touched = [np.empty(0, np.int64) for _ in self.replicas]
        self._bits: list[np.ndarray] = []
        self._requests: list = []
        if not self.replicas:
            return
        self.allreduce = make_allreduce(sum(room_for(r.rows * r.spec.row_bytes) for r in self.replicas))
        self._buffers = [self.allreduce.allocate(r.rows * r.dim, r.dtype) for r in self.replicas]
        calibrate(self.allreduce)
        world.add_progress(self.allreduce.advance)

    def start(self, gradients: Sequence[tuple[np.ndarray, np.ndarray]], share: float) -> None:
        """Begin to sum this rank's (ids [n], values [n, dim]) of each replica; a mean weights them by this rank's
        `share` of the examples. Does not wait."""
        mpi, self._bits, self._requests = self.world.mpi, [], []
        for number, (replica, (ids, values)) in enumerate(zip(self.replicas, gradients, strict=True)):
            buffer = self._buffers[number]
            rows = buffer.reshape(replica.rows, replica.dim)
            rows[self._touched[number]] = 0  # what the last step left; all other rows are zero
            rows[ids] = values
            mask = np.zeros(replica.rows, bool)
            mask[ids] = True
            bits = np.packbits(mask)
            self._bits.append(bits)
            for piece in pieces(bits):
                self._requests.append(self.world.compute.Iallreduce(mpi.IN_PLACE, piece, op=mpi.BOR))
            self.traffic.add("control", bits.nbytes, self.world.nodes == 1)
            self.allreduce.start(buffer, 1.0 if replica.spec.reduction == "sum" else share)

    def finish(self) -> None:
        """Wait until every rank has the sums."""
        if self.allreduce is None:
            return
        self.world.wait_all(self._requests)
        self.allreduce.finish()
        self._touched = [
            np.flatnonzero(np.unpackbits(bits, count=replica.rows))
            for bits, replica in zip(self._bits, self.replicas, strict=True)
        ]

    def sums(self) -> list[tuple[str, np.ndarray]]:
        """Return the gradient of each replica summed over the ranks, by name: all rows, flat, zeros in those that
        nobody touched. Local; valid between `finish` and the next `start`."""
        return [(replica.name, buffer) for replica, buffer in zip(self.replicas, self._buffers, strict=True)]

    def update(self, step: int) -> None:
        """Update every row that any rank touched, once; `step` counts from 1. Local; the same on every rank."""
        for replica, rows, buffer in zip(self.replicas, self._touched, self._buffers, strict=True):
            shard, sums = replica.shard, buffer.reshape(replica.rows, replica.dim)[rows]
            shard.count_touched(len(rows))
            shard.spec.optimizer.update_rows(shard.values, shard.state, rows, sums, step)

    def sent(self) -> int:
        """Return the bytes this rank has sent in sums so far. Local."""
        return sum(self.allreduce.sent().values()) if self.allreduce is not None else 0

    def close(self) -> None:
        """Free the memory and the communicators. Collective over compute."""
        if self.allreduce is not None:
            self.world.remove_progress(self.allreduce.advance)
            self._buffers = []
            self.allreduce.close()
            self.allreduce = None
