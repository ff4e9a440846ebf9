"""Metrics: one JSON object a line, written by compute rank 0, readable while the job writes."""

from __future__ import annotations

import json
import os
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from hybridmpi.errors import UsageError
from hybridmpi.streams import Aside, reason
from hybridmpi.training.trainer import StepResult

# A step's line reaches the file within this many seconds.
FLUSH_SECONDS = 1.0
# A pipe that nobody reads, or not fast enough, refuses lines: training does not wait for it.
FLAGS = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NONBLOCK | os.O_CLOEXEC


class Metrics:
    """Writes lines to `path`; an empty path writes nothing. Local, for one rank.

    `after`: the step that the run goes on from, None for a new file. Lines of later steps, which a run that broke off
    has left, are cut off: their steps are done again, so that each step has one line.

    A line is {"kind": "step", "time", "step", "loss", "examples", "skipped", "words_per_s" (or what else examples are
    called: `unit`), "seconds", "hidden", "phases": {...}, "bytes": {...}}, with "notes" where something was changed
    after it, and "rows" with a cache or prefetch; or "evaluation", "note", "staleness", "checkpoint" ("seconds" that
    training stood still for it), "run", "end". "time" is when it was written, in seconds since 1970; a number that is
    not finite is written as Python's json does, NaN or Infinity. hybridmpi.watching reads it. Raises UsageError when
    the file cannot be opened; what cannot be written later is a warning.
    """

    def __init__(self, path: str, after: int | None, unit: str) -> None:
        self._file, self._rate = None, f"{unit}_per_s"
        self._aside = Aside(f"metrics file '{path}'", "lines of this run are missing there; training goes on")
        self._flushed, self._lines, self._torn = time.monotonic(), [], False
        if not path:
            return
        try:
            Path(path).parent.mkdir(parents=True, exist_ok=True)
            if after is not None:
                _cut_after(Path(path), after)
            self._file = os.open(path, FLAGS | (os.O_TRUNC if after is None else 0), 0o666)
        except (OSError, ValueError) as error:
            raise UsageError(f"metrics file '{path}' cannot be written: {reason(error)}; set metrics.path") from error

    def write(self, kind: str, **values: Any) -> None:
        """Append one line. Where that is impossible, warn once: what lines there are stay whole."""
        if self._file is None:
            return
        with self._aside.guarded():
            self._lines.append(json.dumps({"kind": kind, "time": round(time.time(), 3), **values}) + "\n")
            now = time.monotonic()
            if kind != "step" or now - self._flushed > FLUSH_SECONDS:
                self._flushed = now
                self._write()

    def flush(self) -> None:
        """Write the lines that wait."""
        if self._file is not None:
            with self._aside.guarded():
                self._write()

    def _write(self) -> None:
        """Write the lines that wait, or none of them."""
        data, self._lines = "".join(self._lines).encode(), []
        if not data:
            return
        if os.fstat(self._file).st_nlink == 0:
            raise FileNotFoundError(0, "it was removed")
        if self._torn:  # where the rest of a line could not be taken back
            data = b"\n" + data
        written = 0
        try:
            while written < len(data):
                written += os.write(self._file, data[written:])
            self._torn = False
        except OSError:
            if written:
                self._torn = True
                with suppress(OSError):  # of a pipe
                    os.ftruncate(self._file, os.fstat(self._file).st_size - written)
                    self._torn = False
            raise

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
        """Write what waits, and close the file."""
        if self._file is not None:
            self.flush()
            with self._aside.guarded():
                os.close(self._file)
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
