"""MPI that is as late as it may be, between hybridmpi and mpi4py.

What a message, a sum or a Put sends is read some calls of MPI after it was begun; what they receive is written when
they are found complete, and is rubbish until then, as is the memory of a new window. Puts land in any order until they
are flushed, many only then; Gets land at the flush. What others have put into a rank's memory shows to its loads later,
word by word, until a Sync shows all. A send may wait for its receiver. A buffer that is written while it is on its way,
or a request that nobody completes, is an error at once: MPI forbids both, whether or not the numbers come out right. So
is, on demand, a call with more bytes than it may have (`counting_to`).
"""

from __future__ import annotations

import pickle
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
from mpi4py import MPI

from adversary.calls import (
    MOST_RUBBISH,
    RUBBISH,
    UNTIL_FLUSHED,
    Buffer,
    Calls,
    MisuseError,
    Operation,
    Received,
    Sent,
    place,
)

if TYPE_CHECKING:
    from adversary.storm import Storm

LARGEST_RUBBISH_WINDOW = 4 << 20  # of larger ones the beginning only


def install(seed: int, slow: Storm | None, late: bool = True) -> None:
    """Let all communicators and windows that are made from now on be late, by `seed`; `slow` pauses before and after
    every call of MPI. Local."""
    plain = MPI.COMM_WORLD
    Calls.draw = random.Random(f"{seed} {plain.Get_rank()}")
    Calls.late = late
    if slow is not None:
        Calls.pause, Calls.linger = staticmethod(slow.pause), staticmethod(slow.linger)
    MPI.COMM_WORLD, MPI.Win = Comm(plain), Win


@contextmanager
def counting_to(comm: MPI.Intracomm, largest: int) -> Iterator[Comm]:
    """Yield `comm` of an MPI that refuses calls with more than `largest` bytes, and is as late as it was before."""
    before, late = MPI.Win, Calls.late
    MPI.Win, Calls.late, Buffer.largest = Win, late and before is Win, largest
    try:
        yield Comm(comm)
    finally:
        MPI.Win, Calls.late, Buffer.largest = before, late, None


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
        self._looks = Calls.draw.choice((0, 0, 1, 2)) if Calls.late else 0
        Request.open.append(self)
        Calls.add(self)

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
        Calls.enter()
        return self.complete()

    def Wait(self) -> bool:
        Calls.enter_blocking()
        while not self.complete():
            pass
        return True

    def Free(self) -> None:
        """Let it complete on its own."""
        Calls.enter()
        if self in Calls.waiting:
            Calls.waiting.remove(self)
            self.go()
        self._request.Free()
        Request.open.remove(self)

    @classmethod
    def Testall(cls, requests: Sequence[Request]) -> bool:
        Calls.enter()
        return all([request.complete() for request in requests])

    @classmethod
    def Waitall(cls, requests: Sequence[Request]) -> bool:
        return all(request.Wait() for request in requests)


class Message:
    """A message that was found: it is received like others."""

    def __init__(self, comm: Comm, message: Any) -> None:
        self._comm, self._message = comm, message

    def Irecv(self, buffer: Any) -> Request:
        Calls.enter()
        received = Received(buffer, "Irecv of a message found")
        request = self._message.Irecv(received.target())
        return Request(self._comm, None, lambda *_: request, None, received, received.what)


class Comm(MPI.Intracomm):
    """A communicator whose messages and non-blocking collectives are late."""

    def _way(self, *parts: Any) -> Any:
        return (self.handle, *parts)

    def Isend(self, buf: Any, dest: int, tag: int = 0) -> Request:
        Calls.enter()
        what = f"Isend to {dest} with tag {tag}"
        send = super().Issend if Calls.late and Calls.draw.random() < 0.5 else super().Isend
        return Request(self, self._way(dest, tag), lambda s, _: send(s.read(), dest, tag), Sent(buf, what), None, what)

    def Irecv(self, buf: Any, source: int = MPI.ANY_SOURCE, tag: int = MPI.ANY_TAG) -> Request:
        Calls.enter()
        what = f"Irecv from {source} with tag {tag}"
        received = Received(buf, what)
        request = super().Irecv(received.target(), source, tag)
        return Request(self, None, lambda *_: request, None, received, what)

    def Improbe(self, source: int = MPI.ANY_SOURCE, tag: int = MPI.ANY_TAG, status: Any = None) -> Message | None:
        Calls.enter()
        message = super().Improbe(source, tag, status)
        return None if message is None else Message(self, message)

    def Iprobe(self, *arguments: Any, **named: Any) -> bool:
        Calls.enter()
        return super().Iprobe(*arguments, **named)

    def _collective(self, name: str, sendbuf: Any, recvbuf: Any, **named: Any) -> Request:
        Calls.enter()
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
        Calls.enter()
        begin = super().Ibarrier
        return Request(self, self._way("collective"), lambda *_: begin(), None, None, "Ibarrier")

    def Ibcast(self, buf: Any, root: int = 0) -> Request:
        Calls.enter()
        begin, way = super().Ibcast, self._way("collective")
        if self.Get_rank() == root:
            return Request(self, way, lambda s, _: begin(s.read(), root), Sent(buf, "Ibcast"), None, "Ibcast")
        return Request(self, way, lambda _, r: begin(r.target(), root), None, Received(buf, "Ibcast"), "Ibcast")

    def Free(self) -> None:
        Calls.enter_blocking()
        if left := [request.what for request in Request.open if request.comm == self.handle]:
            raise MisuseError(f"{self.Get_name()} is freed with requests that nobody has completed: {left}")
        super().Free()


