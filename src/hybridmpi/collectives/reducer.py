"""AllReduce: what sums the dense gradients of a job, by shared memory in the nodes and by messages between them."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from hybridmpi.collectives import selection
from hybridmpi.collectives.algorithms import ALGORITHMS
from hybridmpi.collectives.group import FABRIC_PART_BYTES, PART_BYTES, Group
from hybridmpi.collectives.mpi_own import sum_by_mpi
from hybridmpi.collectives.shared import SMALL_BYTES, SharedMemory, bytes_moved
from hybridmpi.collectives.shared_buffer import SharedBuffer
from hybridmpi.collectives.steps import Operation, Steps, finish
from hybridmpi.collectives.topology import Topology, discover
from hybridmpi.collectives.two_level import TAGS
from hybridmpi.collectives.wire import wire_for
from hybridmpi.errors import HybridMPIError, UsageError
from hybridmpi.mpi_start import has_fabric
from hybridmpi.world import World

# The name of what one node does: no messages at all.
SHARED = "shared"
MPI = selection.MPI


class AllReduce:
    """The all-reduce of the compute ranks of `world`. Collective over compute.

    `buffer_bytes`: room for the buffers that `allocate` gives out, which lie in the memory that the ranks of a node
    share and are summed where they are. On one node the ranks read each other's buffers. With several, each rank sums a
    slice within its node, then over the nodes with its counterparts there, all lanes at once. `topology`: where the
    ranks are; by default what Slurm says. `wire`: the form that float32 values have between nodes. `algorithm`: "auto",
    "mpi", or between nodes one of ALGORITHMS; `tuning.calibrate` makes "auto" know the machine. `check`: compare what
    all ranks sum before each call, to find the one that sums something else.
    """

    def __init__(
        self,
        world: World,
        buffer_bytes: int,
        topology: Topology | None = None,
        wire: str = "float32",
        algorithm: str = "auto",
        check: bool = False,
    ) -> None:
        self.world, self.topology, self.wire = world, topology or discover(world), wire
        compute, rank = world.compute, world.compute.Get_rank()
        nodes = [place.node for place in self.topology.places]
        self.nodes, self.ranks = self.topology.nodes, len(nodes)
        wire_for(wire, np.dtype(np.float32))  # refuses an unknown one
        self.algorithm = self._checked(algorithm)
        self._check = check
        part_bytes = FABRIC_PART_BYTES if all(world.gather(has_fabric())) else PART_BYTES
        self._within = compute.Split(nodes[rank], key=rank)
        self._shared = SharedMemory(self._within, buffer_bytes, world.drive)
        self.lanes = min(nodes.count(node) for node in nodes)
        local = self._within.Get_rank()
        # In the order in which `places` below has the nodes, which need not be that of the lane's ranks.
        order = {node: number for number, node in enumerate(dict.fromkeys(nodes))}
        self._across = compute.Split(local if local < self.lanes else world.mpi.UNDEFINED, key=order[nodes[rank]])
        self.lane: Group | None = None
        if self._across != world.mpi.COMM_NULL:
            places = {place.node: place for place in reversed(self.topology.places)}
            self.lane = Group(self._across, [places[node][:2] for node in order], part_bytes=part_bytes)
        self.choices: dict[int, selection.Choice] = {}
        # By the id of the array, which is kept, lest its id be given to another one.
        self._buffers: dict[int, SharedBuffer] = {}
        self._calls: dict[int, Callable[[], None]] = {}
        self._under_way: list[tuple[SharedBuffer, Operation]] = []
        self._left_to_mpi: list[SharedBuffer] = []

    def _checked(self, algorithm: str) -> str:
        names = ["auto", MPI, *(n for n in ALGORITHMS if n != MPI)] if self.nodes > 1 else ["auto", MPI, SHARED]
        if algorithm not in names:
            raise UsageError(
                f"all-reduce algorithm '{algorithm}' on {self.nodes} node{'s' * (self.nodes > 1)}: expected one of "
                f"{', '.join(names)}"
            )
        if algorithm == MPI and self.nodes > 1 and self.wire != "float32":
            raise UsageError(f"MPI's own all-reduce cannot send {self.wire}: expected the wire float32 with it")
        return algorithm

    # -- summing ---------------------------------------------------------------------------------------------------

    def allocate(self, length: int, dtype: Any) -> np.ndarray:
        """Return a zeroed buffer [length] that is summed where it lies. Local; the same calls on every rank.

        dtype: float32 or float64, else UsageError. Raises ValueError when the room is used up, or the tags that tell
        the messages of buffers from each other.
        """
        if len(self._buffers) + 1 >= TAGS:
            raise ValueError(f"an all-reduce has at most {TAGS - 2} buffers: make them larger")
        shared = self._shared.allocate(length, dtype)
        self._buffers[id(shared.mine)] = shared
        self._calls[id(shared.mine)] = partial(self._first_call, shared)
        return shared.mine

    def __call__(self, buffer: np.ndarray) -> None:
        """Replace `buffer`, made by `allocate`, on every rank by the sum over all ranks. Collective over compute."""
        try:
            call = self._calls[id(buffer)]
        except KeyError:
            raise _stranger(buffer) from None
        call()

    def _first_call(self, shared: SharedBuffer) -> None:
        """Work out how a buffer is summed, for this call and all later ones, and sum it."""
        call = self.call(shared, self.algorithm_for(shared.mine.nbytes))

        def checked() -> None:
            self._require_same_call(shared)
            call()

        self._calls[id(shared.mine)] = checked if self._check else call
        self._calls[id(shared.mine)]()

    def _require_same_call(self, shared: SharedBuffer) -> None:
        """Raise UsageError on all ranks unless all sum the same buffer. Collective over compute."""
        mine = (f"buffer {shared.number}", f"{shared.mine.size} x {shared.mine.dtype}")
        everybody = self.world.gather((self.world.rank, *mine))
        if len({entry[1:] for entry in everybody}) > 1:
            raise UsageError(
                "the ranks do not sum the same buffer: "
                + ", ".join(f"rank {rank} {name} ({shape})" for rank, name, shape in everybody)
                + ". Every rank makes the same buffers and sums them in the same order"
            )

    def call(self, shared: SharedBuffer, algorithm: str) -> Callable[[], None]:
        """Return the function that sums a buffer at once; what follows from its size is worked out here, since a
        microsecond counts. Local."""
        buffer = shared.mine
        if self.ranks == 1 or not buffer.size:
            return lambda: None
        if algorithm == MPI:
            return lambda: self._by_mpi(buffer)
        if self.nodes > 1:

            def call_across() -> None:
                shared.share = 1.0
                finish(self._steps(shared, algorithm), self.world.wait_until)

            return call_across
        memory, moved = self._shared, bytes_moved(buffer.size, buffer.itemsize, self.ranks, shared.rank)
        if buffer.nbytes <= SMALL_BYTES:
            small, address = memory.small_call(buffer)

            def call() -> None:
                memory.moved += moved
                if not small(address):
                    memory.wait_small(buffer)
        else:

            def call() -> None:
                memory.moved += moved
                finish(shared.at_once(), self.world.wait_until)

        return call

    def start(self, buffer: np.ndarray, share: float = 1.0) -> None:
        """Begin to sum `buffer`, this rank's part of it times `share`, which nobody touches until `finish`. Collective
        over compute, in any order."""
        if id(buffer) not in self._buffers:
            raise _stranger(buffer)
        self.launch(self._buffers[id(buffer)], self.algorithm_for(buffer.nbytes), share)

    def launch(self, shared: SharedBuffer, algorithm: str, share: float = 1.0) -> None:
        """Begin to sum a buffer by `algorithm`; see `start`. Collective over compute."""
        if any(shared is other for other, _ in self._under_way):
            raise HybridMPIError(f"buffer {shared.number} is being summed already: finish that first")
        shared.share = share
        buffer = shared.mine
        if self.ranks == 1 or not buffer.size:
            if share != 1.0:
                buffer *= buffer.dtype.type(share)
        elif algorithm == MPI:
            # MPI's own waits for the slowest rank: it comes last, when nothing else is left to do.
            self._left_to_mpi.append(shared)
        else:
            self._under_way.append((shared, Operation(self._steps(shared, algorithm))))
            shared.started = time.perf_counter()
            self.advance()

    def advance(self) -> bool:
        """Move on what is under way, without waiting; return whether anything moved. Local."""
        if not self._under_way:
            return False
        moved = any([operation.advance() for _, operation in self._under_way])
        if (recording := self.world.recording) is not None:
            for buffer in (shared for shared, operation in self._under_way if operation.done):
                about = {"step": recording.step, "bytes": buffer.mine.nbytes}
                recording.add_sum(f"sum of buffer {buffer.number}", buffer.started, time.perf_counter(), **about)
        self._under_way = [entry for entry in self._under_way if not entry[1].done]
        return moved

    @property
    def under_way(self) -> bool:
        """Whether something that was started is not finished."""
        return bool(self._under_way)

    def finish(self) -> None:
        """Wait for all sums that were started. Collective over compute."""
        if self._under_way:
            self.world.wait_until(self._all_done)
        for shared in sorted(self._left_to_mpi, key=lambda shared: shared.number):
            if shared.share != 1.0:
                shared.mine *= shared.mine.dtype.type(shared.share)
            self._by_mpi(shared.mine)
        self._left_to_mpi.clear()

    def _all_done(self) -> bool:
        self.advance()
        return not self._under_way

    def _steps(self, shared: SharedBuffer, algorithm: str) -> Steps:
        buffer = shared.mine
        parts = self.ranks if self.nodes == 1 else self.lanes
        start, stop = shared.slice_of(parts)
        self._shared.moved += 2 * (shared.ranks - 1) * (stop - start) * buffer.itemsize
        if self.nodes == 1:
            return shared.steps()
        across = None
        if self.lane is not None:
            part = buffer[start:stop]
            across = ALGORITHMS[algorithm](self.lane.tagged(1 + shared.number), part, wire_for(self.wire, part.dtype))
        return shared.across_steps(self.lanes, across)

    def sum_in_node(self, values: np.ndarray) -> None:
        """Replace the private `values` on the ranks of a node by the sum over them. Collective over the node."""
        self._shared.allreduce(values)

    def _by_mpi(self, buffer: np.ndarray) -> None:
        # Ranks that hold rows must serve them while they wait, which nobody can inside MPI.
        sum_by_mpi(self.world.compute, buffer, self.world.wait_all if self.world.embedded else None)

    # -- choosing --------------------------------------------------------------------------------------------------

    def algorithm_for(self, nbytes: int) -> str:
        """Return the name of the algorithm for a buffer of `nbytes`. Local."""
        if self.algorithm != "auto":
            return self.algorithm
        choice = self.choices.get(selection.size_class(nbytes))
        return choice.algorithm if choice else by_rule(self.nodes, nbytes // self.lanes)

    def buffers(self) -> list[SharedBuffer]:
        """Return all buffers in the order in which they were made. Local."""
        return list(self._buffers.values())

    def choose(self, choices: dict[int, selection.Choice]) -> None:
        """Take the algorithms that `choices` has for size classes, the same on every rank. Local."""
        self.choices.update(choices)
        self._calls = {key: partial(self._first_call, shared) for key, shared in self._buffers.items()}

    # -- the rest --------------------------------------------------------------------------------------------------

    def describe(self, nbytes: int) -> str:
        """Return how a buffer of `nbytes` travels, in words for the plan. Local."""
        if self.ranks == 1:
            return "stays (one rank)"
        algorithm = self.algorithm_for(nbytes)
        if algorithm == MPI:
            return f"MPI's all-reduce over {self.ranks} ranks"
        if self.nodes == 1:
            return f"all-reduce in shared memory over {self.ranks} ranks"
        wire = "" if self.wire == "float32" else f", {self.wire} on the wire"
        within = "" if self.ranks == self.nodes else "shared memory and "
        return f"{within}{algorithm.replace('_', '-')} over {self.ranks} ranks on {self.nodes} nodes{wire}"

    def sent(self) -> dict[str, int]:
        """Return the bytes this rank has moved so far, by level: "node", "supernode", "trunk". Local."""
        lane = self.lane.sent if self.lane is not None else {}
        return {
            "node": self._shared.moved + lane.get("node", 0),
            "supernode": lane.get("supernode", 0),
            "trunk": lane.get("trunk", 0),
        }

    def forget_sent(self) -> None:
        """Count from zero again: what was sent so far was for calibration. Local."""
        self._shared.moved = 0
        if self.lane is not None:
            self.lane.sent.update(dict.fromkeys(self.lane.sent, 0))

    def close(self) -> None:
        """Free the shared memory and the communicators. Collective over compute."""
        self._buffers.clear()
        self._calls.clear()
        self._shared.close()
        if self.lane is not None:
            self._across.Free()
        self._within.Free()


def _stranger(buffer: np.ndarray) -> UsageError:
    return UsageError(
        f"an array of {buffer.size} x {buffer.dtype} that AllReduce.allocate has not made cannot be summed: the ranks "
        "of a node share the memory of those it makes"
    )


# Without calibration: below the first size the number of messages decides, from the second on the ring, whose links
# are busy in both directions all the time, costs less than halving-doubling's pauses.
FEW_MESSAGES_BYTES = 16 << 10
RING_BYTES = 1 << 20


def by_rule(nodes: int, nbytes: int) -> str:
    """Return an algorithm for `nbytes` per lane on a machine that nothing is known of. Local."""
    if nodes == 1:
        return SHARED
    if nbytes <= FEW_MESSAGES_BYTES:
        return "recursive_doubling"
    return "halving_doubling" if nbytes < RING_BYTES else "ring"
