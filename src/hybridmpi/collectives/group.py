"""Group: the ranks of an all-reduce in the order that the algorithms pair them, and the bytes they send by level."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from hybridmpi.waiting import wait_all

if TYPE_CHECKING:
    from mpi4py import MPI

TAG = 1


@dataclass
class Group:
    """Ranks that reduce together, numbered by where they are: index 0 .. size - 1 sorted by (supernode, node, rank).

    Algorithms speak of indices only, so that neighbours in index are near each other, however the launcher placed
    the ranks. `places`: (supernode, node) of every rank of `comm`; by default all share a node. `sent`: bytes this
    rank sent to others on its node, in its supernode, and over the trunk. Local; all ranks use `comm` in the same
    order.
    """

    comm: MPI.Intracomm
    places: Sequence[tuple[int, int]] = ()
    wait: Callable[[Sequence[Any]], None] = wait_all
    sent: dict[str, int] = field(default_factory=lambda: dict.fromkeys(("node", "supernode", "trunk"), 0))

    def __post_init__(self) -> None:
        size = self.comm.Get_size()
        self.places = self.places or [(0, 0)] * size
        by_place = sorted(range(size), key=lambda rank: (*self.places[rank], rank))
        self._rank_of = by_place
        self.size = size
        self.index = by_place.index(self.comm.Get_rank())
        self.places = [tuple(self.places[rank]) for rank in by_place]

    def level(self, index: int) -> str:
        """Return how far index `index` is: "node", "supernode" or "trunk". Local."""
        mine, other = self.places[self.index], self.places[index]
        return "node" if mine == other else "supernode" if mine[0] == other[0] else "trunk"

    def count(self, index: int, nbytes: int) -> None:
        """Count bytes that go to index `index`. Local."""
        self.sent[self.level(index)] += nbytes

    def send(self, array: np.ndarray, index: int) -> Any:
        """Start sending `array`; return the request. Local."""
        self.count(index, array.nbytes)
        return self.comm.Isend(array, self._rank_of[index], TAG)

    def receive(self, array: np.ndarray, index: int) -> Any:
        """Start receiving into `array`; return the request. Local."""
        return self.comm.Irecv(array, self._rank_of[index], TAG)

    def exchange(self, outgoing: np.ndarray, incoming: np.ndarray, index: int) -> None:
        """Send to and receive from the same partner. Collective over the two."""
        self.wait([self.receive(incoming, index), self.send(outgoing, index)])
