"""Metrics: one JSON object a line, written by compute rank 0, readable while the job writes."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from hybridmpi.errors import UsageError
from hybridmpi.training.trainer import StepResult

# A step's line reaches the file within this many seconds.
FLUSH_SECONDS = 1.0


class Metrics:
    """Writes lines to `path`; an empty path writes nothing. Local, for one rank.

    `after`: the step that the run goes on from, None for a new file. Lines of later steps, which a run that broke off
    has left, are cut off: their steps are done again, so that each step has one line.

    A line is {"kind": "step", "time", "step", "loss", "examples", "skipped", "words_per_s" (or what else examples are
    called: `unit`), "seconds", "hidden", "phases": {...}, "bytes": {...}}, with "notes" where something was changed
    after it, and "rows" with a cache or prefetch; or "evaluation", "note", "staleness", "checkpoint" ("seconds" that
    training stood still for it), "run", "end". "time" is when it was written, in seconds since 1970; a number that is
    not finite is written as Python's json does, NaN or Infinity. hybridmpi.watching reads it. Raises UsageError when
    the file cannot be written.
    """

    def __init__(self, path: str, after: int | None, unit: str) -> None:
        self._file, self._rate = None, f"{unit}_per_s"
        self._flushed = time.monotonic()
        if not path:
            return
        try:
            Path(path).parent.mkdir(parents=True, exist_ok=True)
            if after is not None:
                _cut_after(Path(path), after)
            self._file = open(path, "w" if after is None else "a", encoding="utf-8")  # noqa: SIM115 - close() does
        except OSError as error:
            raise UsageError(f"metrics file '{path}' cannot be written: {error.strerror}; set metrics.path") from error

    def write(self, kind: str, **values: Any) -> None:
        """Append one line."""
        if self._file is None:
            return
        self._file.write(json.dumps({"kind": kind, "time": round(time.time(), 3), **values}) + "\n")
        now = time.monotonic()
        if kind != "step" or now - self._flushed > FLUSH_SECONDS:
            self._file.flush()
            self._flushed = now

    def step(self, result: StepResult) -> None:
        """Append the line of a step; times and bytes are those of the writing rank."""
        if self._file is None:
            return
        self.write(
            "step",
            step=result.step,
            loss=result.loss,
            examples=result.examples,
            skipped=result.skipped,
            **{self._rate: round(result.examples / result.total_seconds, 1)},
            seconds=round(result.total_seconds, 6),
            hidden=round(result.hidden_seconds, 6),
            phases={phase: round(seconds, 6) for phase, seconds in result.seconds.items()},
            bytes=result.bytes,
            **({"notes": result.notes} if result.notes else {}),
            **({"rows": result.rows} if result.rows else {}),
        )

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
            self._file = None


def _cut_after(path: Path, step: int) -> None:
    """Cut off what `path` holds from the first line of a later step on, and what is no whole line at its end."""
    if not path.is_file():  # or it is a device or a pipe, which holds nothing
        return
    with open(path, "rb+") as file:
        position = kept = 0
        for line in file:
            position += len(line)
            found = _step_of(line)
            if found is not None and found > step:
                break
            if found is not None:
                kept = position
        file.truncate(kept)


def _step_of(line: bytes) -> int | None:
    """Return the step of a line, 0 where it names none; None if it is not whole, as a job leaves it that is killed."""
    try:
        found = json.loads(line).get("step", 0) if line.endswith(b"\n") else None
    except (ValueError, AttributeError):
        return None
    return found if isinstance(found, int) else None
