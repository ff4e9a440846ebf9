"""The workload of a job that does not run: what its steps do on a machine that need not be there."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice
from statistics import median

from hybridmpi.errors import UsageError
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

# Batches that are drawn in all: of many ranks fewer steps, whose sums scatter less; and at least one step, which takes
# half a minute for so many ranks.
MOST_BATCHES, MOST_RANKS = 1 << 12, 1 << 14

# Steps that are measured, after others in which code is loaded and memory is touched.
MEASURED_STEPS, MEASURED_AFTER = 8, 4


def plan_job(job: Job, machine: Machine, measure: bool, steps: int = DRAWN_STEPS) -> Workload:
    """Return what the job does in a step on `machine`, from the batches of its first `steps` steps, or fewer of many
    ranks. Local.

    Computing takes what `machine.flops` says; with `measure` what steps of one rank take in this process, which
    initialises MPI.
    """
    ranks = machine.ranks
    task = task_of(job.model.kind)(job)
    steps = max(1, min(steps, MOST_BATCHES // ranks))
    batches = [list(islice(task.batches(0, rank, ranks), steps)) for rank in range(ranks)]
    drawn = draw_steps(task.model, batches, job.training.seed)
    dense, tables = describe_model(task.model, len(job.optimizer.slots), job.sparse.partition)
    if parts := job.sparse.parts:
        tables = tuple(
            replace(t, homes=in_turn(number, parts, machine.owners, t.rows)) for number, t in enumerate(tables)
        )
    touched = {table.name: drawn.touched(table, machine) for table in tables}
    mean = drawn.flops.mean(axis=0)
    rate = _measured_flops(task, ranks) if measure else machine.flops
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


def require_drawable(ranks: int) -> None:
    """Raise UsageError for more ranks than a plan can draw a step of. Local."""
    if ranks > MOST_RANKS:
        raise UsageError(
            f"a plan for {ranks:,} compute ranks: expected {MOST_RANKS:,} at most, since what a step of all touches "
            "is found by drawing that many batches; plan for fewer ranks, and see by 2 or 3 sizes how the step grows"
        )


def _measured_flops(task: Task, ranks: int) -> float:
    """Return how many additions and multiplications of its steps the first of so many ranks does in a second, in this
    process."""
    steps = MEASURED_AFTER + MEASURED_STEPS
    drawn = draw_steps(task.model, [list(islice(task.batches(0, 0, ranks), steps))], task.job.training.seed)
    with World(servers=0) as world:
        trainer = Trainer(world, task.model, task.job.optimizer, seed=task.job.training.seed)
        seconds = []
        trainer.fit(
            task.batches(0, 0, ranks),
            steps,
            lambda result: seconds.append(result.seconds["forward"] + result.seconds["backward"]),
        )
        trainer.close()
    rates = [done / taken for done, taken in zip(drawn.flops[0], seconds, strict=False)]
    return median(rates[MEASURED_AFTER:])
