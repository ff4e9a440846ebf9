"""Answering requests for rows: an owner's side of asking.py."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from hybridmpi.arrays import fit_to_receive, fit_to_send
from hybridmpi.sparse.exchange import Exchange
from hybridmpi.sparse.forms import Form
from hybridmpi.sparse.requests import TAG_REPLY, TAG_REQUEST, answer
from hybridmpi.sparse.shard import Shard
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
        self._sending: list[tuple[MPI.Request, np.ndarray]] = []
        self._buffers: list[np.ndarray] = []

    def progress(self, version: int) -> bool:
        """Answer what has been asked, from rows that hold `version`; return whether there was anything."""
        asks, mpi = self.exchange.asks, self.world.mpi
        if asks is None:
            return False
        if self._sending:
            self._look_after_replies()
        did = False
        while (message := asks.Improbe(mpi.ANY_SOURCE, TAG_REQUEST, self._status)) is not None:
            started = time.perf_counter()
            rank, request = self._status.Get_source(), np.empty(self._status.Get_count(mpi.BYTE), np.uint8)
            message.Recv(fit_to_receive(request))
            client = self._client_of[rank]
            reply = self._buffers.pop() if self._buffers else np.empty(self.exchange.sizes.reply, np.uint8)
            size = answer(request, reply, self.shards, self.forms[client], version)
            self._sending.append((asks.Isend(fit_to_send(reply[:size]), rank, TAG_REPLY), reply))
            did, ended = True, time.perf_counter()
            self.busy_seconds += ended - started
            if self.world.recording is not None:
                about = {"client": client, "bytes": size}
                self.world.recording.add("answer pull", started, ended, update=version + 1, **about)
        return did

    def _look_after_replies(self) -> None:
        """Let MPI move replies that are on their way, and use the memory of those that have arrived again."""
        still = [(sending, reply) for sending, reply in self._sending if not sending.Test()]
        gone = {id(reply) for _, reply in still}
        self._buffers += [reply for _, reply in self._sending if id(reply) not in gone]
        self._sending = still

    def close(self) -> None:
        """Wait until all replies have been taken."""
        self.world.wait_all([sending for sending, _ in self._sending])
