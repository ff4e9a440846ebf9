"""The vertices that calls have become so far, and which of them can run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hybridmpi.dynamic.recursion.types import PieceType

Location = tuple["Vertex", int]
"""Where a value is: a vertex that puts it out, and its number among the outputs of that width."""


_NOTHING: Mapping[str, Any] = {}


class Vertex:
    """A vertex. rows: of its type's sources. gathered: where from, by slot, None while that is nowhere yet. labels: the
    numbers that are pushed. chunk, row: its memory in a pass whose calls wait for values."""

    __slots__ = (
        *("chunk", "done", "gathered", "kind", "labels", "missing", "needed", "number", "root", "row", "rows", "users"),
    )

    def __init__(self, number: int, kind: PieceType, root: int, rows: Sequence[int]) -> None:
        self.number, self.kind, self.root, self.rows = number, kind, root, rows
        self.missing = len(kind.references)
        self.gathered: list[Location | None] = [None] * self.missing
        self.labels: Mapping[str, Any] = _NOTHING
        self.users: list[Vertex] = []
        self.done = self.needed = False
        self.chunk: Any = None
        self.row = 0


class Vertices:
    """The vertices of a pass, in the order in which they came up. A vertex can run when all that it gathers is done. Of
    these, those come first that some call waits for, or that lead to such; all others can wait, and then run in larger
    batches."""

    def __init__(self) -> None:
        self.all: list[Vertex] = []
        self._ready: dict[PieceType, list[Vertex]] = {}

    def add(self, kind: PieceType, root: int, rows: Sequence[int]) -> Vertex:
        """Return a new vertex. Local."""
        vertex = Vertex(len(self.all), kind, root, rows)
        self.all.append(vertex)
        return vertex

    def connect(self, vertex: Vertex, slot: int, location: Location) -> None:
        """Let a vertex gather from a location. Local."""
        vertex.gathered[slot] = location
        producer = location[0]
        if producer.done:
            self._less(vertex)
            return
        producer.users.append(vertex)
        if vertex.needed and not producer.needed:
            self.need(producer)

    def need(self, vertex: Vertex) -> None:
        """Let a vertex, and what it gathers from, come first. Local."""
        stack = [vertex]
        while stack:
            vertex = stack.pop()
            if not vertex.needed and not vertex.done:
                vertex.needed = True
                if not vertex.missing:
                    self._ready.setdefault(vertex.kind, []).append(vertex)
                stack += [location[0] for location in vertex.gathered if location is not None]

    def _less(self, vertex: Vertex) -> None:
        vertex.missing -= 1
        if not vertex.missing and vertex.needed:
            self._ready.setdefault(vertex.kind, []).append(vertex)

    def take(self) -> tuple[PieceType, list[Vertex]] | None:
        """Return the largest batch of one type of what is needed and can run; None if nothing can. Local."""
        if not self._ready:
            return None
        kind = max(self._ready, key=lambda kind: len(self._ready[kind]))
        return kind, self._ready.pop(kind)

    def finish(self, vertices: list[Vertex]) -> list[Vertex]:
        """Note that vertices have run; return those that now can, needed or not. Local."""
        for vertex in vertices:
            vertex.done = True
        free = []
        for vertex in vertices:
            for user in vertex.users:
                self._less(user)
                if not user.missing:
                    free.append(user)
        return free

    def rest(self) -> list[Vertex]:
        """Return the vertices that can run and have not. Local."""
        return [vertex for vertex in self.all if not vertex.missing and not vertex.done]
