"""Steps: an all-reduce as a generator that says what it waits for, so that it can run at once, or beside other work.

An algorithm yields a predicate wherever it would wait, and is resumed once that is true. `finish` runs it to its end.
An `Operation` holds one that is under way, moved on whenever there is a moment: between two layers of backward.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Sequence
from typing import Any

Ready = Callable[[], Any]
Steps = Generator[Ready, None, None]


class Operation:
    """Steps that are under way. Local."""

    def __init__(self, steps: Steps) -> None:
        self._steps = steps
        self._ready: Ready | None = None
        self.done = False

    def advance(self) -> bool:
        """Go on as far as possible without waiting; return whether the end is reached. Local."""
        while not self.done and (self._ready is None or self._ready()):
            self._ready = next(self._steps, None)
            self.done = self._ready is None
        return self.done


def finish(steps: Steps, wait_until: Callable[[Ready], None]) -> None:
    """Run `steps` to their end, waiting by `wait_until`. Local; the ranks that take part run theirs."""
    for ready in steps:
        wait_until(ready)


def together(many: Sequence[Steps], at_once: int) -> Steps:
    """Return steps that run `many` side by side, up to `at_once` of them: while one waits, another goes on. Local."""
    waiting, under_way = deque(many), []

    def all_done() -> bool:
        nonlocal under_way
        while True:
            under_way += [Operation(waiting.popleft()) for _ in range(min(at_once - len(under_way), len(waiting)))]
            left = [operation for operation in under_way if not operation.advance()]
            finished, under_way = len(left) < len(under_way), left
            if not (finished and waiting):
                return not under_way

    yield all_done
