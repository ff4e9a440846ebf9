"""Answering requests for rows: an owner's side of asking.py."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from hybridmpi.arrays import fit_to_receive, fit_to_send
from hybridmpi.sparse.exchange import Exchange
from hybridmpi.sparse.forms import Form
from hybridmpi.sparse.requests import answer
from hybridmpi.sparse.shard import Shard
from hybridmpi.tags import Tag
from hybridmpi.world import World

if TYPE_CHECKING:
    from mpi4py import MPI


class Answering:
    """Answers clients from this owner's `shards`, each in its forms, `forms[client][table]`. Local; waits for nobody.

    `busy_seconds`: how long it has worked so far.
    """

    def __init__(self, world: World, exchange: Exchange, shards: Sequence[Shard], forms: Sequence[Sequence[Form]]):
        self.world, self.exchange, self.shards, self.forms = world, exchange, shards, forms
        self.busy_seconds = 0.0
        self._client_of = {rank: client for client, rank in enumerate(world.clients)}
        self._status = world.mpi.Status()
        # On their way: requests of clients, and replies.
        self._coming: list[tuple[MPI.Request, int, np.ndarray]] = []
        self._going: list[tuple[MPI.Request, np.ndarray]] = []
        self._buffers: list[np.ndarray] = []

    @property
    def under_way(self) -> bool:
        """Whether a reply has not arrived yet, as far as this rank knows."""
        return bool(self._going)

    def progress(self, version: int) -> bool:
        """Answer who has asked, once each, from rows that hold `version`; return whether there was anybody."""
        asks, mpi = self.exchange.asks, self.world.mpi
        if asks is None:
            return False
        if self._going:
            self._look_after_replies()
        # A long request may still be on its way, and its sender at other work: nobody waits for it.
        for _ in self._client_of:
            if (message := asks.Improbe(mpi.ANY_SOURCE, Tag.REQUEST, self._status)) is None:
                break
            request = np.empty(self._status.Get_count(mpi.BYTE), np.uint8)
            client = self._client_of[self._status.Get_source()]
            self._coming.append((message.Irecv(fit_to_receive(request)), client, request))
        coming, self._coming = self._coming, []
        did = False
        for receiving, client, request in coming:
            if receiving.Test():
                self._answer(client, request, version)
                did = True
            else:
                self._coming.append((receiving, client, request))
        return did

    def _answer(self, client: int, request: np.ndarray, version: int) -> None:
        started = time.perf_counter()
        reply = self._buffers.pop() if self._buffers else np.empty(self.exchange.sizes.reply, np.uint8)
        size = answer(request, reply, self.shards, self.forms[client], version)
        target = self.world.clients[client]
        self._going.append((self.exchange.asks.Isend(fit_to_send(reply[:size]), target, Tag.REPLY), reply))
        ended = time.perf_counter()
        self.busy_seconds += ended - started
        if self.world.recording is not None:
            about = {"client": client, "bytes": size}
            self.world.recording.add("answer pull", started, ended, update=version + 1, **about)

    def _look_after_replies(self) -> None:
        """Let MPI move replies that are on their way, and use the memory of those that have arrived again."""
        still = []
        for sending, reply in self._going:
            if sending.Test():
                self._buffers.append(reply)
            else:
                still.append((sending, reply))
        self._going = still

    def close(self) -> None:
        """Wait until all replies have arrived."""
        self.world.wait_all([sending for sending, _ in self._going])