def _blocking(name: str) -> Callable[..., Any]:
    def call(self: Comm, *arguments: Any, **named: Any) -> Any:
        Calls.enter_blocking()
        if name == "send":
            Buffer(pickle.dumps(arguments[0]))
        elif name[0].isupper():
            for given in arguments:
                if isinstance(given, (bytes, np.ndarray)):
                    Buffer(given)
        result = getattr(super(Comm, self), name)(*arguments, **named)
        if isinstance(result, MPI.Intracomm) and result != MPI.COMM_NULL:
            result = Comm(result)
        Calls.pause()
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
        if Calls.late and Calls.draw.random() < 0.5:
            self.calls = UNTIL_FLUSHED
        self.window, self.target, self._land = window.handle, target, land
        Calls.add(self)

    def go(self) -> None:
        self._land()


class Memory:
    """This rank's memory of a window as its loads find it, `seen`: what others have put there shows at a Sync.

    Memory in words is polled: of what has come, some words show at every call of MPI. The rank itself writes before it
    first meets others, or opens the window, only: then they find what it wrote.
    """

    def __init__(self, real: np.ndarray, polled: bool, opened: bool) -> None:
        self.real, self.seen = real, real.copy()
        self._words = [memory.view(np.int64) for memory in (self.real, self.seen)] if polled else None
        self._handed_over = opened
        Calls.memories.append(self)

    def hand_over(self) -> None:
        """Let others find what this rank has written, once."""
        if not self._handed_over:
            self.real[:] = self.seen
            self._handed_over = True

    def show_some(self) -> None:
        """Show some words of what has come."""
        if self._words is not None and self._handed_over:
            come, seen = self._words
            for word in np.flatnonzero(come != seen).tolist():
                if Calls.draw.random() < 0.5:
                    seen[word] = come[word]

    def show(self) -> None:
        """Show all that has come."""
        if self._handed_over:
            self.seen[:] = self.real


PlainWin = MPI.Win


class Win(PlainWin):
    """A window whose Puts and Gets are late, and seen late."""

    memory: Memory | None = None
    opened = False

    @classmethod
    def Allocate(cls, size: int, unit: int, comm: Comm) -> Win:
        return cls._allocated(super().Allocate, size, unit, comm)

    @classmethod
    def Allocate_shared(cls, size: int, unit: int, comm: Comm) -> Win:
        return cls._allocated(super().Allocate_shared, size, unit, comm)

    @staticmethod
    def _allocated(allocate: Callable[..., Win], size: int, unit: int, comm: Comm) -> Win:
        Calls.enter_blocking()
        window = allocate(size, unit, comm=comm)
        if Calls.late:
            if size:
                memory = np.frombuffer(PlainWin.tomemory(window), np.uint8)
                memory[: None if size <= LARGEST_RUBBISH_WINDOW else MOST_RUBBISH] = Calls.draw.choice(RUBBISH)
            comm.Barrier()
        Calls.linger()
        return window

    def tomemory(self) -> Any:
        real = super().tomemory()
        if not Calls.late or not len(real):
            return real
        if self.memory is None:
            polled = self.Get_attr(MPI.WIN_DISP_UNIT) == 8
            self.memory = Memory(np.frombuffer(real, np.uint8), polled, self.opened)
        return self.memory.seen

    def Lock_all(self, assertion: int = 0) -> None:
        Calls.enter_blocking()
        super().Lock_all(assertion)
        self.opened = True

    def Put(self, origin: Any, target_rank: int, target: Any = None) -> None:
        Calls.enter()
        put, flush = super().Put, super().Flush
        sent = Sent(origin, f"Put to {target_rank}")
        del origin

        def land() -> None:
            put(sent.read(), target_rank, target)
            flush(target_rank)

        Access(self, target_rank, land)

    def Get(self, origin: Any, target_rank: int, target: Any = None) -> None:
        Calls.enter()
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
            o for o in Calls.waiting if isinstance(o, Access) and o.window == self.handle and target in (None, o.target)
        ]
        Calls.waiting[:] = [o for o in Calls.waiting if o not in mine]
        Calls.draw.shuffle(mine)
        for access in mine:
            access.go()

    def Flush(self, rank: int) -> None:
        Calls.enter()
        self._land(rank)
        super().Flush(rank)
        Calls.pause()

    def Unlock_all(self) -> None:
        Calls.enter_blocking()
        self._land(None)
        super().Unlock_all()

    def Sync(self) -> None:
        Calls.enter()
        super().Sync()
        if self.memory is not None:
            self.memory.show()

    def Free(self) -> None:
        Calls.enter_blocking()
        if self.memory is not None:
            Calls.memories.remove(self.memory)
            self.memory = None
        super().Free()
