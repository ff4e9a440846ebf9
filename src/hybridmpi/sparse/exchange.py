"""The windows between compute ranks and owners of rows: message slots and counters.

Two windows for the life of a service, each opened once by Lock_all(NOCHECK): one of bytes with the message slots, one
of counters. A message is one contiguous Put into the receiver's slot, a Flush, and a Put of the counter that says it is
there. Messages to several ranks are all on their way before the first one is waited for. Nobody locks, nobody
accumulates, no call is made per row.

Per owner and client:
    push     slot at the owner; counters: sent at the owner, taken at the client (so large pushes go in rounds)
    request  slot at the owner; counter: sent at the owner
    reply    slot at the client; counter: sent at the client
    squares  a float64 among the client's counters; counter: sent at the client (see norms.py)
    scale    a float64 among the owner's counters, from one client; counter: sent at the owner
A client has one request on its way to an owner, so a reply frees the request's slot and the next request the reply's.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from hybridmpi.arrays import fit_to_receive, fit_to_send
from hybridmpi.errors import HybridMPIError
from hybridmpi.world import World

# Memory that an owner gives to the push slots of all its clients together, and a client to its reply slots. Slots
# shrink with the number of peers, and larger messages go in rounds.
PUSH_BUDGET = 64 << 20
REQUEST_BUDGET = 16 << 20
REPLY_BUDGET = 64 << 20
LARGEST_SLOT = 8 << 20
SMALLEST_SLOT = 64 << 10

# Bytes that a rank has on their way at once to others, or from them, or two messages: enough to keep a link busy. Where
# many ranks send to one, what its link cannot take waits in a switch, and what the switch has no room for is lost: TCP
# then rests for 200 ms.
UNDER_WAY = 256 << 10

# A counter has a cache line to itself: its readers poll it while neighbours are written.
LINE = 8


@dataclass(frozen=True)
class SlotSizes:
    """Bytes of a push, a request and a reply slot; the same on every rank."""

    push: int
    request: int
    reply: int


def slot_sizes(clients: int, owners: int, smallest: int, replies: bool, push: int | None = None) -> SlotSizes:
    """Return the slot sizes for so many clients and owners. Local.

    `smallest` bytes must fit into any slot (a header and one row). Without `replies` no rank asks by messages, and the
    slots for that are empty. `push` replaces the computed size, so that tests can force rounds.
    """

    def share(budget: int, peers: int) -> int:
        size = min(LARGEST_SLOT, max(SMALLEST_SLOT, budget // peers))
        return _lines(max(size, smallest))

    return SlotSizes(
        push=share(PUSH_BUDGET, clients) if push is None else _lines(max(push, smallest)),
        request=share(REQUEST_BUDGET, clients) if replies else 0,
        reply=share(REPLY_BUDGET, owners) if replies else 0,
    )


def _lines(size: int) -> int:
    return -(-size // 64) * 64


class Letter(NamedTuple):
    """A message, bytes, for the slot that `peer` has at world rank `target`, and the counter's value that says it is
    there."""

    peer: int
    target: int
    message: np.ndarray
    number: int


class Exchange:
    """The slots and counters of one service. Collective over the world.

    Clients are numbered as in `world.clients`, owners as in `world.owners`; `memory` is this rank's part of the slot
    window as bytes, `counters` its part of the counter window as int64.
    """

    def __init__(self, world: World, sizes: SlotSizes) -> None:
        mpi = world.mpi
        self.world, self.sizes = world, sizes
        self.num_clients, self.num_owners = len(world.clients), len(world.owners)
        owner_bytes = self.num_clients * (sizes.push + sizes.request)
        self._owner_bytes = owner_bytes
        mine = (owner_bytes if world.rank in world.owners else 0) + (
            self.num_owners * sizes.reply if world.rank in world.clients else 0
        )
        self._slots = mpi.Win.Allocate(mine, 1, comm=world.comm)
        self._counts = mpi.Win.Allocate(self._counter_index("end", 0) * 8, 8, comm=world.comm)
        for window, name in ((self._slots, "slots"), (self._counts, "counters")):
            window.Set_name(f"hybridmpi.{name}")
            if window.Get_attr(mpi.WIN_MODEL) != mpi.WIN_UNIFIED:
                raise HybridMPIError(
                    "this MPI's windows have separate public and private copies (MPI_WIN_SEPARATE): hybridmpi polls "
                    "counters in window memory and needs the unified model; use another MPI or another osc component"
                )
        self.memory = np.frombuffer(self._slots.tomemory(), np.uint8)
        self.counters = np.frombuffer(self._counts.tomemory(), np.int64)
        self.counters[:] = 0
        self.watch("version")[:] = -1
        # Everybody's counters are set before anybody writes to them.
        world.comm.Barrier()
        self._slots.Lock_all(mpi.MODE_NOCHECK)
        self._counts.Lock_all(mpi.MODE_NOCHECK)

    # -- where things are: the same function on every rank -----------------------------------------------------------

    def _counter_index(self, kind: str, peer: int) -> int:
        """Return the index of a counter in its holder's memory."""
        clients, owners = self.num_clients, self.num_owners
        base = {
            "push_sent": 0,
            "request_sent": clients,
            "push_taken": 2 * clients,
            "reply_sent": 2 * clients + owners,
            "version": 2 * clients + 2 * owners,
            "squares": 2 * clients + 3 * owners,
            "squares_sent": 2 * clients + 4 * owners,
            "scale": 2 * clients + 5 * owners,
            "scale_sent": 2 * clients + 5 * owners + 1,
            "end": 2 * clients + 5 * owners + 2,
        }[kind]
        return (base + peer) * LINE

    def _slot_start(self, kind: str, peer: int, holder: int) -> int:
        """Return where a slot starts in the memory of world rank `holder`."""
        if kind == "push":
            return peer * self.sizes.push
        if kind == "request":
            return self.num_clients * self.sizes.push + peer * self.sizes.request
        return (self._owner_bytes if holder in self.world.owners else 0) + peer * self.sizes.reply

    # -- reading: this rank's own memory ---------------------------------------------------------------------------

    def watch(self, kind: str) -> np.ndarray:
        """Return the live counters of one kind on this rank, one per peer, as an int64 view. Local."""
        if kind in ("scale", "scale_sent"):
            count = 1
        else:
            count = self.num_clients if kind in ("push_sent", "request_sent") else self.num_owners
        start = self._counter_index(kind, 0)
        return self.counters[start : start + count * LINE : LINE]

    def slot(self, kind: str, peer: int) -> np.ndarray:
        """Return this rank's slot for messages of `kind` from `peer`, as bytes. Local."""
        start = self._slot_start(kind, peer, self.world.rank)
        size = getattr(self.sizes, kind)
        return self.memory[start : start + size]

    def see(self) -> None:
        """Make what others have put into this rank's windows visible to its loads. Local."""
        self._slots.Sync()

    def see_counters(self) -> None:
        """Make a number that another's counter has announced visible to this rank's loads. Local."""
        self._counts.Sync()

    # -- writing into others' memory -------------------------------------------------------------------------------

    def in_turn(self, peers: Iterable[int]) -> list[int]:
        """Return clients or owners in the order in which this rank turns to them: other ranks begin elsewhere, so that
        nobody hears from all at once. Local."""
        peers = list(peers)
        first = (self.world.node_of[self.world.rank] + self.world.node.Get_rank()) % max(len(peers), 1)
        return peers[first:] + peers[:first]

    def send(self, kind: str, letters: Iterable[Letter]) -> int:
        """Put messages into slots of `kind`, and the counters that say they are there; when all are, return how many
        bytes the messages have. Local.

        Letters are taken one by one: the next one may be written while those before it travel.
        """
        sizes = []

        def arrived() -> Iterator[tuple[int, int, int]]:
            for letter in self._deliver(kind, letters):
                sizes.append(letter.message.size)
                yield letter.peer, letter.target, letter.number

        self.count(f"{kind}_sent", arrived())
        return sum(sizes)

    def _deliver(self, kind: str, letters: Iterable[Letter]) -> Iterator[Letter]:
        """Put messages into slots, some at once, and yield each when it is there."""
        under_way: deque[Letter] = deque()
        for letter in letters:
            size = letter.message.size
            while len(under_way) > 1 and size + sum(before.message.size for before in under_way) > UNDER_WAY:
                yield self._flushed(under_way.popleft())
            place = self._slot_start(kind, letter.peer, letter.target), size, self.world.mpi.BYTE
            self._slots.Put(fit_to_send(letter.message), letter.target, place)
            under_way.append(letter)
        for letter in under_way:
            yield self._flushed(letter)

    def _flushed(self, letter: Letter) -> Letter:
        self._slots.Flush(letter.target)
        return letter

    def count(self, kind: str, values: Iterable[tuple[int, int, int]]) -> None:
        """Set counters in the memory of other ranks: (peer, world rank, value) of each. Local.

        Only one rank ever writes a given counter, and eight aligned bytes arrive whole, so no atomic is needed.
        """
        words = []
        for peer, target, value in values:
            word = np.array([value], np.int64)
            self._counts.Put(word, target, self._counter_index(kind, peer))
            words.append((target, word))
        for target, _ in words:
            self._counts.Flush(target)

    def tell(self, kind: str, peer: int, targets: list[int], value: float, number: int) -> None:
        """Put a float64 into its word of `kind` at every one of `targets` (world ranks), then the counter that says it
        is there, `number`. Local."""
        words = ((kind, np.array([value]).view(np.int64)), (f"{kind}_sent", np.array([number], np.int64)))
        for name, word in words:
            for target in targets:
                self._counts.Put(word, target, self._counter_index(name, peer))
            for target in targets:
                self._counts.Flush(target)

    def close(self) -> None:
        """Free the windows. Collective over the world."""
        self.memory = self.counters = None
        for window in (self._counts, self._slots):
            window.Unlock_all()
            window.Free()


