"""A job's step in every mode on the ranks that are there: predicted from what was measured, and then run."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import median

import numpy as np

from hybridmpi.planning.beside import PHASES, Comparison, Measured
from hybridmpi.planning.decide import possible_ways
from hybridmpi.planning.drawn import touched_rows
from hybridmpi.planning.machine import Machine
from hybridmpi.planning.measured import measure_machine
from hybridmpi.planning.modes import Mode
from hybridmpi.planning.predict import Prediction
from hybridmpi.planning.report import Outlook
from hybridmpi.planning.workload import Dense, Sparse, Workload
from hybridmpi.training.adaptive import transport_of
from hybridmpi.training.job import Job
from hybridmpi.training.options import dense_options, sparse_options
from hybridmpi.training.run import Run
from hybridmpi.training.trainer import StepResult, Trainer
from hybridmpi.world import World

# Steps that come first: code is loaded, memory is touched, the ranks fall into step.
WARM_UP = 3
# Steps whose rows and computing are measured, for the prediction.
PROFILED = 6


def try_modes(world: World, job: Job, steps: int, limit: float) -> Comparison:
    """Return predictions of every mode beside `steps` steps of each, the same on every rank. Collective over compute;
    the servers come along.

    The machine, the rows that steps touch and what computing takes are measured first. A mode that is predicted to
    need more than `limit` seconds for its steps, or more memory than a rank has for copies of tables, is left out.
    """
    run = Run(world, job)
    machine = measure_machine(world)
    workload, (local, together) = _profile(run, machine, steps)
    transport = transport_of(sparse_options(job), dense_options(job), local, together)

    def decide() -> tuple[Outlook, dict[Mode, str]]:
        """Return the predictions, and why modes are left out."""
        outlook = Outlook(workload, machine, transport)
        reasons = {
            mode: _why_not(prediction, workload, machine, (WARM_UP + steps) * prediction.seconds.step, limit)
            for mode, prediction in outlook.modes.items()
        }
        return outlook, {mode: why for mode, why in reasons.items() if why}

    # By one rank, with all its predictions: they decide what all ranks run together.
    outlook, left_out = world.from_root(decide)
    run_modes = {mode: prediction for mode, prediction in outlook.modes.items() if mode not in left_out}
    measured = {mode: _run(run, mode, prediction, steps) for mode, prediction in run_modes.items()}
    return Comparison(outlook, measured, left_out, steps)


def _why_not(prediction: Prediction, workload: Workload, machine: Machine, seconds: float, limit: float) -> str | None:
    """Return why a mode is not to run; None if it is."""
    if seconds > limit:
        return f"it would take {seconds:,.0f} s, more than {limit:g} (--limit)"
    for table in workload.tables:
        if prediction.ways[table.name] not in possible_ways(table, machine):
            return f"table '{table.name}' is not to be copied to every rank"
    return None


def _profile(run: Run, machine: Machine, steps: int) -> tuple[Workload, tuple[bool, bool]]:
    """Return what a step does: the rows of the `steps` steps that will run, and how long computing takes, from steps
    with the tables at their owners; and whether ranks of any node push rows together, and pull them. Collective over
    compute."""
    world, trainer = run.world, _open(run, "hybrid", {})
    touched: list[list[np.ndarray]] = []
    results = []
    batches = run.batches(0)
    for _ in range(WARM_UP + max(steps, PROFILED)):
        results.append(trainer.train_step(next(batches, None)))
        touched.append([rows.indices for rows in trainer.exchange.gradients])
    results, touched = results[WARM_UP:], touched[WARM_UP : WARM_UP + steps]
    slots = len(run.job.optimizer.slots)
    dense = tuple(Dense(name, p.shape, np.dtype(p.dtype).name, slots) for name, p in run.model.named_parameters())
    tables, rows = [], {}
    for number in range(len(trainer.tables)):
        spec = trainer.exchange.specs[number]
        tables.append(
            Sparse(spec.name, spec.rows, spec.dim, spec.dtype.name, slots, (), spec.partition, spec.homes or None)
        )
        everybody = world.gather([step[number] for step in touched])
        rows[spec.name] = touched_rows(everybody, spec.map(len(world.owners)), _nodes(world))
    # [ranks, steps]
    computing = np.array(world.gather([_computing(result) for result in results]))
    mean = computing.mean(axis=0)
    seconds, lag = (
        median(mean.tolist()) / machine.crowding(machine.ranks),
        median((computing.max(axis=0) - mean).tolist()),
    )
    examples = float(np.mean([result.examples for result in results[:steps]]))
    client = trainer.service.client
    ways = any(world.gather(client.node_sum is not None)), any(world.gather(client.node_pull is not None))
    _close(trainer)
    clip = run.job.training.clip > 0
    return Workload(dense, tuple(tables), rows, seconds, lag, clip=clip, units=examples, unit=run.task.unit), ways


def _nodes(world: World) -> list[list[int]]:
    """Return the compute ranks of each node, as numbers among the compute ranks."""
    return [[n for n, rank in enumerate(world.clients) if world.node_of[rank] == node] for node in range(world.nodes)]


def _computing(result: StepResult) -> float:
    return sum(result.seconds[phase] for phase in PHASES["compute"])


def _run(run: Run, mode: Mode, prediction: Prediction, steps: int) -> Measured:
    """Return what steps of a mode took, its parameters on the ways of the prediction. Collective over compute."""
    world = run.world
    ways = dict(prediction.ways) if mode == "hybrid" else {}
    trainer = _open(run, mode, ways)
    batches = run.batches(0)
    results = [trainer.train_step(next(batches, None)) for _ in range(WARM_UP + steps)][WARM_UP:]
    _close(trainer)
    mine = [
        (
            result.total_seconds,
            [sum(result.seconds.get(name, 0.0) for name in names) for names in PHASES.values()],
            list(result.bytes.values()),
        )
        for result in results
    ]
    everybody = world.gather(mine)
    # Ranks are in step: what one of them takes longer in one step, it or another takes less in the next.
    step = median(np.mean([[entry[0] for entry in rank] for rank in everybody], axis=0).tolist())
    phases = np.median([[entry[1] for entry in rank] for rank in everybody], axis=1).mean(axis=0).tolist()
    counted = np.mean([[entry[2] for entry in rank] for rank in everybody], axis=(0, 1)).tolist()
    seconds = dict(zip(PHASES, phases, strict=True))
    return Measured(step, seconds, dict(zip(results[0].bytes, counted, strict=True)))


def _open(run: Run, mode: Mode, ways: Mapping[str, Mode]) -> Trainer:
    """Return a trainer that leaves every parameter on its way, and whose rows come from other nodes by messages, as
    they do in predictions. Collective over compute."""
    run.model.initialise(run.job.training.seed)  # every mode begins anew
    trainer = run.open_trainer(mode, ways, staleness=0, adapt_every=0)
    client = trainer.service.client
    client.paths = ["message" if path == "get" else path for path in client.paths]
    return trainer


def _close(trainer: Trainer) -> None:
    """Free a trainer when the owners are done with its last step. Collective over compute."""
    trainer.service.client.wait_for_version()
    trainer.close()
