"""Group: the ranks of an all-reduce in the order that the algorithms pair them, and the bytes they send by level."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from copy import copy
from typing import TYPE_CHECKING, Any

import numpy as np

from hybridmpi.collectives.steps import Ready, Steps
from hybridmpi.large_counts import most_items

if TYPE_CHECKING:
    from mpi4py import MPI

LEVELS = ("node", "supernode", "trunk")

# Over TCP messages to other nodes go in parts of the first size. MPI sends up to 64 KiB at once, header and all; what
# is larger it announces first, and the announcement and its answer queue behind the data of other messages: on links
# that are busy in both directions that costs a quarter to a half of the bandwidth (four hosts at 1 Gbit/s, 8 MiB in a
# ring: 0.93 of the link in such parts, 0.70 in larger ones; halving-doubling 0.47 in whole messages). A fabric moves
# what is announced by itself; there the cost of a message counts.
PART_BYTES, FABRIC_PART_BYTES = 60 << 10, 1 << 20

# What comes unannounced lies in the receiver's memory until it is asked for. So of an exchange at most this many parts
# are under way, and what goes one way only is announced when it is larger than this.
AHEAD = 32
LARGEST_UNANNOUNCED = 8 << 20


class Group:
    """Ranks that reduce together, numbered by where they are: index 0 .. size - 1 sorted by (place, rank). Local.

    Algorithms speak of indices only, so that neighbours in index are near each other, however the launcher placed the
    ranks. `places`: (supernode, node, ...) of every rank of `comm`; by default all share a node. `tag`: of the
    messages; groups in flight at the same time on one communicator have different ones. `sent`: bytes that this rank
    sent to others on its node, in its supernode, and over the trunk; groups made from this one count into the same.
    `part_bytes`: the size of the parts in which messages to other nodes go.
    """

    def __init__(
        self, comm: MPI.Intracomm, places: Sequence[tuple[int, ...]] = (), tag: int = 1, part_bytes: int = PART_BYTES
    ) -> None:
        size = comm.Get_size()
        places = places or [(0, 0)] * size
        self.comm, self.tag, self.part_bytes = comm, tag, part_bytes
        self._ranks = sorted(range(size), key=lambda rank: (*places[rank], rank))
        self.places = [tuple(places[rank]) for rank in self._ranks]
        self.index = self._ranks.index(comm.Get_rank())
        self.sent = dict.fromkeys(LEVELS, 0)

    @property
    def size(self) -> int:
        """The number of ranks."""
        return len(self._ranks)

    def subset(self, indices: Sequence[int]) -> Group:
        """Return the group of the ranks at `indices`, of which this rank is one; it needs no communicator. Local."""
        part = copy(self)
        part._ranks = [self._ranks[i] for i in indices]
        part.places = [self.places[i] for i in indices]
        part.index = list(indices).index(self.index)
        return part

    def tagged(self, tag: int) -> Group:
        """Return this group with messages of another tag. Local."""
        other = copy(self)
        other.tag = tag
        return other

    def level(self, index: int) -> str:
        """Return how far index `index` is: "node", "supernode" or "trunk". Local."""
        return level(self.places[self.index], self.places[index])

    def send(self, array: np.ndarray, index: int) -> list[Any]:
        """Start sending the flat `array`; return the requests. Local."""
        return [self._send(part, index) for part in self._parts(array, index, LARGEST_UNANNOUNCED)]

    def receive(self, array: np.ndarray, index: int) -> list[Any]:
        """Start receiving into the flat `array`; return the requests. Local."""
        return [self._receive(part, index) for part in self._parts(array, index, LARGEST_UNANNOUNCED)]

    def exchange(self, outgoing: np.ndarray, incoming: np.ndarray, index: int) -> Steps:
        """Return the steps of sending to and receiving from the same partner. Collective over the two.

        A rank sends AHEAD parts more than it has received: neither can flood the other.
        """
        coming, going = self._parts(incoming, index), self._parts(outgoing, index)
        receives = deque(self._receive(part, index) for part in coming[:AHEAD])
        sends = [self._send(part, index) for part in going[:AHEAD]]
        if max(len(coming), len(going)) > AHEAD:
            for number in range(len(coming)):
                yield receives.popleft().Test
                if number + AHEAD < len(coming):
                    receives.append(self._receive(coming[number + AHEAD], index))
                if number + AHEAD < len(going):
                    sends.append(self._send(going[number + AHEAD], index))
            sends += [self._send(part, index) for part in going[len(coming) + AHEAD :]]
        yield completed([*receives, *sends])

    def _send(self, part: np.ndarray, index: int) -> Any:
        self.sent[self.level(index)] += part.nbytes
        return self.comm.Isend(part, self._ranks[index], self.tag)

    def _receive(self, part: np.ndarray, index: int) -> Any:
        return self.comm.Irecv(part, self._ranks[index], self.tag)

    def _parts(self, array: np.ndarray, index: int, largest: int | None = None) -> list[np.ndarray]:
        """Return the parts in which `array` goes to or comes from `index`; both ends cut alike."""
        whole = self.level(index) == "node" or (largest is not None and array.nbytes > largest)
        size = most_items(array.itemsize)
        if not whole:
            size = min(size, max(1, self.part_bytes // array.itemsize))
        return [array[start : start + size] for start in range(0, array.size, size)]

    @property
    def nodes(self) -> int:
        """The number of nodes that the ranks are on."""
        return len({place[:2] for place in self.places})


def level(one: tuple[int, ...], other: tuple[int, ...]) -> str:
    """Return how far two places (supernode, node, ...) are from each other. Local."""
    if one[:2] == other[:2]:
        return "node"
    return "supernode" if one[0] == other[0] else "trunk"


def completed(requests: Sequence[Any]) -> Ready:
    """Return a function that polls MPI `requests`: whether all are complete. Local.

    What is complete is not asked for again: polling costs the same for two requests and for ten thousand.
    """
    left = deque(requests)

    def ready() -> bool:
        while left and left[0].Test():
            left.popleft()
        return not left

    return ready
