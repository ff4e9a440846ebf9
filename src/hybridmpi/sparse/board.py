"""Board: the few words by which clients and owners of asynchronous training know how far everybody is.

An owner writes its words into its own memory and waits for nobody: a client may be deep in its computation. A client
reads them when it needs them, by plain loads on the owner's node, by a Get from elsewhere.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from hybridmpi.arrays import fit_to_receive, fit_to_send
from hybridmpi.sparse.exchange import LINE, RowMemory
from hybridmpi.world import World

WORD_BYTES = 8
LINE_BYTES = LINE * WORD_BYTES
OWNERS_WORDS = 3

Notice = Literal["left", "stop"]
NOTICES: tuple[Notice, ...] = ("left", "stop")


@dataclass(frozen=True, slots=True)
class Standing:
    """What an owner says of itself: `slowest`, the fewest pushes applied of any client that still trains; `applied`,
    its updates so far; `stop`, whether a client asked all to stop."""

    slowest: int
    applied: int
    stop: bool


class Board(RowMemory):
    """The words of all owners. Collective over the world; all else is Local.

    At each owner one cache line is written by the owner and read by the clients, and one for each client the other way
    round. Every word has one writer, and eight aligned bytes arrive whole.
    """

    def __init__(self, world: World) -> None:
        lines = 1 + len(world.clients)
        sizes = [lines * LINE_BYTES if rank in world.owners else 0 for rank in range(world.size)]
        super().__init__(world, sizes, everywhere=world.nodes > 1)
        self._words = self.own.view(np.int64)
        self._words[:] = 0
        # Nobody reads or writes another's words before they are zero.
        world.comm.Barrier()
        # Owners by number whose words can be loaded.
        self._near: dict[int, np.ndarray] = {
            owner: self.of(rank).view(np.int64) for owner, rank in enumerate(world.owners) if world.same_node(rank)
        }

    # -- owners ----------------------------------------------------------------------------------------------------

    def tell(self, standing: Standing) -> None:
        """Let every client know where this owner stands, after the rows that it speaks of."""
        # A fence for memory that is weakly ordered: stores of x86 keep their order, and no test there can miss it.
        self._shared.Sync()
        self._words[:OWNERS_WORDS] = standing.slowest, standing.applied, standing.stop

    def notices(self) -> np.ndarray:
        """Return what the clients told this owner, int64 [clients, 2], live: how often each has left and asked to
        stop."""
        return self._words[LINE:].reshape(-1, LINE)[: len(self.world.clients), : len(NOTICES)]

    # -- clients ---------------------------------------------------------------------------------------------------

    def look(self) -> list[Standing]:
        """Return where the owners stand, in their order."""
        found = np.zeros((len(self.world.owners), OWNERS_WORDS), np.int64)
        self._shared.Sync()
        far = [(owner, rank) for owner, rank in enumerate(self.world.owners) if owner not in self._near]
        for owner, rank in far:
            self._everywhere.Get(fit_to_receive(found[owner].view(np.uint8)), rank, 0)
        for owner, words in self._near.items():
            found[owner] = words[:OWNERS_WORDS]
        for _, rank in far:
            self._everywhere.Flush(rank)
        return [Standing(slowest, applied, bool(stop)) for slowest, applied, stop in found.tolist()]

    def notify(self, client: int, notice: Notice, count: int) -> None:
        """Tell every owner that this client has given `notice` for the `count`th time."""
        word = np.array([count], np.int64)
        place = LINE * (1 + client) + NOTICES.index(notice)
        self._shared.Sync()
        for owner, rank in enumerate(self.world.owners):
            if owner in self._near:
                self._near[owner][place] = count
            else:
                self._everywhere.Put(fit_to_send(word.view(np.uint8)), rank, place * WORD_BYTES)
                self._everywhere.Flush(rank)

    def close(self) -> None:
        """Free the windows. Collective over the world."""
        self._words, self._near = None, {}
        super().close()
