"""Rows that move between the ranks that hold them, with their optimiser state, in the running job.

Every rank works out from the two layouts alone who sends which rows to whom (transfers.py). Messages are contiguous and
go, one Put each, into a window that exists for the move only; in rounds, so that memory stays bounded whatever the
table's size. Rows that stay on a rank are copied there.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from hybridmpi.large_counts import pieces
from hybridmpi.shared_windows import shared_window
from hybridmpi.sparse.transfers import Layout, Stretch, Transfers, transfers
from hybridmpi.traffic import Traffic
from hybridmpi.world import World

# What a rank receives at most in one round: large enough that a round's two barriers do not count, and little beside
# the tables for whose sake rows are spread over ranks.
ROUND_BYTES = 64 << 20


def move(
    world: World,
    old: Layout,
    new: Layout,
    row_bytes: int,
    sources: Sequence[np.ndarray],
    targets: Sequence[np.ndarray],
    traffic: Traffic,
    round_bytes: int = ROUND_BYTES,
) -> int:
    """Fill `targets` from the `sources` of all ranks; return the bytes that all ranks sent. Collective over the world.

    `sources` and `targets`: one array [rows held, *] for each slot (values, then optimiser state), in the same order on
    all ranks; empty lists where a rank holds no rows. `row_bytes`: a row's bytes in all slots together. Nobody may read
    or write the rows meanwhile. Returns when this rank has its own, and others may still wait for theirs; what it sends
    is counted as "moved". A rank needs memory for `round_bytes` twice.
    """
    plan = transfers(old, new, world.node_of)
    if world.rank in (receiver for _, receiver in plan):
        assert sum(array[0].nbytes for array in targets) == row_bytes, "a row's bytes are not those of its slots"
    for stretch in plan.get((world.rank, world.rank), ()):
        for source, target in zip(sources, targets, strict=True):
            target[stretch.target] = source[stretch.source]
    rows = {pair: sum(s.count for s in stretches) for pair, stretches in plan.items() if pair[0] != pair[1]}
    if rows:
        _Rounds(world, plan, rows, row_bytes, round_bytes).run(sources, targets, traffic)
    return sum(rows.values()) * row_bytes


class _Rounds:
    """The rounds of a move: each sender has a slot of equal size in a receiver's memory and fills it once a round."""

    def __init__(
        self, world: World, plan: Transfers, rows: dict[tuple[int, int], int], row_bytes: int, round_bytes: int
    ) -> None:
        """`rows`: how many go from a sender to a receiver, for every pair of two different ranks."""
        self.world, self.plan, self.row_bytes = world, plan, row_bytes
        self.senders: dict[int, list[int]] = {}
        for sender, receiver in sorted(rows):
            self.senders.setdefault(receiver, []).append(sender)
        # Rows of a slot, by receiver.
        self.slot = {
            receiver: max(1, min(max(rows[s, receiver] for s in senders), round_bytes // (len(senders) * row_bytes)))
            for receiver, senders in self.senders.items()
        }
        self.count = max(-(-count // self.slot[receiver]) for (_, receiver), count in rows.items())
        me = world.rank
        # Each begins with another receiver.
        self.receivers = sorted((r for s, r in rows if s == me), key=lambda rank: (rank - me) % world.size)

    def run(self, sources: Sequence[np.ndarray], targets: Sequence[np.ndarray], traffic: Traffic) -> None:
        """Send and take all rounds."""
        world = self.world
        mpi, me = world.mpi, world.rank
        window = shared_window(
            mpi, len(self.senders.get(me, ())) * self._slot_bytes(me), 1, world.comm, world.node,
            "rows that move to other owners", "use more nodes",
        )  # fmt: skip
        window.Lock_all(mpi.MODE_NOCHECK)
        memory = window.tomemory()
        incoming = np.frombuffer(memory, np.uint8) if len(memory) else np.empty(0, np.uint8)
        message = np.empty(max(map(self._slot_bytes, self.receivers), default=0), np.uint8)
        for number in range(self.count):
            for receiver in self.receivers:
                size = 0
                for stretch in self._of_round(me, receiver, number):
                    for source in sources:
                        size += _copy(source[stretch.source], message[size:])
                if size:
                    start = self.senders[receiver].index(me) * self._slot_bytes(receiver)
                    for piece in pieces(message[:size]):
                        window.Put(piece, receiver, (start, piece.size, mpi.BYTE))
                        start += piece.size
                    # The message's memory serves the next receiver.
                    window.Flush(receiver)
                    traffic.add("moved", size, world.same_node(receiver))
            _barrier(world)
            window.Sync()
            for place, sender in enumerate(self.senders.get(me, ())):
                at = place * self._slot_bytes(me)
                for stretch in self._of_round(sender, me, number):
                    for target in targets:
                        rows = target[stretch.target]
                        rows[...] = incoming[at : at + rows.nbytes].view(rows.dtype).reshape(rows.shape)
                        at += rows.nbytes
            if number + 1 < self.count:
                _barrier(world)
        del incoming, memory
        window.Unlock_all()
        window.Free()

    def _slot_bytes(self, receiver: int) -> int:
        return self.slot.get(receiver, 0) * self.row_bytes

    def _of_round(self, sender: int, receiver: int, number: int) -> Iterator[Stretch]:
        """Yield what goes from one rank to another in a round."""
        low, high = number * self.slot[receiver], (number + 1) * self.slot[receiver]
        at = 0
        for stretch in self.plan[sender, receiver]:
            start, stop = max(low - at, 0), min(high - at, stretch.count)
            if start < stop:
                yield stretch.part(start, stop)
            at += stretch.count


def _copy(rows: np.ndarray, message: np.ndarray) -> int:
    """Write rows, wherever they lie, to the start of a message; return their bytes."""
    message[: rows.nbytes].view(rows.dtype).reshape(rows.shape)[...] = rows
    return rows.nbytes


def _barrier(world: World) -> None:
    """Wait for all ranks, the servers too, serving meanwhile."""
    world.wait_all([world.comm.Ibarrier()])
