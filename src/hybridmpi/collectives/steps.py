"""Steps: an all-reduce as a generator that says what it waits for, so that it can run at once, or beside other work.

An algorithm yields a predicate wherever it would wait, and is resumed once that is true. `finish` runs it to its end.
An `Operation` holds one that is under way, moved on whenever there is a moment: between two layers of backward.
"""

from __future__ import annotations

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


def together(many: Sequence[Steps]) -> Steps:
    """Return steps that run `many` side by side: while one waits, another goes on. Local."""
    operations = [Operation(steps) for steps in many]
    # A list, not a generator: all are to move on, also behind one that waits.
    yield lambda: all([operation.advance() for operation in operations])
