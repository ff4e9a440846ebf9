"""What has been begun by a call of MPI and is done in a later one: operations on their way, and their buffers (see
lazy.py)."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).parent

RUBBISH = (0xFF, 0x7B)  # NaN and -1; large numbers
MOST_RUBBISH = 64 << 10  # bytes

# How many calls of MPI an operation waits for at least, each as likely as the others.
DELAYS = (0, 0, 0, 0, 1, 1, 2, 2, 3, 12)
UNTIL_FLUSHED = 1 << 30  # of Puts and Gets, as likely as not


class MisuseError(AssertionError):
    """A buffer that MPI still has was touched or forgotten, a request was, or a call has too many bytes."""


class Calls:
    """The calls of MPI of this process, and what has been begun by one and is done in a later one."""

    draw = random.Random(0)
    pause: Callable[[], None] = staticmethod(lambda: None)
    linger: Callable[[], None] = staticmethod(lambda: None)
    late = True
    waiting: list[Operation] = []
    """Not handed to MPI yet, in the order in which they were begun."""
    memories: list[Any] = []
    """Of windows, that others write to."""

    @classmethod
    def enter(cls) -> None:
        """Begin a call: some of what waits goes to MPI, on every way the first one first."""
        cls.pause()
        for memory in cls.memories:
            memory.show_some()
        held, still = set(), []
        for operation in cls.waiting:
            operation.calls -= 1
            if operation.calls > 0 or operation.way in held:
                still.append(operation)
                if operation.way is not None:
                    held.add(operation.way)
            else:
                operation.go()
        cls.waiting[:] = still

    @classmethod
    def enter_blocking(cls) -> None:
        """Begin a call that does not return before others have called: all messages and sums go to MPI."""
        cls.pause()
        for memory in cls.memories:
            memory.hand_over()
        messages = [operation for operation in cls.waiting if operation.way is not None]
        cls.waiting[:] = [operation for operation in cls.waiting if operation.way is None]
        for operation in messages:
            operation.go()

    @classmethod
    def add(cls, operation: Operation) -> None:
        """Take in an operation that has begun."""
        if operation.calls > 0 or any(o.way == operation.way is not None for o in cls.waiting):
            cls.waiting.append(operation)
        else:
            operation.go()


class Buffer:
    """What a caller has given to MPI: an array, or [array, ...] with how much and of what type of it."""

    largest: int | None = None

    def __init__(self, given: Any) -> None:
        listed = isinstance(given, (list, tuple))
        data = given[0] if listed else given
        if isinstance(data, bytes):  # of which numpy makes a text, and of none of them one of a byte
            data = np.frombuffer(data, np.uint8) if data else np.empty(0, np.uint8)
        self.array = np.asarray(data)
        self._about = list(given[1:]) if listed else None
        self.bytes = self.array.reshape(-1).view(np.uint8)
        if self.largest is not None and self.bytes.size > self.largest:
            raise MisuseError(f"{self.bytes.size:,} bytes in one call of MPI ({place()}): at most {self.largest:,}")

    def like(self, array: np.ndarray) -> Any:
        """Return the same of another array."""
        return array if self._about is None else [array, *self._about]

    def forgotten(self) -> bool:
        """Return whether its caller has dropped it."""
        return self.holders() <= ALONE[self.array.base is None]

    def holders(self) -> int:
        """Return how often the array and what it is a view of are referred to."""
        base = self.array.base
        return sys.getrefcount(self.array) + (0 if base is None else sys.getrefcount(base))


ALONE = {owns: Buffer(np.zeros(2) if owns else np.zeros(2)[:1]).holders() for owns in (True, False)}
"""Holders of a buffer that its caller has dropped, whether the array owns its memory or is a view."""


def place() -> str:
    """Return the file and line that called MPI."""
    frame = sys._getframe()
    while Path(frame.f_code.co_filename).parent == HERE:
        frame = frame.f_back
    return f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"


# Requests of which mpi4py does not keep the buffers.
FORGETFUL = ("Iallreduce", "Iallgatherv", "Put")


class Sent:
    """A buffer that MPI reads late. Its caller keeps it, unless mpi4py does."""

    def __init__(self, given: Any, what: str) -> None:
        self.buffer, self.what, self.kept = Buffer(given), f"{what} ({place()})", what.split()[0] not in FORGETFUL
        self.before = self.buffer.bytes.copy()

    def check(self) -> None:
        """Raise an error if the buffer is not what it was."""
        if not np.array_equal(self.buffer.bytes, self.before):
            raise MisuseError(f"{self.what}: the buffer was written before it was sent")
        if not self.kept and self.buffer.forgotten():
            raise MisuseError(f"{self.what}: the buffer was forgotten before it was sent")

    def read(self) -> Any:
        """Return what is to be sent, which stays as long as this."""
        self.check()
        self.copy = self.buffer.array.copy()
        return self.buffer.like(self.copy)


class Received:
    """A buffer that MPI writes late: rubbish until then. `adds`: what is there is sent too."""

    def __init__(self, given: Any, what: str, adds: bool = False) -> None:
        self.buffer, self.what = Buffer(given), f"{what} ({place()})"
        self.landed = self.buffer.array.copy() if adds else np.empty_like(self.buffer.array)
        self.rubbish = Calls.draw.choice(RUBBISH)
        # Of buffers with room for the largest message, which are rarely filled, the beginning only.
        self._head = self.buffer.bytes[:MOST_RUBBISH]
        self._before = self._head.copy()
        if Calls.late:
            self._head[:] = self.rubbish

    def target(self) -> Any:
        """Return where MPI may write."""
        return self.buffer.like(self.landed)

    def land(self, size: int | None = None) -> None:
        """Write what has come, `size` bytes or all; what lies behind it is as it was."""
        if Calls.late and not (self._head == self.rubbish).all():
            raise MisuseError(f"{self.what}: the buffer was written before it was received")
        self._head[:] = self._before
        self.buffer.bytes[:size] = self.landed.reshape(-1).view(np.uint8)[:size]


class Operation:
    """Something begun: `go` hands it to MPI. `way`: operations of one way go in order; None for those without any.
    `calls`: how many calls of MPI later."""

    def __init__(self, way: Any) -> None:
        self.way = way
        self.calls = Calls.draw.choice(DELAYS) if Calls.late else 0

    def go(self) -> None:
        raise NotImplementedError
