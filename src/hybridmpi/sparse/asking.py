"""Asking owners for rows by messages: a client's requests and their replies, several owners at work at once."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from hybridmpi.arrays import fit_to_receive, fit_to_send
from hybridmpi.sparse.exchange import Exchange, may_go
from hybridmpi.sparse.requests import (
    PIECE_HEAD,
    REPLY_HEAD,
    REQUEST_HEAD,
    Part,
    Question,
    bitmap_bytes,
    pack_request,
    read_reply,
)
from hybridmpi.tags import Tag
from hybridmpi.traffic import Traffic
from hybridmpi.world import World

if TYPE_CHECKING:
    from mpi4py import MPI

Questions = Mapping[int, Sequence[Question]]


class Asking:
    """The requests of one client. An owner has one under way at a time. Local; waits for owners.

    `moved`: the bytes of numbers and rows that requests and replies had so far.
    """

    def __init__(self, world: World, exchange: Exchange, traffic: Traffic) -> None:
        self.world, self.exchange, self.traffic = world, exchange, traffic
        self.moved = 0
        sizes, owners = exchange.sizes, len(world.owners)
        self._messages = [np.empty(sizes.request, np.uint8) for _ in range(owners)]
        self._replies = [np.empty(sizes.reply, np.uint8) for _ in range(owners)]
        # Of owners that have been asked: the message to them, and the one that comes back.
        self._under_way: dict[int, tuple[MPI.Request, MPI.Request]] = {}

    def ask(self, questions: Questions) -> None:
        """Ask owners, by number, for rows until all are there: one message to each and one back, as long as these are
        no larger than messages may be, else in rounds. As many owners are at work at once as keep a link busy."""
        to_ask = deque(self.exchange.in_turn(questions))
        parts: dict[int, list[Part]] = {}
        coming: dict[int, int] = {}  # bytes of the replies

        def next_ones() -> Iterator[int]:
            while to_ask:
                owner = to_ask[0]
                size = sum(question.left * question.row_bytes for question in questions[owner])
                if not may_go(size, coming.values()):
                    return
                coming[owner] = size
                yield to_ask.popleft()

        def answered() -> list[int]:
            return [owner for owner in coming if self._under_way[owner][1].Test()]

        while to_ask or coming:
            parts |= self.post({owner: questions[owner] for owner in next_ones()})
            self.world.wait_until(answered)
            for owner in answered():
                self.receive(owner, parts.pop(owner))
                del coming[owner]
                if any(question.left for question in questions[owner]):
                    to_ask.append(owner)

    def post(self, questions: Questions) -> dict[int, list[Part]]:
        """Send each owner a request for as much as a message may hold, in the order given; return what they are asked
        for. Their last ones have been received. Does not wait."""
        result = {}
        for owner, asked in questions.items():
            message, rank = self._messages[owner], self.world.owners[owner]
            size, result[owner] = pack_request(message, self.exchange.sizes.reply, asked)
            reply = self.exchange.asks.Irecv(fit_to_receive(self._replies[owner]), rank, Tag.REPLY)
            self._under_way[owner] = self.exchange.asks.Isend(fit_to_send(message[:size]), rank, Tag.REQUEST), reply
            heads = REQUEST_HEAD + PIECE_HEAD * len(result[owner])
            self._count(owner, "control", heads)
            self._count(owner, "pull_ids", size - heads)
        return result

    def receive(self, owner: int, parts: Sequence[Part]) -> int:
        """Wait for the answer about `parts`, take it in and return the owner's version."""
        self.world.wait_all(self._under_way.pop(owner))
        version, values_bytes = read_reply(self._replies[owner], parts)
        self._count(owner, "control", REPLY_HEAD)
        self._count(owner, "pull_ids", sum(bitmap_bytes(part.known) for part in parts))
        self._count(owner, "pull_rows", values_bytes)
        return version

    def _count(self, owner: int, category: str, count: int) -> None:
        self.traffic.add(category, count, self.world.same_node(self.world.owners[owner]))
        if category != "control":
            self.moved += count
