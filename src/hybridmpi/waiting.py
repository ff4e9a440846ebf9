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
# The first sleep; the kernel's timer slack adds about 50 us to it. Sleeps grow by half until LONGEST_SLEEP.
FIRST_SLEEP = 20e-6
LONGEST_SLEEP = 1e-3


class Backoff:
    """Pauses between polls: yields at first, then sleeps ever longer, up to `longest` seconds. Local."""

    def __init__(self, longest: float = LONGEST_SLEEP) -> None:
        self.longest = longest
        self.reset()

    def reset(self) -> None:
        """Start again with short pauses, because something happened."""
        self._started = time.perf_counter()
        self._sleep = FIRST_SLEEP

    def pause(self) -> None:
        """Give the core away for a moment."""
        if time.perf_counter() - self._started < SPIN_SECONDS:
            os.sched_yield()
            return
        time.sleep(self._sleep)
        self._sleep = min(self._sleep * 1.5, self.longest)


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
