"""Where the time of a step goes."""

from __future__ import annotations

import time
from collections.abc import Callable

from hybridmpi.recording import Recording

PHASES = ("pull", "forward", "backward", "overlap", "wait", "push", "allreduce", "tables", "update")


class Phases:
    """Seconds of a step by phase. Local. `lap(name)` gives the time since the last lap to a phase.

    Where there is a `recording`, it gets every lap, and the whole step when it ends: `step` is its number, `traffic`
    returns the bytes so far by category.
    """

    def __init__(self, recording: Recording | None, step: int, traffic: Callable[[], dict[str, int]]) -> None:
        self.seconds = dict.fromkeys(PHASES, 0.0)
        self._started = self._last = time.perf_counter()
        self._recording, self._step, self._traffic = recording, step, traffic
        if recording is not None:
            recording.step = step
            self._before = self._moved = traffic()

    def lap(self, phase: str, elsewhere: float = 0.0) -> None:
        """Add the time since the last lap to `phase`, less `elsewhere` seconds that were given to other phases."""
        now = time.perf_counter()
        self.seconds[phase] += now - self._last - elsewhere
        if self._recording is not None:
            moved = self._traffic()
            self._recording.add(phase, self._last, now, step=self._step, **difference(self._moved, moved))
            self._moved = moved
            now = time.perf_counter()  # recording belongs to no phase
        self._last = now

    def add(self, phase: str, seconds: float) -> None:
        """Give `seconds` to a phase."""
        self.seconds[phase] += seconds

    def end(self) -> None:
        """End the step."""
        if self._recording is not None:
            about = difference(self._before, self._traffic())
            self._recording.add(f"step {self._step}", self._started, time.perf_counter(), step=self._step, **about)


def difference(before: dict[str, int], after: dict[str, int]) -> dict[str, int]:
    """Return the bytes that were moved in between, all together as "bytes", then by category where there are any.
    Local."""
    moved = {category: after[category] - before[category] for category in after}
    return {"bytes": sum(moved.values()), **{category: count for category, count in moved.items() if count}}
