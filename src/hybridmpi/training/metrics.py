"""Metrics: one JSON object a line, written by compute rank 0, readable while the job writes."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

from hybridmpi.errors import UsageError
from hybridmpi.training.trainer import StepResult

# A step's line reaches the file within this many seconds.
FLUSH_SECONDS = 1.0


class Metrics:
    """Appends lines to `path`; an empty path writes nothing. Local, for one rank.

    A line is {"kind": "step", "time", "step", "loss", "examples", "skipped", "words_per_s" (or what else examples are
    called: `unit`), "seconds", "hidden", "phases": {...}, "bytes": {...}}, with "notes" where something was changed
    after it, and "rows" with a cache or prefetch; or "evaluation", "note", "staleness", "checkpoint" ("seconds" that
    training stood still for it), "run", "end". "time" is when it was written, in seconds since 1970; a number that is
    not finite is written as Python's json does, NaN or Infinity. hybridmpi.watching reads it. Raises UsageError when
    the file cannot be written.
    """

    def __init__(self, path: str, append: bool, unit: str) -> None:
        self._file, self._rate = None, f"{unit}_per_s"
        self._flushed = time.monotonic()
        if not path:
            return
        try:
            Path(path).parent.mkdir(parents=True, exist_ok=True)
            self._file = open(path, "a" if append else "w", encoding="utf-8")  # noqa: SIM115 - closed by close()
            if append and _is_torn(path):
                self._file.write("\n")
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


def _is_torn(path: str) -> bool:
    """Return whether the last line has no end, as a job leaves it that is killed while it writes. Local."""
    with open(path, "rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - 1))
        return file.read(1) not in (b"", b"\n")
