"""A timeline as a file that Perfetto and chrome://tracing open: the Trace Event Format, as a JSON object."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hybridmpi.recording import Interval, Recording
from hybridmpi.sparse.clocks import Reading, to_ours

MARK = '{"generator":"hybridmpi","traceEvents":['
"""How a timeline begins: a file that begins so is overwritten by the next one."""


@dataclass(frozen=True)
class Track:
    """What one rank recorded: `rank` in the world, `role` such as "server 1". `clock`: readings of its clock before
    and after, by the rank whose clock counts; None where that is the same."""

    rank: int
    role: str
    recording: Recording
    clock: tuple[Reading, Reading] | None = None

    def seconds(self, theirs: float) -> float:
        """Return what the clock that counts showed at this rank's `theirs`. Local."""
        return theirs if self.clock is None else to_ours(theirs, *self.clock)


def write_timeline(path: Path, tracks: Sequence[Track], steps: Mapping[int, int], about: Mapping[str, Any]) -> int:
    """Write the tracks and return the number of their intervals: first aside, then renamed. Local.

    `steps`: the step that made an update, by the update's number, which is all that owners of rows know. `about`:
    JSON values that stand beside the events. Raises OSError.
    """
    aside, count = aside_of(path), 0
    try:
        with open(aside, "w", encoding="utf-8") as file:
            file.write(MARK)
            for count, event in enumerate(events(tracks, steps), 1):  # noqa: B007 - counted
                file.write(("\n" if count == 1 else ",\n") + json.dumps(event, separators=(",", ":")))
            file.write('\n],"displayTimeUnit":"ms","otherData":' + json.dumps(about) + "}\n")
        aside.replace(path)
    except OSError:
        with suppress(OSError):
            aside.unlink(missing_ok=True)
        raise
    return sum(len(track.recording.work) + len(track.recording.sums) for track in tracks)


def aside_of(path: Path) -> Path:
    """Return the file that is renamed to `path` when it is whole. Local."""
    return path.with_name(f".{path.name}.{os.getpid()}")


def events(tracks: Sequence[Track], steps: Mapping[int, int]) -> Iterator[dict[str, Any]]:
    """Yield the events of all tracks: a process for each rank, work as complete events on its one thread, sums under
    way as asynchronous ones. Times are microseconds since the first event. Local."""
    starts = [track.seconds(i.start) for track in tracks for i in (*track.recording.work, *track.recording.sums)]
    first = min(starts, default=0.0)

    def nanoseconds(track: Track, when: float) -> int:
        # Rounded first, subtracted then: what lies within something else does so in whole nanoseconds too.
        return round((track.seconds(when) - first) * 1e9)

    def about(interval: Interval) -> dict[str, Any]:
        step = steps.get(interval.about.get("update", 0))
        return interval.about if step is None else {"step": step, **interval.about}

    for order, track in enumerate(tracks):
        whose = {"pid": track.rank, "tid": 0}
        name = f"{track.role} ({track.recording.host})"
        yield {"ph": "M", "name": "process_name", **whose, "args": {"name": name}}
        yield {"ph": "M", "name": "process_sort_index", **whose, "args": {"sort_index": order}}
        yield {"ph": "M", "name": "thread_name", **whose, "args": {"name": "work"}}
        # The outer before the inner.
        for interval in sorted(track.recording.work, key=lambda interval: (interval.start, -interval.stop)):
            start, stop = nanoseconds(track, interval.start), nanoseconds(track, interval.stop)
            times = {"ts": start / 1e3, "dur": (stop - start) / 1e3}
            yield {"ph": "X", "name": interval.name, "cat": "work", **whose, **times, "args": about(interval)}
        for number, interval in enumerate(track.recording.sums):
            one = {"cat": "sum", "id": f"{track.rank}.{number}", "name": interval.name, **whose}
            yield {"ph": "b", **one, "ts": nanoseconds(track, interval.start) / 1e3, "args": about(interval)}
            yield {"ph": "e", **one, "ts": nanoseconds(track, interval.stop) / 1e3}
