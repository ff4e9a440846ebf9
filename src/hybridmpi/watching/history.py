"""What a run has written so far: curves over all of it, its latest steps, evaluations, changes, starts."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from typing import Any

import numpy as np

from hybridmpi.watching.bins import Bins
from hybridmpi.watching.lines import RECENT

# What every step has.
NUMBERS = ("step", "loss", "examples", "seconds", "hidden", "skipped")
# Of the changes that a run tells of, the last so many are kept.
NOTES = 1000


@dataclass(frozen=True)
class Start:
    """A start of the job: its line, the seconds that had been trained before, and how many steps that an earlier start
    had done are done again."""

    line: dict[str, Any]
    clock: float
    lost: int


@dataclass(frozen=True)
class Evaluation:
    """What held-out data said after `step`, at `clock` seconds of training; `values`: numbers by name."""

    step: int
    clock: float
    values: dict[str, float]


class History:
    """A run, however often it was started again, from its metrics file. Local.

    Where a job died after its last checkpoint, steps were done twice: the later ones count. `clock` is seconds of
    training, without those between an end and the next start. `curves`: means by step of "clock", of NUMBERS and of
    "phases.NAME" and "bytes.NAME". `recent`: the latest lines of steps. `unit`: what examples are called. `written`:
    when the last line was, NaN if it does not say.
    """

    def __init__(self) -> None:
        self.starts: list[Start] = []
        self.curves = Bins()
        self.recent: deque[dict[str, Any]] = deque(maxlen=RECENT)
        self.evaluations: list[Evaluation] = []
        self.notes: deque[tuple[int, str]] = deque(maxlen=NOTES)
        self.checkpoint: dict[str, Any] | None = None
        self.end: dict[str, Any] | None = None
        self.unit, self.step, self.skipped, self.written = "examples", 0, 0, math.nan
        self.clock = 0.0
        self._reached, self._began, self._before, self._limit = 0, math.nan, 0.0, math.inf

    @property
    def job(self) -> dict[str, Any]:
        """What the job file said, as the last start took it; empty before the first."""
        return self.starts[-1].line.get("job", {}) if self.starts else {}

    @property
    def steps(self) -> int:
        """The steps that the job is to do in all; 0 if nobody says."""
        return int(self.job.get("training", {}).get("steps", 0))

    @property
    def stride(self) -> int:
        """Of every so manieth step the line is worth reading: of 8 in a bin at least."""
        return max(1, self.curves.width // 8)

    def add(self, said: list[dict[str, Any]] | dict[str, Any], limit: float = math.inf) -> None:
        """Take in what lines say (see `lines.parse`). `limit`: the last step that a later start does not do again."""
        self._limit = limit
        if isinstance(said, list):
            self._add_steps(said)
            return
        known = {
            "run": self._start,
            "evaluation": self._evaluate,
            "note": self._note,
            "checkpoint": self._save,
            "end": self._end,
        }
        if said["kind"] in known:
            self.written = said.get("time", math.nan)
            known[said["kind"]](said)

    def _add_steps(self, lines: list[dict[str, Any]]) -> None:
        self.end = None
        self.written = lines[-1].get("time", math.nan)
        times = column(lines, "time") - self._began
        if np.isnan(times).any():  # from a program of a user's own
            times = self.clock - self._before + np.cumsum(np.nan_to_num(column(lines, "seconds")))
        clock = dict(zip(map(id, lines), self._before + times, strict=True))
        self.clock = max(self.clock, clock[id(lines[-1])])
        self._reached = max(self._reached, lines[-1]["step"])
        lines = [line for line in lines if 1 <= line["step"] <= self._limit]
        if not lines:
            return
        self.recent.extend(lines[-RECENT:])
        for line in lines:
            self.skipped += line.get("skipped") is True
            self.notes.extend((line["step"], str(text)) for text in line.get("notes", ()))
        self.step = lines[-1]["step"]
        self.unit = next((k.removesuffix("_per_s") for k in lines[-1] if k.endswith("_per_s")), self.unit)
        measures = {name: column(lines, name) for name in NUMBERS}
        measures["clock"] = np.array([clock[id(line)] for line in lines])
        for section in ("phases", "bytes"):
            measures |= _columns(section, [line.get(section, {}) for line in lines])
        self.curves.add(measures["step"].astype(np.int64), measures)

    def _start(self, line: dict[str, Any]) -> None:
        self.starts.append(Start(line, self.clock, max(0, self._reached - line["step"])))
        self._began, self._before = line.get("time", math.nan), self.clock
        self.end = None
        self.step = self._reached = line["step"]

    def _evaluate(self, line: dict[str, Any]) -> None:
        self._pass(line)
        if line["step"] <= self._limit:
            known = {k: v for k, v in line.items() if k not in ("time", "step") and isinstance(v, (int, float))}
            self.evaluations.append(Evaluation(line["step"], self.clock, known))

    def _note(self, line: dict[str, Any]) -> None:
        if line["step"] <= self._limit:
            self.notes.append((line["step"], str(line.get("text", ""))))

    def _save(self, line: dict[str, Any]) -> None:
        self._pass(line)
        self.checkpoint = line

    def _end(self, line: dict[str, Any]) -> None:
        self._pass(line)
        self.end = line

    def _pass(self, line: dict[str, Any]) -> None:
        """Let the clock go on to when a line was written."""
        if not math.isnan(passed := line.get("time", math.nan) - self._began):
            self.clock = max(self.clock, self._before + passed)


def column(lines: list[dict[str, Any]], name: str) -> np.ndarray:
    """Return the numbers of that name in objects, NaN where there is none, float64 [lines]. Local."""
    values = [line.get(name) for line in lines]
    return np.array([math.nan if value is None else value for value in values], np.float64)


def _columns(section: str, found: list[dict[str, Any]]) -> dict[str, np.ndarray]:
    """Return all numbers of objects, as SECTION.NAME."""
    names = found[0].keys()
    if all(values.keys() == names for values in found):  # as a rule, and much faster
        numbers = np.array([list(values.values()) for values in found], np.float64)
        return {f"{section}.{name}": numbers[:, place] for place, name in enumerate(names)}
    return {f"{section}.{name}": column(found, name) for name in dict.fromkeys(n for values in found for n in values)}
