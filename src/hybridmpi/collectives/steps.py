"""Steps: an all-reduce as a generator that says what it waits for, so that it can run at once, or beside other work.

An algorithm yields a predicate wherever it would wait, and is resumed once that is true. `finish` runs it to its end.
An `Operation` holds one that is under way, moved on whenever there is a moment: between two layers of backward.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence
from typing import Any

Ready = Callable[[], Any]
Steps = Generator[Ready, None, None]


class Operation:
    """Steps that are under way; `done` once they are at their end. Local."""

    def __init__(self, steps: Steps) -> None:
        self._steps = steps
        self._ready: Ready | None = None
        self.done = False

    def advance(self) -> bool:
        """Go on as far as possible without waiting; return whether that was any way at all. Local."""
        moved = False
        while not self.done and (self._ready is None or self._ready()):
            self._ready = next(self._steps, None)
            self.done = self._ready is None
            moved = True
        # Steps that wait for others of their own tell whether those have moved.
        return moved or bool(getattr(self._ready, "moved", False))


def finish(steps: Steps, wait_until: Callable[[Ready], None]) -> None:
    """Run `steps` to their end, waiting by `wait_until`. Local; the ranks that take part run theirs."""
    for ready in steps:
        wait_until(ready)


class _AllDone:
    """Whether all operations are done, moving them on; `moved`: whether the last call did. Local."""

    def __init__(self, operations: Sequence[Operation]) -> None:
        self._left, self.moved = list(operations), False

    def __call__(self) -> bool:
        # A list, not a generator: all are to move on, also behind one that has moved.
        self.moved = any([operation.advance() for operation in self._left])
        self._left = [operation for operation in self._left if not operation.done]
        return not self._left


def together(many: Sequence[Steps]) -> Steps:
    """Return steps that run `many` side by side: while one waits, another goes on. Local."""
    yield _AllDone([Operation(steps) for steps in many])


def one_by_one(many: Iterable[Steps]) -> Steps:
    """Return steps that run `many` one after the other. Local."""
    for steps in many:
        yield from steps
