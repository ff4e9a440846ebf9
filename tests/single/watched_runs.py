"""Metrics files for the tests of what reads them, written by what writes them."""

import math
from unittest import mock

from hybridmpi.training.metrics import Metrics
from hybridmpi.training.results import StepResult

PHASES = {"pull": 0.01, "forward": 0.02, "backward": 0.03, "wait": 0.01}
BYTES = {"allreduce": 1000, "pull_ids": 40, "pull_rows": 400, "push_ids": 50, "push_rows": 500, "control": 10}


class Run:
    """Writes a run as a job does, and remembers its losses by step: what counts is the last that was written."""

    def __init__(self, path, steps, append=False, first=0, unit="words", start=1000.0, **job):
        self.clock, self.step = start, first
        # What a run did that broke off stays, though a job would cut it off: files are also put together by hand.
        self.metrics = Metrics(str(path), 10**9 if append else None, unit)
        about = {"training": {"steps": steps, "evaluate": 0, "staleness": 0}, "model": {"kind": "lm"}}
        about = {section: {**about.get(section, {}), **job.get(section, {})} for section in {**about, **job}}
        self.write("run", job=about, compute_ranks=2, servers=1, nodes=1, host="here", step=first)

    def write(self, kind, **values):
        with mock.patch("time.time", lambda: self.clock):
            self.metrics.write(kind, **values)

    def steps(self, count, seconds=0.1, loss=None, skipped=False, phases=PHASES, **more):
        """Write so many steps; step n has loss 10 / n unless `loss` says another."""
        for _ in range(count):
            self.step += 1
            self.clock += seconds
            value = 10 / self.step if loss is None else loss
            result = StepResult(self.step, value, 100, skipped, seconds, 0.001, dict(phases), BYTES, **more)
            with mock.patch("time.time", lambda: self.clock):
                self.metrics.step(result)

    def evaluate(self, **values):
        self.clock += 2
        self.write("evaluation", step=self.step, **(values or {"perplexity": math.e**2}), seconds=2.0)

    def end(self, stopped=False):
        self.write("end", step=self.step, seconds=1.0, stopped=stopped, sparsity={})
        self.close()

    def close(self):
        self.metrics.close()
