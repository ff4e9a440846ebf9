"""Progress of a run: a bar that redraws itself on a terminal, a plain line every few seconds elsewhere."""

from __future__ import annotations

import shutil
import sys
import time
from typing import TextIO

from hybridmpi.streams import say, write
from hybridmpi.training.trainer import StepResult

# A terminal's bar is redrawn this often; a job's log gets a line as often as the job file says.
REDRAW_SECONDS = 0.2


class Progress:
    """Shows step, loss and examples/s, by the name `unit`, of the last interval. Local, for one rank.

    `every`: seconds between plain lines.
    """

    def __init__(self, steps: int, every: float, unit: str, stream: TextIO | None = None) -> None:
        self.steps, self.unit, self.stream = steps, unit, stream or sys.stderr
        self.on_terminal = self.stream.isatty()
        self.every = REDRAW_SECONDS if self.on_terminal else every
        self._last = time.perf_counter()
        self._examples = 0
        self._drawn = False

    def step(self, result: StepResult) -> None:
        """Count a step; show it if it is time."""
        self._examples += result.examples
        now = time.perf_counter()
        last_step = result.step == self.steps
        if now - self._last < self.every and not last_step:
            return
        rate = self._examples / (now - self._last)
        self._show(result.step, f"loss {result.loss:.3f}  {rate:,.0f} {self.unit}/s")
        self._last, self._examples = now, 0

    def _show(self, step: int, text: str) -> None:
        share = step / self.steps if self.steps else 1.0
        if not self.on_terminal:
            write(self.stream, f"step {step:,} of {self.steps:,} ({share:.0%})  {text}\n")
            return
        width = max(10, min(40, shutil.get_terminal_size().columns - len(text) - 22))
        bar = ("#" * round(width * share)).ljust(width, ".")
        write(self.stream, f"\r\x1b[K{bar} {step:,}/{self.steps:,}  {text}")
        self._drawn = True

    def message(self, text: str) -> None:
        """Print a line of its own on stdout, below the bar."""
        self.clear()
        say(text)

    def clear(self) -> None:
        """End the bar's line."""
        if self._drawn:
            write(self.stream, "\n")
            self._drawn = False

    def resume_clock(self) -> None:
        """Leave the time since the last step, spent on an evaluation or a checkpoint, out of the next rate."""
        self._last, self._examples = time.perf_counter(), 0
