"""MPI that is as late as it may be, between hybridmpi and mpi4py.

What a message, a sum or a Put sends is read some calls of MPI after it was begun; what they receive is written when
they are found complete, and is rubbish until then. Puts land in any order until they are flushed, Gets at the flush. A
send may wait for its receiver. A buffer that is written while it is on its way, or a request that nobody completes, is
an error at once: MPI forbids both, whether or not the numbers come out right. So is, on demand, a call with more bytes
than it may have (`counting_to`).
"""

from __future__ import annotations

import pickle
import random
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from mpi4py import MPI

RUBBISH = (0xFF, 0x7B)  # NaN and -1; large numbers
MOST_RUBBISH = 64 << 10  # bytes

# How many calls of MPI an operation waits for at least, each as likely as the others.
DELAYS = (0, 0, 0, 0, 1, 1, 2, 2, 3, 12)


def install(seed: int, pause: Callable[[], None] | None, late: bool = True) -> None:
    """Let all communicators and windows that are made from now on be late, by `seed`; `pause` is called before and
    after every call of MPI. Local."""
    plain = MPI.COMM_WORLD
    _Calls.draw = random.Random(f"{seed} {plain.Get_rank()}")
    _Calls.pause, _Calls.late = staticmethod(pause or (lambda: None)), late
    MPI.COMM_WORLD, MPI.Win = Comm(plain), Win


@contextmanager
def counting_to(comm: MPI.Intracomm, largest: int) -> Iterator[Comm]:
    """Yield `comm` of an MPI that refuses calls with more than `largest` bytes, and is as late as it was before."""
    before, late = MPI.Win, _Calls.late
    MPI.Win, _Calls.late, Buffer.largest = Win, late and before is Win, largest
    try:
        yield Comm(comm)
    finally:
        MPI.Win, _Calls.late, Buffer.largest = before, late, None


class MisuseError(AssertionError):
    """A buffer that MPI still has was touched or forgotten, a request was, or a call has too many bytes."""


class _Calls:
    """The calls of MPI of this process, and what has been begun by one and is done in a later one."""

    draw = random.Random(0)
    pause: Callable[[], None] = staticmethod(lambda: None)
    late = True
    waiting: list[Operation] = []
    """Not handed to MPI yet, in the order in which they were begun."""

    @classmethod
    def enter(cls) -> None:
        """Begin a call: some of what waits goes to MPI, on every way the first one first."""
        cls.pause()
        held, still = set(), []
        for operation in cls.waiting:
            operation.calls -= 1
            if operation.calls > 0 or operation.way in held:
                held.add(operation.way)
                still.append(operation)
            else:
                operation.go()
        held.discard(None)
        cls.waiting[:] = still

    @classmethod
    def enter_blocking(cls) -> None:
        """Begin a call that does not return before others have called: all messages and sums go to MPI."""
        cls.pause()
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
    while frame.f_code.co_filename == __file__:
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
        self.rubbish = _Calls.draw.choice(RUBBISH)
        # Of buffers with room for the largest message, which are rarely filled, the beginning only.
        self._head = self.buffer.bytes[:MOST_RUBBISH]
        self._before = self._head.copy()
        if _Calls.late:
            self._head[:] = self.rubbish

    def target(self) -> Any:
        """Return where MPI may write."""
        return self.buffer.like(self.landed)

    def land(self, size: int | None = None) -> None:
        """Write what has come, `size` bytes or all; what lies behind it is as it was."""
        if _Calls.late and not (self._head == self.rubbish).all():
            raise MisuseError(f"{self.what}: the buffer was written before it was received")
        self._head[:] = self._before
        self.buffer.bytes[:size] = self.landed.reshape(-1).view(np.uint8)[:size]


class Operation:
    """Something begun: `go` hands it to MPI. `way`: operations of one way go in order; None for those without any.
    `calls`: how many calls of MPI later."""

    def __init__(self, way: Any) -> None:
        self.way = way
        self.calls = _Calls.draw.choice(DELAYS) if _Calls.late else 0

    def go(self) -> None:
        raise NotImplementedError


