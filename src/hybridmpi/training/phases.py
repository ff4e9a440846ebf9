"""Where the time of a step goes."""

from __future__ import annotations

import time

PHASES = ("pull", "forward", "backward", "overlap", "wait", "push", "allreduce", "tables", "update")


class Phases:
    """Seconds by phase. Local. `lap(name)` gives the time since the last lap to a phase."""

    def __init__(self) -> None:
        self.seconds = dict.fromkeys(PHASES, 0.0)
        self._last = time.perf_counter()

    def start(self) -> None:
        """Begin a step: what came before belongs to nobody."""
        self._last = time.perf_counter()

    def lap(self, phase: str, elsewhere: float = 0.0) -> None:
        """Add the time since the last lap to `phase`, less `elsewhere` seconds that were given to other phases."""
        now = time.perf_counter()
        self.seconds[phase] += now - self._last - elsewhere
        self._last = now

    def add(self, phase: str, seconds: float) -> None:
        """Give `seconds` to a phase."""
        self.seconds[phase] += seconds
