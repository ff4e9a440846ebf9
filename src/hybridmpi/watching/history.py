"""What a run has written so far: curves over all of it, its latest steps, evaluations, changes, starts."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from typing import Any

import numpy as np

from hybridmpi.watching.bins import Bins
from hybridmpi.watching.lines import COLUMNS, RECENT, Steps

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
    training, without those between an end and the next start. `curves`: means by step of "step", "clock", "loss",
    "examples", "seconds", "hidden", "skipped", "phases.NAME", "bytes.NAME" and, of the same steps as the latter,
    "whole". `recent`: the latest lines of steps. `unit`: what examples are called.
    """

    def __init__(self) -> None:
        self.starts: list[Start] = []
        self.curves = Bins()
        self.recent: deque[dict[str, Any]] = deque(maxlen=RECENT)
        self.evaluations: list[Evaluation] = []
        self.notes: deque[tuple[int, str]] = deque(maxlen=NOTES)
        self.end: dict[str, Any] | None = None
        self.unit, self.step, self.skipped, self.written = "examples", 0, 0, math.nan
        self.clock = 0.0
        self._reached, self._began, self._limit = 0, math.nan, math.inf

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
        """Of every so manieth step everything is worth reading."""
        return max(1, self.curves.width // 4)

    def add(self, said: Steps | dict[str, Any], limit: float = math.inf) -> None:
        """Take in what lines say. `limit`: the last step that a later start does not do again."""
        self._limit = limit
        if isinstance(said, Steps):
            self._add_steps(said)
            return
        add = {"run": self._start, "evaluation": self._evaluate, "note": self._note, "end": self._end}.get(said["kind"])
        if add is not None:
            self.written = said.get("time", math.nan)
            add(said)

    def _add_steps(self, said: Steps) -> None:
        numbers = dict(zip(COLUMNS, said.numbers.T, strict=True))
        self.end = None
        self.written = float(numbers["time"][-1])
        if math.isnan(self._began) or np.isnan(numbers["time"]).any():
            clock = self.clock + np.cumsum(np.nan_to_num(numbers["seconds"]))
        else:
            clock = self._before + numbers["time"] - self._began
        self.clock = float(clock[-1])
        steps = numbers["step"].astype(np.int64)
        self._reached = max(self._reached, int(steps.max()))
        kept = (steps <= self._limit) & (steps >= 1)
        if not kept.any():
            return
        measures = {name: numbers[name][kept] for name in COLUMNS if name != "time"}
        self.curves.add(steps[kept], {**measures, "clock": clock[kept]})
        self.step, self.skipped = int(steps[kept][-1]), self.skipped + int(np.nansum(measures["skipped"]))
        whole = [(int(steps[row]), line) for row, line in said.whole if kept[row]]
        for step, line in whole:
            self.notes.extend((step, str(text)) for text in line.get("notes", ()))
        self.recent.extend(line for _, line in whole[-RECENT:])
        self._add_whole(np.array([step for step, _ in whole], np.int64), [line for _, line in whole])
        if whole:
            self.unit = next((k.removesuffix("_per_s") for k in whole[-1][1] if k.endswith("_per_s")), self.unit)

    def _add_whole(self, steps: np.ndarray, lines: list[dict[str, Any]]) -> None:
        measures = {"whole": np.array([line.get("seconds", math.nan) for line in lines])}
        for section in ("phases", "bytes"):
            found = [line.get(section, {}) for line in lines]
            for name in dict.fromkeys(name for values in found for name in values):
                measures[f"{section}.{name}"] = np.array([values.get(name, math.nan) for values in found], np.float64)
        self.curves.add(steps, measures)

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

    def _end(self, line: dict[str, Any]) -> None:
        self._pass(line)
        self.end = line

    def _pass(self, line: dict[str, Any]) -> None:
        """Let the clock go on to when a line was written."""
        if not math.isnan(passed := line.get("time", math.nan) - self._began):
            self.clock = max(self.clock, self._before + passed)