class Request(Operation):
    """A message or a collective on its way: `start(sent, received)` hands it to MPI."""

    open: list[Request] = []

    def __init__(
        self, comm: Comm, way: Any, start: Callable[..., Any], sent: Sent | None, received: Received | None, what: str
    ) -> None:
        super().__init__(way)
        if way is None:
            self.calls = 0
        self.comm, self.what = comm.handle, f"{what} ({place()})"
        self._start, self._sent, self._received = start, sent, received
        self._request: Any = None
        self._status = MPI.Status()
        self._arrived = self._done = False
        self._looks = _Calls.draw.choice((0, 0, 1, 2)) if _Calls.late else 0
        Request.open.append(self)
        _Calls.add(self)

    def go(self) -> None:
        """Hand it to MPI."""
        self._request = self._start(self._sent, self._received)

    def complete(self) -> bool:
        """Return whether it is complete, which then lands."""
        if self._done:
            return True
        if self._request is None or not (self._arrived or self._request.Test(self._status)):
            return False
        self._arrived = True
        self._looks -= 1
        if self._looks >= 0:
            return False
        if self._sent is not None:
            self._sent.check()
        if self._received is not None:
            self._received.land(self._status.Get_count(MPI.BYTE) if self.way is None else None)
        self._done = True
        Request.open.remove(self)
        return True

    def Test(self) -> bool:
        _Calls.enter()
        return self.complete()

    def Wait(self) -> bool:
        _Calls.enter_blocking()
        while not self.complete():
            pass
        return True

    def Free(self) -> None:
        """Let it complete on its own."""
        _Calls.enter()
        if self in _Calls.waiting:
            _Calls.waiting.remove(self)
            self.go()
        self._request.Free()
        Request.open.remove(self)

    @classmethod
    def Testall(cls, requests: Sequence[Request]) -> bool:
        _Calls.enter()
        return all([request.complete() for request in requests])

    @classmethod
    def Waitall(cls, requests: Sequence[Request]) -> bool:
        return all(request.Wait() for request in requests)


class Message:
    """A message that was found: it is received like others."""

    def __init__(self, comm: Comm, message: Any) -> None:
        self._comm, self._message = comm, message

    def Irecv(self, buffer: Any) -> Request:
        _Calls.enter()
        received = Received(buffer, "Irecv of a message found")
        request = self._message.Irecv(received.target())
        return Request(self._comm, None, lambda *_: request, None, received, received.what)


class Comm(MPI.Intracomm):
    """A communicator whose messages and non-blocking collectives are late."""

    def _way(self, *parts: Any) -> Any:
        return (self.handle, *parts)

    def Isend(self, buf: Any, dest: int, tag: int = 0) -> Request:
        _Calls.enter()
        what = f"Isend to {dest} with tag {tag}"
        send = super().Issend if _Calls.late and _Calls.draw.random() < 0.5 else super().Isend
        return Request(self, self._way(dest, tag), lambda s, _: send(s.read(), dest, tag), Sent(buf, what), None, what)

    def Irecv(self, buf: Any, source: int = MPI.ANY_SOURCE, tag: int = MPI.ANY_TAG) -> Request:
        _Calls.enter()
        what = f"Irecv from {source} with tag {tag}"
        received = Received(buf, what)
        request = super().Irecv(received.target(), source, tag)
        return Request(self, None, lambda *_: request, None, received, what)

    def Improbe(self, source: int = MPI.ANY_SOURCE, tag: int = MPI.ANY_TAG, status: Any = None) -> Message | None:
        _Calls.enter()
        message = super().Improbe(source, tag, status)
        return None if message is None else Message(self, message)

    def Iprobe(self, *arguments: Any, **named: Any) -> bool:
        _Calls.enter()
        return super().Iprobe(*arguments, **named)

    def _collective(self, name: str, sendbuf: Any, recvbuf: Any, **named: Any) -> Request:
        _Calls.enter()
        begin = getattr(super(), name)
        sent = None if sendbuf is None or sendbuf is MPI.IN_PLACE else Sent(sendbuf, name)
        received = None if recvbuf is None else Received(recvbuf, name, adds=sent is None)

        def start(s: Sent | None, r: Received | None) -> Any:
            return begin(MPI.IN_PLACE if s is None else s.read(), r.target(), **named)

        return Request(self, self._way("collective"), start, sent, received, name)

    def Iallgather(self, sendbuf: Any, recvbuf: Any) -> Request:
        return self._collective("Iallgather", sendbuf, recvbuf)

    def Iallgatherv(self, sendbuf: Any, recvbuf: Any) -> Request:
        return self._collective("Iallgatherv", sendbuf, recvbuf)

    def Iallreduce(self, sendbuf: Any, recvbuf: Any, op: Any = MPI.SUM) -> Request:
        return self._collective("Iallreduce", sendbuf, recvbuf, op=op)

    def Ibarrier(self) -> Request:
        _Calls.enter()
        begin = super().Ibarrier
        return Request(self, self._way("collective"), lambda *_: begin(), None, None, "Ibarrier")

    def Ibcast(self, buf: Any, root: int = 0) -> Request:
        _Calls.enter()
        begin, way = super().Ibcast, self._way("collective")
        if self.Get_rank() == root:
            return Request(self, way, lambda s, _: begin(s.read(), root), Sent(buf, "Ibcast"), None, "Ibcast")
        return Request(self, way, lambda _, r: begin(r.target(), root), None, Received(buf, "Ibcast"), "Ibcast")

    def Free(self) -> None:
        _Calls.enter_blocking()
        if left := [request.what for request in Request.open if request.comm == self.handle]:
            raise MisuseError(f"{self.Get_name()} is freed with requests that nobody has completed: {left}")
        super().Free()


