"""Runs of the train command on a text that a small model learns, and what they leave behind."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from launching import Outcome, run_mpi
from texts import write_text

from hybridmpi.checkpoint import Checkpoint
from hybridmpi.cli.main import main as hybridmpi

JOB = """
[model]
width = 32
hidden = 32
softmax = "full"
[data]
source = "{folder}/text.txt"
cache = "{folder}/cache"
held_out = 0.05
streams = 12
steps = 10
[optimizer]
kind = "adagrad"
rate = 0.2
initial = 0.001
[training]
steps = 24
evaluate = 0
progress = 0
[checkpoint]
directory = "{folder}/run"
[metrics]
path = "{folder}/run.jsonl"
"""
TIMEOUT = 120


def write_job(folder: Path) -> Path:
    """Write the text and the job that trains on it; return the job file."""
    write_text(folder / "text.txt")
    job = folder / "job.toml"
    job.write_text(JOB.format(folder=folder))
    return job


@dataclass
class Run:
    """A run that has ended: its outcome, its checkpoints' directory and the lines of its metrics file."""

    outcome: Outcome
    directory: Path
    lines: list[dict]

    def of_kind(self, kind: str) -> list[dict]:
        """Return the metrics lines of one kind."""
        return [line for line in self.lines if line["kind"] == kind]

    @property
    def losses(self) -> list[float]:
        """The loss of every step, in order."""
        return [line["loss"] for line in self.of_kind("step")]

    def checkpoint(self) -> Checkpoint:
        """Open the newest checkpoint."""
        return Checkpoint.open(self.directory)


def arguments(job: Path, name: str, *sets: str, resume: Path | str | None = None, fresh: bool = False) -> list[str]:
    """Return the arguments of a Python that trains `job` into its own directory `name`; resume="": the newest there."""
    sets = (f"checkpoint.directory={job.parent / name}", f"metrics.path={job.parent / name}.jsonl", *sets)
    resuming = ["--fresh"] if fresh else [] if resume is None else ["--resume", *filter(None, [str(resume)])]
    return ["-m", "hybridmpi", "train", str(job), *(part for s in sets for part in ("--set", s)), *resuming]


def finished(job: Path, name: str, outcome: Outcome) -> Run:
    """Return the run `name` with what it left."""
    metrics = job.parent / f"{name}.jsonl"
    lines = [json.loads(line) for line in metrics.read_text().splitlines()] if metrics.exists() else []
    return Run(outcome, job.parent / name, lines)


def train(
    job: Path,
    name: str,
    ranks: int,
    *sets: str,
    resume: Path | str | None = None,
    code: int | None = 0,
    fresh: bool = False,
) -> Run:
    """Train on so many ranks and return the run; fail unless it ends with `code` (None: any), leaving no process."""
    outcome = run_mpi(ranks, arguments(job, name, *sets, resume=resume, fresh=fresh), TIMEOUT)
    assert code in (outcome.code, None) and outcome.left == (), str(outcome)
    return finished(job, name, outcome)


def assert_whole(path: Path) -> None:
    """`hybridmpi inspect --verify` finds every byte of the newest checkpoint below `path` as it was written."""
    assert hybridmpi(["inspect", "--verify", str(path)]) == 0


def arrays_of(checkpoint: Checkpoint) -> dict[str, np.ndarray]:
    """Return everything that a checkpoint holds: dense parameters, tables, the state of both, what is carried."""
    values, state = checkpoint.read_dense()
    found = {f"dense {name}": array for name, array in values.items()}
    found |= {f"{slot} of {name}": array for slot, arrays in state.items() for name, array in arrays.items()}
    for name, table in checkpoint.tables.items():
        values, state = checkpoint.read_rows(name, 0, 1, table.rows)
        found |= {f"table {name}": values, **{f"{slot} of {name}": array for slot, array in state.items()}}
    return found | {f"carried {name}": array for name, array in checkpoint.carried().items()}