class RowMemory:
    """The memory that holds the rows of one table, shared with the ranks of their nodes. Collective over the world.

    Each table has its own, so that one can be dealt anew without a second copy of all. `sizes[w]`: bytes that world
    rank w owns, rounded up to cache lines, so that no line has two writers. With `everywhere`, a second window over the
    same memory lets ranks on other nodes read rows by indexed Get.
    """

    def __init__(self, world: World, sizes: list[int], everywhere: bool) -> None:
        mpi = world.mpi
        self.world = world
        mine = _lines(sizes[world.rank])
        try:
            self._shared = mpi.Win.Allocate_shared(mine, 1, comm=world.node)
        except mpi.Exception as error:
            raise HybridMPIError(
                f"rank {world.rank} ({world.role}) could not share {mine:,} bytes of rows with its node: {error}. "
                "Look at the room in /dev/shm and the memory limit of this job, or use more servers or nodes"
            ) from error
        self._shared.Lock_all(mpi.MODE_NOCHECK)
        self.own = self._view_of(world.rank)
        self._everywhere = None
        if everywhere:
            self._everywhere = mpi.Win.Create(fit_to_receive(self.own), 1, comm=world.comm)
            self._everywhere.Lock_all(mpi.MODE_NOCHECK)

    def _view_of(self, rank: int) -> np.ndarray:
        group, node_group = self.world.comm.Get_group(), self.world.node.Get_group()
        (local,) = group.Translate_ranks([rank], node_group)
        memory, _ = self._shared.Shared_query(local)
        group.Free()
        node_group.Free()
        return np.frombuffer(memory, np.uint8) if len(memory) else np.empty(0, np.uint8)

    def of(self, rank: int) -> np.ndarray:
        """Return the row memory of world rank `rank`, which must be on this node, as bytes. Local."""
        return self.own if rank == self.world.rank else self._view_of(rank)

    def get_rows(self, row_bytes: int, wanted: Sequence[tuple[int, np.ndarray, np.ndarray]]) -> None:
        """Read rows of several ranks: (world rank, local numbers [n], where they go, [n, dim]) of each, by one Get each
        with an indexed datatype. Local; returns when the rows are there."""
        mpi, datatypes = self.world.mpi, []
        try:
            for rank, local, out in wanted:
                rows = mpi.BYTE.Create_hindexed_block(row_bytes, (local * row_bytes).tolist())
                datatypes.append(rows)
                rows.Commit()
                self._everywhere.Get([fit_to_receive(out), out.nbytes, mpi.BYTE], rank, (0, 1, rows))
            for rank, _, _ in wanted:
                self._everywhere.Flush(rank)
        finally:
            for rows in datatypes:
                rows.Free()

    def close(self) -> None:
        """Free the windows. Collective over the world."""
        self.own = None
        for window in (self._everywhere, self._shared):
            if window is not None:
                window.Unlock_all()
                window.Free()