def _blocking(name: str) -> Callable[..., Any]:
    def call(self: Comm, *arguments: Any, **named: Any) -> Any:
        _Calls.enter_blocking()
        if name == "send":
            Buffer(pickle.dumps(arguments[0]))
        elif name[0].isupper():
            for given in arguments:
                if isinstance(given, (bytes, np.ndarray)):
                    Buffer(given)
        result = getattr(super(Comm, self), name)(*arguments, **named)
        if isinstance(result, MPI.Intracomm) and result != MPI.COMM_NULL:
            result = Comm(result)
        _Calls.pause()
        return result

    return call


for _name in (
    "Dup", "Split", "Split_type", "Barrier", "Bcast", "bcast", "Allreduce", "allreduce", "Allgather", "allgather",
    "gather", "scatter", "send", "recv", "Send", "Recv", "Sendrecv", "Allgatherv", "alltoall", "Alltoall", "reduce",
):  # fmt: skip
    setattr(Comm, _name, _blocking(_name))


class Access(Operation):
    """A Put or Get on its way; it may land at any call of MPI, in any order with others, and has landed at a flush."""

    def __init__(self, window: Win, target: int, land: Callable[[], None]) -> None:
        super().__init__(None)
        self.window, self.target, self._land = window.handle, target, land
        _Calls.add(self)

    def go(self) -> None:
        self._land()


class Win(MPI.Win):
    """A window whose Puts and Gets are late."""

    def Put(self, origin: Any, target_rank: int, target: Any = None) -> None:
        _Calls.enter()
        put, flush = super().Put, super().Flush
        sent = Sent(origin, f"Put to {target_rank}")
        del origin

        def land() -> None:
            put(sent.read(), target_rank, target)
            flush(target_rank)

        Access(self, target_rank, land)

    def Get(self, origin: Any, target_rank: int, target: Any = None) -> None:
        _Calls.enter()
        get, flush = super().Get, super().Flush
        received = Received(origin, f"Get from {target_rank}")
        del origin

        def land() -> None:
            get(received.target(), target_rank, target)
            flush(target_rank)
            received.land()

        Access(self, target_rank, land)

    def _land(self, target: int | None) -> None:
        """Land, in any order, what is on its way in this window to `target`, or to all."""
        mine = [
            o
            for o in _Calls.waiting
            if isinstance(o, Access) and o.window == self.handle and target in (None, o.target)
        ]
        _Calls.waiting[:] = [o for o in _Calls.waiting if o not in mine]
        _Calls.draw.shuffle(mine)
        for access in mine:
            access.go()

    def Flush(self, rank: int) -> None:
        _Calls.enter()
        self._land(rank)
        super().Flush(rank)
        _Calls.pause()

    def Unlock_all(self) -> None:
        _Calls.enter_blocking()
        self._land(None)
        super().Unlock_all()

    def Sync(self) -> None:
        _Calls.enter()
        super().Sync()

    def Free(self) -> None:
        _Calls.enter_blocking()
        super().Free()
