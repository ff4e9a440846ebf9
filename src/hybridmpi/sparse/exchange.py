"""What lies between compute ranks and owners of rows: windows with slots for pushes and counters, and a communicator on
which rows are asked for.

Two windows for the life of a service, each opened once by Lock_all(NOCHECK): one of bytes with the slots, one of
counters. A push is one contiguous Put into the owner's slot, a Flush, and a Put of the counter that says it is there.
Several are on their way before the first one is waited for. Nobody locks, nobody accumulates, no call is made per row.

Per owner and client:
    push     slot at the owner; counters: sent at the owner; taken at the client, of all but a step's last round, which
             the owner's version says
    squares  a float64 among the client's counters; counter: sent at the client (see norms.py)
    scale    a float64 among the owner's counters, from one client; counter: sent at the owner
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from hybridmpi.arrays import fit_to_receive, fit_to_send
from hybridmpi.errors import HybridMPIError
from hybridmpi.large_counts import stretches
from hybridmpi.shared_windows import shared_window
from hybridmpi.world import World

# Memory that an owner gives to the push slots of all its clients together, and that requests and replies of all peers
# of a rank may take. The shares of peers shrink with their number, and larger messages go in rounds.
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


def may_go(size: int, under_way: Collection[int]) -> bool:
    """Return whether a message of `size` bytes may go beside those under way, of so many bytes each. Local."""
    return len(under_way) < 2 or size + sum(under_way) <= UNDER_WAY


@dataclass(frozen=True)
class SlotSizes:
    """Bytes of a push slot, and of the largest request and reply; the same on every rank."""

    push: int
    request: int
    reply: int


def slot_sizes(clients: int, owners: int, smallest: int, replies: bool, push: int | None = None) -> SlotSizes:
    """Return the sizes for so many clients and owners. Local.

    `smallest` bytes must fit into any (a header and one row). Without `replies` no rank asks by messages, and those
    are 0. `push` replaces the computed size, so that tests can force rounds.
    """

    def share(budget: int, peers: int) -> int:
        size = min(LARGEST_SLOT, max(SMALLEST_SLOT, budget // peers))
        return _lines(max(size, smallest))

    return SlotSizes(
        push=share(PUSH_BUDGET, clients) if push is None else _lines(max(push, smallest)),
        # An owner may have one of every client on its way at once, and a client one of every owner.
        request=share(REQUEST_BUDGET, max(clients, owners)) if replies else 0,
        reply=share(REPLY_BUDGET, max(clients, owners)) if replies else 0,
    )


def _lines(size: int) -> int:
    return -(-size // 64) * 64


class Letter(NamedTuple):
    """A push, bytes, for the owner at world rank `target`, and the counter's value that says it is there."""

    target: int
    message: np.ndarray
    number: int


class Exchange:
    """The slots and counters of one service. Collective over the world.

    Clients are numbered as in `world.clients`, owners as in `world.owners`; `memory` is this rank's part of the slot
    window as bytes, `counters` its part of the counter window as int64; `asks`: the communicator of requests and
    replies, None where nobody asks.
    """

    def __init__(self, world: World, sizes: SlotSizes) -> None:
        mpi = world.mpi
        self.world, self.sizes = world, sizes
        self.num_clients, self.num_owners = len(world.clients), len(world.owners)
        mine = self.num_clients * sizes.push if world.rank in world.owners else 0
        remedy = "use fewer ranks a node"
        self._slots = shared_window(mpi, mine, 1, world.comm, world.node, "messages between ranks", remedy)
        counts = self._counter_index("end", 0) * 8
        self._counts = shared_window(mpi, counts, 8, world.comm, world.node, "counters of messages", remedy)
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
        self.asks = world.comm.Dup() if sizes.request else None
        if self.asks is not None:
            self.asks.Set_name("hybridmpi.asks")
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
            "push_taken": clients,
            "version": clients + owners,
            "squares": clients + 2 * owners,
            "squares_sent": clients + 3 * owners,
            "scale": clients + 4 * owners,
            "scale_sent": clients + 4 * owners + 1,
            "end": clients + 4 * owners + 2,
        }[kind]
        return (base + peer) * LINE

    # -- reading: this rank's own memory ---------------------------------------------------------------------------

    def watch(self, kind: str) -> np.ndarray:
        """Return the live counters of one kind on this rank, one per peer, as an int64 view. Local."""
        count = 1 if kind in ("scale", "scale_sent") else self.num_clients if kind == "push_sent" else self.num_owners
        start = self._counter_index(kind, 0)
        return self.counters[start : start + count * LINE : LINE]

    def slot(self, client: int) -> np.ndarray:
        """Return this owner's slot for a client's pushes, as bytes. Local."""
        return self.memory[client * self.sizes.push : (client + 1) * self.sizes.push]

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

    def push(self, client: int, letters: Iterable[Letter]) -> None:
        """Put messages of `client` into its slots at owners, and the counters that say they are there; return when all
        are. Local. Letters are taken one by one: the next one may be written while those before it travel."""
        self.count("push_sent", ((client, letter.target, letter.number) for letter in self._deliver(client, letters)))

    def _deliver(self, client: int, letters: Iterable[Letter]) -> Iterator[Letter]:
        """Put messages into slots, some at once, and yield each when it is there."""
        under_way: deque[Letter] = deque()
        for letter in letters:
            size = letter.message.size
            while not may_go(size, [before.message.size for before in under_way]):
                yield self._flushed(under_way.popleft())
            place = client * self.sizes.push, size, self.world.mpi.BYTE
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
        if self.asks is not None:
            self.asks.Free()


class RowMemory:
    """The memory that holds the rows of one table, shared with the ranks of their nodes. Collective over the world.

    Each table has its own, so that one can be dealt anew without a second copy of all. `sizes[w]`: bytes that world
    rank w owns, rounded up to cache lines, so that no line has two writers. With `everywhere`, a second window over the
    same memory lets ranks on other nodes read rows by indexed Get. `what` it is, such as the table, is for errors.
    """

    def __init__(self, world: World, sizes: list[int], everywhere: bool, what: str = "rows") -> None:
        mpi = world.mpi
        self.world = world
        mine = _lines(sizes[world.rank])
        self._shared = shared_window(mpi, mine, 1, world.node, world.node, what, "use more nodes")
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
        with an indexed datatype, or several where they are large. Local; returns when the rows are there."""
        mpi, datatypes = self.world.mpi, []
        try:
            for rank, local, out in wanted:
                for part in stretches(len(local), row_bytes):
                    rows = mpi.BYTE.Create_hindexed_block(row_bytes, (local[part] * row_bytes).tolist())
                    datatypes.append(rows)
                    rows.Commit()
                    target = fit_to_receive(out[part])
                    self._everywhere.Get([target, target.nbytes, mpi.BYTE], rank, (0, 1, rows))
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
