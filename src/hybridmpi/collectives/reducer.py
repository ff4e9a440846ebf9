"""AllReduce: what sums the dense gradients of a job, by shared memory in the nodes and by messages between them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from hybridmpi.collectives.group import Group
from hybridmpi.collectives.halving_doubling import halving_doubling
from hybridmpi.collectives.recursive_doubling import recursive_doubling
from hybridmpi.collectives.ring import ring
from hybridmpi.collectives.shared import SMALL_BYTES, SharedMemory, bytes_moved
from hybridmpi.collectives.shared_buffer import SharedBuffer
from hybridmpi.collectives.steps import Operation, Steps, finish
from hybridmpi.collectives.wire import wire_for
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
    slice within its node, then over the nodes with its counterparts there, all lanes at once; `wire` is the form that
    float32 values have between nodes.
    """

    def __init__(self, world: World, buffer_bytes: int, wire: str = "float32") -> None:
        compute, rank = world.compute, world.compute.Get_rank()
        nodes = [world.node_of[client] for client in world.clients]
        self._wire = wire
        self._wait_until = world.wait_until
        self.nodes, self._ranks = len(set(nodes)), len(nodes)
        self._within = compute.Split(nodes[rank], key=rank)
        self._shared = SharedMemory(self._within, buffer_bytes, world.progress)
        self.lanes = min(nodes.count(node) for node in nodes)
        local = self._within.Get_rank()
        self._across = compute.Split(local if local < self.lanes else world.mpi.UNDEFINED, key=rank)
        self._lane: Group | None = None
        if self._across != world.mpi.COMM_NULL:
            places = [(0, node) for node in sorted(set(nodes), key=nodes.index)]
            self._lane = Group(self._across, places)
        # By the id of the array, which is kept, lest its id be given to another one.
        self._buffers: dict[int, SharedBuffer] = {}
        self._calls: dict[int, Callable[[], None]] = {}
        self._under_way: list[Operation] = []

    def allocate(self, length: int, dtype: Any) -> np.ndarray:
        """Return a zeroed buffer [length] that is summed where it lies. Local; the same calls on every rank."""
        shared = self._shared.allocate(length, dtype)
        self._buffers[id(shared.mine)] = shared
        self._calls[id(shared.mine)] = self._call(shared)
        return shared.mine

    def __call__(self, buffer: np.ndarray) -> None:
        """Replace `buffer`, made by `allocate`, on every rank by the sum over all ranks. Collective over compute."""
        self._calls[id(buffer)]()

    def _call(self, shared: SharedBuffer) -> Callable[[], None]:
        """Return the function that sums a buffer at once; what follows from its size is worked out here, since a
        microsecond counts."""
        buffer = shared.mine
        if self._ranks == 1 or not buffer.size:
            return lambda: None
        if self.nodes > 1:
            return lambda: finish(self._steps(shared), self._wait_until)
        memory, moved = self._shared, bytes_moved(buffer.size, buffer.itemsize, self._ranks, self._within.Get_rank())
        if buffer.nbytes <= SMALL_BYTES:

            def call() -> None:
                memory.moved += moved
                memory.allreduce_small(buffer)
        else:

            def call() -> None:
                memory.moved += moved
                finish(shared.at_once(), self._wait_until)

        return call

    def start(self, buffer: np.ndarray) -> None:
        """Begin to sum `buffer`, which nobody touches until `finish`. Collective over compute."""
        if self._ranks > 1 and buffer.size:
            self._under_way.append(Operation(self._steps(self._buffers[id(buffer)])))
            self.advance()

    def advance(self) -> None:
        """Move on what is under way, without waiting. Local."""
        self._under_way = [operation for operation in self._under_way if not operation.advance()]

    def finish(self) -> None:
        """Wait for all sums that were started. Collective over compute."""
        if self._under_way:
            self._wait_until(lambda: self.advance() or not self._under_way)

    def _steps(self, shared: SharedBuffer) -> Steps:
        buffer = shared.mine
        if self.nodes == 1:
            self._shared.moved += 2 * (self._ranks - 1) * _length(shared.slice_of(self._ranks)) * buffer.itemsize
            return shared.steps()
        start, stop = shared.slice_of(self.lanes)
        self._shared.moved += 2 * (shared.ranks - 1) * (stop - start) * buffer.itemsize
        across = None
        if self._lane is not None:
            part = buffer[start:stop]
            group = self._lane.tagged(1 + shared.number)
            across = choose(part.nbytes)(group, part, wire_for(self._wire, part.dtype))
        return shared.across_steps(self.lanes, across)

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
        self._buffers.clear()
        self._calls.clear()
        self._shared.close()
        if self._lane is not None:
            self._across.Free()
        self._within.Free()


def _length(bounds: Sequence[int]) -> int:
    return bounds[1] - bounds[0]


def choose(nbytes: int) -> Any:
    """Return the algorithm for `nbytes` between nodes. Local."""
    if nbytes <= FEW_MESSAGES_BYTES:
        return recursive_doubling
    return halving_doubling if nbytes < RING_BYTES else ring
