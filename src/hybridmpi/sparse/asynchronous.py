"""Client and owner of asynchronous training: every push is an update of its own, and a bound may hold back the fastest.

A client's *clock* is the number of its pushes that an owner has applied. Stale synchronous parallel (Ho et al. 2013)
with bound s: a client begins its step t, counted from 0, when at every owner no client that still trains has a clock
below t - s. Without a bound nobody waits for others. Either way a client sees its own pushes in what it pulls.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable
from typing import Any

import numpy as np

from hybridmpi.sparse.board import Board, Notice, Standing
from hybridmpi.sparse.client import Client
from hybridmpi.sparse.server import Server
from hybridmpi.sparse.staging import Staging
from hybridmpi.sparse.wire import Header

# The slowest clock where no client trains: nobody has to wait.
NOBODY = np.iinfo(np.int64).max


class AsyncServer(Server):
    """An owner that applies each client's push, as soon as all of it is here, as one step of the optimiser. Local.

    A push of weight 0 changes nothing but its client's clock. `stale[n]`: the pushes that were applied to rows which n
    updates of others had changed since their client pulled.
    """

    def __init__(self, *arguments: Any, board: Board) -> None:
        super().__init__(*arguments)
        clients = len(self.world.clients)
        self.board = board
        self.clocks = np.zeros(clients, np.int64)
        self.settled = 0
        self.stale: Counter[int] = Counter()
        # Rounds of several clients' pushes may come in turn: each client's rows are kept apart.
        self._stagings = [[Staging(s.spec.dim, s.spec.dtype) for s in self.shards] for _ in range(clients)]
        self._notices = np.zeros((clients, 2), np.int64)

    def publish(self) -> None:
        """Tell every client which of its pushes the rows now hold, and how far the others are. Local."""
        self.exchange.see()
        self._tell()
        self._acknowledge(range(len(self.clocks)))

    def _tell(self) -> None:
        self._notices[...] = self.board.notices()
        left, stop = (self._notices > self.settled).T
        training = self.clocks[~left]
        self.board.tell(Standing(int(training.min()) if len(training) else NOBODY, self.applied, bool(stop.any())))

    def _acknowledge(self, clients: Iterable[int]) -> None:
        clocks = ((self.index, self.world.clients[client], int(self.clocks[client])) for client in clients)
        self.exchange.count("version", clocks)

    def progress(self) -> bool:
        """Do all that can be done now, without waiting; return whether there was anything. Local."""
        did = super().progress()
        if not np.array_equal(self._notices, self.board.notices()):
            self._tell()
            did = True
        return did

    def _take_push(self, client: int) -> Header:
        self._stage(client)
        return super()._take_push(client)

    def _stage(self, client: int) -> None:
        for shard, staging in zip(self.shards, self._stagings[client], strict=True):
            shard.staging = staging

    def _expect(self, client: int, header: Header) -> None:
        if header.step > self.applied:
            raise AssertionError(
                f"server {self.index}: client {client} pushed on top of update {header.step} of {self.applied}"
            )

    def _received(self, client: int, header: Header) -> None:
        started = time.perf_counter()
        if header.sender.weight:
            self._stage(client)
            for shard in self.shards:
                shard.aggregate({client: header.sender.weight})
                shard.update(self.applied + 1)
            self.stale[self.applied - header.step] += 1
            self.applied += 1
        self.clocks[client] += 1
        self.exchange.see()
        self._tell()
        self._acknowledge([client])
        if self.world.recording is not None:
            self.world.recording.add("apply push", started, time.perf_counter(), update=self.applied, client=client)

    def wait_for(self, applied: int) -> None:
        """Return at once: commands come when every client has settled. Local."""

    def command_staleness(self) -> dict[int, int]:
        """Return how many pushes were applied at each staleness, so far."""
        return dict(self.stale)

    def command_settle(self) -> int:
        """Set all clocks to the updates so far, which are returned: all clients train again, side by side."""
        self.clocks[:] = self.applied
        self.settled += 1
        self.publish()
        return self.applied

    def command_load(self, directory: str, applied: int) -> None:
        """Read this owner's rows from a checkpoint, and continue from `applied` updates, all clocks alike."""
        self.clocks[:] = applied
        super().command_load(directory, applied)


class AsyncClient(Client):
    """A client that waits for the slowest one only as far as `staleness` asks. Local; pulls and pushes wait for
    owners.

    In a step: `wait_for_turn`, pulls, `push`, `wait_for_version`.
    """

    def __init__(self, *arguments: Any, board: Board, staleness: float) -> None:
        super().__init__(*arguments)
        self.board, self.staleness = board, staleness
        self.stop_seen = False
        self.settled = 0
        self._standings: list[Standing] = board.look()
        self._given: dict[Notice, int] = {"left": 0, "stop": 0}

    def wait_for_turn(self) -> None:
        """Wait until this client's pushes are applied and it may begin its next step; `stop_seen` then says whether a
        client has asked all to stop."""
        self.wait_for_version()
        if not self._may_begin():
            started = time.perf_counter()
            self.world.wait_until(self._may_begin)
            self.wait_seconds += time.perf_counter() - started
        self.stop_seen = any(standing.stop for standing in self._standings)
        self.exchange.see()

    def _may_begin(self) -> bool:
        self._standings = self.board.look()
        return min(standing.slowest for standing in self._standings) >= self.pushed - self.staleness

    def _seen(self, owner: int) -> int:
        return self._standings[owner].applied

    def leave(self) -> None:
        """Let no other client wait for this one, until all have settled."""
        self._give("left")

    def ask_to_stop(self) -> None:
        """Let every client see in its next step that all are to stop."""
        self._give("stop")

    def _give(self, notice: Notice) -> None:
        if self._given[notice] <= self.settled:
            self._given[notice] = self.settled + 1
            self.board.notify(self._index, notice, self._given[notice])

    def begin_anew(self) -> None:
        """Train side by side with all others again, once the owners have settled."""
        self.settled += 1
        self.stop_seen = False
