"""What a rank does, and when: intervals on its own clock, kept while a part of a run is recorded."""

from __future__ import annotations

import socket
from typing import Any, NamedTuple


class Interval(NamedTuple):
    """Something that took time: from `start` to `stop`, seconds of this rank's time.perf_counter; `about` says which
    step, how many bytes and the like."""

    name: str
    start: float
    stop: float
    about: dict[str, Any]


class Recording:
    """Intervals of one rank. Local; whoever has something to tell looks whether `world.recording` is one.

    `work`: what the rank did, one within the other or one after the other. `sums`: what was under way beside it.
    `limit`: how many intervals are kept; `left_out` counts those that came later. `step`: the one that is at work.
    `host`: where the rank is.
    """

    def __init__(self, limit: int) -> None:
        self.limit, self.left_out, self.step = limit, 0, 0
        self.host = socket.gethostname()
        self.work: list[Interval] = []
        self.sums: list[Interval] = []

    def add(self, name: str, start: float, stop: float, **about: Any) -> None:
        """Keep what this rank did from `start` to `stop`. Local."""
        self._keep(self.work, Interval(name, start, stop, about))

    def add_sum(self, name: str, start: float, stop: float, **about: Any) -> None:
        """Keep a sum that was under way from `start` to `stop`. Local."""
        self._keep(self.sums, Interval(name, start, stop, about))

    def _keep(self, intervals: list[Interval], interval: Interval) -> None:
        if len(self.work) + len(self.sums) < self.limit:
            intervals.append(interval)
        else:
            self.left_out += 1
