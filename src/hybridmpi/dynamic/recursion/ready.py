"""Which vertices can run, while calls wait for values and bring up more of them."""

from __future__ import annotations

from hybridmpi.dynamic.recursion.expansion import Record
from hybridmpi.dynamic.recursion.types import PieceType


class QueueRecord(Record):
    """A record that knows what can run: a vertex of which all that it gathers is done. Of these, those come first that
    some call waits for, or that lead to such; all others can wait, and then run in larger batches."""

    def __init__(self) -> None:
        super().__init__()
        self.done: list[bool] = []
        self._missing: list[int] = []
        self._users: list[list[int]] = []
        self._needed: list[bool] = []
        self._ready: dict[PieceType, list[int]] = {}

    def add(self, kind: PieceType, root: int, rows: list[int]) -> int:
        """Return the number of a new vertex. Local."""
        vertex = super().add(kind, root, rows)
        self.done.append(False)
        self._missing.append(len(kind.references))
        self._users.append([])
        self._needed.append(False)
        return vertex

    def connect(self, vertex: int, slot: int, location: tuple[int, int]) -> None:
        """Let a vertex gather from a location. Local."""
        super().connect(vertex, slot, location)
        producer = location[0]
        if self.done[producer]:
            self._less(vertex)
            return
        self._users[producer].append(vertex)
        if self._needed[vertex]:
            self.need(producer)

    def need(self, vertex: int) -> None:
        """Let a vertex, and what it gathers from, come first. Local."""
        stack = [vertex]
        while stack:
            vertex = stack.pop()
            if not self._needed[vertex] and not self.done[vertex]:
                self._needed[vertex] = True
                if not self._missing[vertex]:
                    self._ready.setdefault(self.types[vertex], []).append(vertex)
                stack += [location[0] for location in self.gathered[vertex] if location is not None]

    def _less(self, vertex: int) -> None:
        self._missing[vertex] -= 1
        if not self._missing[vertex] and self._needed[vertex]:
            self._ready.setdefault(self.types[vertex], []).append(vertex)

    def take(self) -> tuple[PieceType, list[int]] | None:
        """Return the largest batch of one type of what is needed and can run; None if nothing can. Local."""
        if not self._ready:
            return None
        kind = max(self._ready, key=lambda kind: len(self._ready[kind]))
        return kind, self._ready.pop(kind)

    def finish(self, vertices: list[int]) -> list[int]:
        """Note that vertices have run; return those that now can, needed or not. Local."""
        free = []
        for vertex in vertices:
            self.done[vertex] = True
        for vertex in vertices:
            for user in self._users[vertex]:
                self._less(user)
                if not self._missing[user]:
                    free.append(user)
            self._users[vertex] = []
        return free

    def rest(self) -> list[int]:
        """Return the vertices that can run and have not. Local."""
        return [vertex for vertex, missing in enumerate(self._missing) if not missing and not self.done[vertex]]
