"""The workload of a job that does not run: what its steps do on a machine that need not be there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import islice
from statistics import median

from hybridmpi.planning.drawn import describe_model, draw_steps
from hybridmpi.planning.machine import Machine
from hybridmpi.planning.workload import Workload
from hybridmpi.training.job import Job
from hybridmpi.training.kinds import task_of
from hybridmpi.training.tables import in_turn
from hybridmpi.training.task import Task
from hybridmpi.training.trainer import Trainer
from hybridmpi.world import World

# Steps that are drawn: batches of sentences differ most, by half of their mean, which so many make 9 %.
DRAWN_STEPS = 32

# Steps that are measured, after others in which code is loaded and memory is touched.
MEASURED_STEPS, MEASURED_AFTER = 8, 4


def plan_job(job: Job, machine: Machine, measure: bool, steps: int = DRAWN_STEPS) -> Workload:
    """Return what the job does in a step on `machine`, from the batches of its first `steps` steps. Local.

    Computing takes what `machine.flops` says; with `measure` what steps of one rank take in this process, which
    initialises MPI.
    """
    task, ranks = task_of(job.model.kind)(job), machine.ranks
    batches = [list(islice(task.batches(0, rank, ranks), steps)) for rank in range(ranks)]
    drawn = draw_steps(task.model, batches, job.training.seed)
    dense, tables = describe_model(task.model, len(job.optimizer.slots), job.sparse.partition)
    if parts := job.sparse.parts:
        tables = tuple(
            replace(t, homes=in_turn(number, parts, machine.owners, t.rows)) for number, t in enumerate(tables)
        )
    touched = {table.name: drawn.touched(table, machine) for table in tables}
    mean = drawn.flops.mean(axis=0)
    rate = _measured_flops(task, drawn.flops[0], ranks) if measure else machine.flops
    return Workload(
        dense,
        tables,
        touched,
        compute_seconds=float(mean.mean()) / rate,
        lag_seconds=float((drawn.flops.max(axis=0) - mean).mean()) / rate,
        clip=job.training.clip > 0,
        units=drawn.examples_per_step,
        unit=task.unit,
    )


def _measured_flops(task: Task, flops: Sequence[float], ranks: int) -> float:
    """Return how many of the `flops` of its steps the first of so many ranks does in a second, in this process."""
    with World(servers=0) as world:
        trainer = Trainer(world, task.model, task.job.optimizer, seed=task.job.training.seed)
        seconds = []
        trainer.fit(
            task.batches(0, 0, ranks),
            min(MEASURED_AFTER + MEASURED_STEPS, len(flops)),
            lambda result: seconds.append(result.seconds["forward"] + result.seconds["backward"]),
        )
        trainer.close()
    rates = [done / taken for done, taken in zip(flops, seconds, strict=False)]
    return median(rates[MEASURED_AFTER:])
