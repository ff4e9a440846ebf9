"""Waiting without fighting the working ranks for their cores.

MPI's own waits spin. A rank that spins while it waits for a slower one takes a core from it wherever there are more
ranks than cores, and a server that spins takes one all day. So everything here polls: a short spin for what is about
to happen, then sleeps that grow with the time already waited.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from typing import Any

# A wait that ends within this many seconds never sleeps; it yields the core between polls. Long enough for a message
# between ranks that are in step, short beside the time slice of a rank that needs this core.
SPIN_SECONDS = 60e-6
# The first sleep; the kernel's timer slack adds about 50 us to it. Sleeps grow until LONGEST_SLEEP.
FIRST_SLEEP = 20e-6
LONGEST_SLEEP = 1e-3
# With this growth a sleep is about a twentieth of the wait so far, and so is what the wait ends late by. That is on the
# path of every step: the rank that waits for the slowest one wakes late, and the slowest one then waits for it.
# Against growth by half, which ends up to a third late: 1 % of a language model's step on a quiet machine, more on a
# busy one, for the same processor time.
GROWTH = 1.05
# After a long wait a sleep may be this share of it, up to IDLE_SLEEP: what is waited for comes that little later, and a
# server that idles through an evaluation wakes a quarter as often.
SHARE_OF_WAIT = 0.02
IDLE_SLEEP = 4e-3


class Backoff:
    """Pauses between polls: yields at first, then sleeps ever longer, up to `longest` seconds; up to IDLE_SLEEP after
    waits beside which that is little. `growth`: of a sleep over the one before. Local."""

    def __init__(self, longest: float = LONGEST_SLEEP, growth: float = GROWTH) -> None:
        self.longest, self.growth = longest, growth
        self.reset()

    def reset(self) -> None:
        """Start again with short pauses, because something happened."""
        self._started = time.perf_counter()
        self._sleep = FIRST_SLEEP

    def pause(self) -> None:
        """Give the core away for a moment."""
        waited = time.perf_counter() - self._started
        if waited < SPIN_SECONDS:
            os.sched_yield()
            return
        time.sleep(self._sleep)
        self._sleep = min(self._sleep * self.growth, max(self.longest, min(waited * SHARE_OF_WAIT, IDLE_SLEEP)))


def wait_until(predicate: Callable[[], Any], progress: Callable[[], Any] | None = None) -> None:
    """Return once `predicate()` is true, calling `progress()` between polls. Local.

    `progress` is what this rank owes to others meanwhile: moving MPI, serving the shard it holds.
    """
    if predicate():
        return
    backoff = Backoff()
    while True:
        if progress is not None and progress():
            backoff.reset()
        if predicate():
            return
        backoff.pause()


def wait_all(requests: Sequence[Any], progress: Callable[[], Any] | None = None) -> None:
    """Complete all MPI `requests`, polling. Local."""
    if requests:
        wait_until(lambda: type(requests[0]).Testall(requests), progress)
