"""AllReduce: what sums the dense gradients of a job, by shared memory in the nodes and by messages between them."""

from __future__ import annotations

from typing import Any

import numpy as np

from hybridmpi.collectives.group import Group
from hybridmpi.collectives.halving_doubling import halving_doubling
from hybridmpi.collectives.recursive_doubling import recursive_doubling
from hybridmpi.collectives.ring import ring
from hybridmpi.collectives.shared import SharedMemory
from hybridmpi.world import World

# Below this size the number of messages decides, above it the bytes.
FEW_MESSAGES_BYTES = 16 << 10

# From this size on the ring's many messages cost less than halving-doubling's pauses: a ring's links are busy in both
# directions all the time, and it adds while it receives (64 MiB over four hosts at 1 Gbit/s: 0.99 s against 1.44 s).
RING_BYTES = 1 << 20


class AllReduce:
    """The all-reduce of the compute ranks of `world`. Collective over compute.

    `buffer_bytes`: room for the buffers that `allocate` gives out, which lie in the memory that the ranks of a node
    share and are summed where they are. On one node the ranks read each other's buffers. With several, each rank sums a
    slice within its node, then over the nodes with its counterparts there, all lanes at once.
    """

    def __init__(self, world: World, buffer_bytes: int) -> None:
        compute, rank = world.compute, world.compute.Get_rank()
        nodes = [world.node_of[client] for client in world.clients]
        self.nodes, self._ranks = len(set(nodes)), len(nodes)
        self._within = compute.Split(nodes[rank], key=rank)
        self._shared = SharedMemory(self._within, buffer_bytes, world.progress)
        self.lanes = min(nodes.count(node) for node in nodes)
        local = self._within.Get_rank()
        self._across = compute.Split(local if local < self.lanes else world.mpi.UNDEFINED, key=rank)
        self._lane: Group | None = None
        if self._across != world.mpi.COMM_NULL:
            places = [(0, node) for node in sorted(set(nodes), key=nodes.index)]
            self._lane = Group(self._across, places, world.wait_all)

    def allocate(self, length: int, dtype: Any) -> np.ndarray:
        """Return a zeroed buffer [length] that is summed where it lies. Local; the same calls on every rank."""
        return self._shared.allocate(length, dtype)

    def __call__(self, buffer: np.ndarray) -> None:
        """Replace `buffer`, made by `allocate`, on every rank by the sum over all ranks. Collective over compute."""
        if self.nodes == 1:
            self._shared.allreduce(buffer)
        elif buffer.size:
            self._shared.allreduce_across(buffer, self.lanes, self._sum_lane)

    def _sum_lane(self, part: np.ndarray) -> None:
        choose(part.nbytes)(self._lane, part)

    def describe(self) -> str:
        """Return how gradients travel, in words for the plan. Local."""
        ranks = self._ranks
        if ranks == 1:
            return "stays (one rank)"
        if self.nodes == 1:
            return f"all-reduce in shared memory over {ranks} ranks"
        return f"two-level all-reduce over {ranks} ranks on {self.nodes} nodes"

    def sent(self) -> tuple[int, int]:
        """Return the bytes this rank has moved so far (within its node, to other nodes). Local."""
        return self._shared.moved, sum(self._lane.sent.values()) if self._lane is not None else 0

    def close(self) -> None:
        """Free the shared memory and the communicators. Collective over compute."""
        self._shared.close()
        if self._lane is not None:
            self._across.Free()
        self._within.Free()


def choose(nbytes: int) -> Any:
    """Return the algorithm for `nbytes` between nodes. Local."""
    if nbytes <= FEW_MESSAGES_BYTES:
        return recursive_doubling
    return halving_doubling if nbytes < RING_BYTES else ring
