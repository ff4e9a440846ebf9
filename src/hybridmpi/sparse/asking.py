"""Asking owners for rows by messages: a client's requests and their replies, all owners at work at once."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from hybridmpi.sparse.exchange import UNDER_WAY, Exchange, Letter
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
from hybridmpi.traffic import Traffic
from hybridmpi.world import World

Questions = Mapping[int, Sequence[Question]]


class Asking:
    """The requests of one client, `index`. An owner has one under way at a time. Local; waits for owners.

    `moved`: the bytes of numbers and rows that requests and replies had so far.
    """

    def __init__(self, world: World, exchange: Exchange, index: int, traffic: Traffic) -> None:
        self.world, self.exchange, self.traffic = world, exchange, traffic
        self.moved = 0
        self._index = index
        self._asked = np.zeros(len(world.owners), np.int64)
        self._answered = exchange.watch("reply_sent")
        self._messages = [np.zeros(exchange.sizes.request, np.uint8) for _ in world.owners]

    def ask(self, questions: Questions) -> None:
        """Ask owners, by number, for rows until all are there: one message to each and one back, as long as what is
        wanted of it fits into a slot, else in rounds. Several owners are at work at once, no more than it takes."""
        to_ask = deque(self.exchange.in_turn(questions))
        under_way: dict[int, list[Part]] = {}
        coming: dict[int, int] = {}  # bytes of the replies

        def next_ones() -> Iterator[int]:
            while to_ask:
                owner = to_ask[0]
                size = sum(question.left * question.row_bytes for question in questions[owner])
                if len(coming) > 1 and sum(coming.values()) + size > UNDER_WAY:
                    return
                coming[owner] = size
                yield to_ask.popleft()

        def answered() -> list[int]:
            return [owner for owner in coming if self._answered[owner] == self._asked[owner]]

        while to_ask or coming:
            under_way |= self.post({owner: questions[owner] for owner in next_ones()})
            self.world.wait_until(answered)
            for owner in answered():
                self.receive(owner, under_way.pop(owner))
                del coming[owner]
                if any(question.left for question in questions[owner]):
                    to_ask.append(owner)

    def post(self, questions: Questions) -> dict[int, list[Part]]:
        """Send each owner a request for as much as fits; return what they are asked for. Their last ones have been
        received. Does not wait for answers."""
        under_way: dict[int, list[Part]] = {}

        def letters() -> Iterator[Letter]:
            for owner, asked in questions.items():
                message = self._messages[owner]
                size, parts = pack_request(message, self.exchange.sizes.reply, asked)
                heads = REQUEST_HEAD + PIECE_HEAD * len(parts)
                self._count(owner, "control", heads)
                self._count(owner, "pull_ids", size - heads)
                under_way[owner] = parts
                self._asked[owner] += 1
                yield Letter(self._index, self.world.owners[owner], message[:size], int(self._asked[owner]))

        self.exchange.send("request", letters())
        return under_way

    def receive(self, owner: int, parts: Sequence[Part]) -> int:
        """Wait for the answer about `parts`, take it in and return the owner's version."""
        self.world.wait_until(lambda: self._answered[owner] == self._asked[owner])
        self.exchange.see()
        version, values_bytes = read_reply(self.exchange.slot("reply", owner), parts)
        self._count(owner, "control", REPLY_HEAD)
        self._count(owner, "pull_ids", sum(bitmap_bytes(part.known) for part in parts))
        self._count(owner, "pull_rows", values_bytes)
        return version

    def _count(self, owner: int, category: str, count: int) -> None:
        self.traffic.add(category, count, self.world.same_node(self.world.owners[owner]))
        if category != "control":
            self.moved += count
