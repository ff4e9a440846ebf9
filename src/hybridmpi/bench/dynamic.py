"""Benchmark: training of dynamic models, whose graphs differ from instance to instance, by batch size.

Purpose     trees/s of a model trained through the Trainer, by batch size, and what share of a step scheduling takes
Parameters  model: tree-lstm on the trees of a file (data: in brackets, one a line, labels at all vertices) or on syntax
            trees, or tree-fc on complete binary trees; batch: trees of a step over all compute ranks; threads: of BLAS
            on each rank; repeats; no-eager, no-lazy, no-fusion: what the pass then does not do, to see its worth
Validated   first a step on four trees: loss and every gradient must be those that float64 gives one vertex at a time.
            After the timing the loss must have fallen
Time        a repetition trains on the same trees in the same order, in whole batches: max(128, min(512, 32 batch))
            trees for tree-lstm, max(32, 2 batch) for tree-fc. Making a batch of the trees read is part of it. It begins
            at a barrier, ends when the owners have applied the last step, and counts on the slowest rank
Scheduling  finding the rounds and preparing memory, in repetitions of their own (with a clock at every operation), over
            the median time of a step without

The same work as benchmarks/peers/tree_*.py and tree_fc_*.py: values from U(-0.1, 0.1), a loss at every vertex (tree-fc:
at the root), SGD with a rate so tiny that it changes nothing in the work.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from hybridmpi.bench.dynamic_work import FEW, FORMS, MODELS, Work, work_of
from hybridmpi.bench.measure import (
    at_least,
    limit_threads,
    phases_ms,
    require,
    row,
    server_count,
    significant,
    slowest,
    start_together,
)
from hybridmpi.data import GraphBatches
from hybridmpi.data.text_file import STANDARD_LIBRARY
from hybridmpi.errors import DataError
from hybridmpi.models.tree_lstm import CELLS
from hybridmpi.optim import SGD
from hybridmpi.roles import Servers
from hybridmpi.training.results import StepResult
from hybridmpi.training.trainer import Trainer
from hybridmpi.world import World

VALIDATION_RATE = 100.0
"""So large that what the step adds to the values does not drown in their rounding."""
TOLERANCE = 1e-3
SCHEDULING_REPEATS = 3
SAID_OF = {"tree-lstm": ("data", "cell", "width", "hidden"), "tree-fc": ("leaves", "hidden")}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `hybridmpi bench dynamic`."""
    count = at_least(1)
    parser.add_argument("--model", choices=MODELS, default=MODELS[0], help="(default %(default)s)")
    parser.add_argument(
        "--data",
        default=STANDARD_LIBRARY,
        metavar="FILE",
        help="for tree-lstm: trees in brackets, one a line; by default syntax trees of Python's standard library",
    )
    parser.add_argument("--cell", choices=CELLS, default=CELLS[0], help="of tree-lstm (default %(default)s)")
    parser.add_argument("--batch", type=count, nargs="+", default=[1, 16, 64, 256], help="(default 1 16 64 256)")
    parser.add_argument("--hidden", type=count, help="size of a state (default 150 of tree-lstm, 256 of tree-fc)")
    parser.add_argument(
        "--width", type=count, default=300, help="of a word's vector in tree-lstm (default %(default)s)"
    )
    parser.add_argument("--leaves", type=at_least(4), default=256, help="of a tree in tree-fc (default %(default)s)")
    parser.add_argument("--form", choices=FORMS, default=FORMS[0], help="of the model (default %(default)s)")
    parser.add_argument("--threads", type=count, default=1, help="of BLAS, on each rank (default %(default)s)")
    parser.add_argument("--repeats", type=count, default=7, help="timed repetitions (default %(default)s)")
    parser.add_argument("--no-eager", action="store_true", help="nothing before the rounds")
    parser.add_argument("--no-lazy", action="store_true", help="nothing after the rounds")
    parser.add_argument("--no-fusion", action="store_true", help="no generated kernels")
    parser.add_argument("--report", action="store_true", help="print what the passes of a repetition did")
    parser.add_argument(
        "--servers", type=server_count, default="per-node", metavar="N", help="or per-node (default %(default)s)"
    )


def servers(options: argparse.Namespace) -> Servers:
    """Return how many ranks hold the tables. Local."""
    return options.servers


def measure(world: World, options: argparse.Namespace) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return (parameters, rows). Collective over compute. Raises HybridMPIError when a result is wrong, UsageError or
    DataError for trees that are missing."""
    limit_threads(options.threads)
    work = work_of(options)
    for batch in options.batch:
        if work.trees(batch) > len(work.graphs):
            raise DataError(
                f"'{options.data}' has {len(work.graphs)} trees; batches of {batch} are timed on {work.trees(batch)}: "
                "give more trees, or smaller batches"
            )
    require(world, _is_right(world, work), "loss or gradients are not those of float64, one vertex at a time")
    limit_threads(options.threads)  # once more: where there is scipy, numba has loaded its BLAS meanwhile
    results = [line for batch in options.batch for line in _rows(world, work, batch, options)]
    params = {name: getattr(options, name) for name in ("model", *SAID_OF[options.model], "threads", "form")}
    off = [name for name in ("eager", "lazy", "fusion") if getattr(options, f"no_{name}")]
    return params | {"without": ", ".join(off) or "nothing"}, results


def _is_right(world: World, work: Work) -> bool:
    """Take one step on all ranks, and again on rank 0 alone in float64, one vertex after the other; return whether loss
    and gradients, which are what the steps subtracted, are alike (True elsewhere)."""
    few, model = work.graphs.select(np.arange(FEW)), work.model(np.float32)
    rank, ranks = world.compute.Get_rank(), world.compute.Get_size()
    loss, gradients = _one_step(world, model, GraphBatches(work.ready(model, few), FEW, 0, rank, ranks))
    if rank:
        return True
    oracle = work.oracle()
    with World(0, world.mpi.COMM_SELF) as alone:
        expected_loss, expected = _one_step(alone, oracle, GraphBatches(few, FEW, 0))
    return abs(loss - expected_loss) < 1e-4 * expected_loss and all(
        np.linalg.norm(gradient) > 0
        and np.linalg.norm(gradients[name] - gradient) < TOLERANCE * np.linalg.norm(gradient)
        for name, gradient in expected.items()
    )


def _one_step(world: World, model: Any, batches: GraphBatches) -> tuple[float, dict[str, np.ndarray]]:
    """Return the loss of a step, and what it subtracted from each parameter, over the rate."""
    trainer = Trainer(world, model, SGD(VALIDATION_RATE))
    before = _values(trainer)
    result = trainer.train_step(next(batches.one_pass()))
    trainer.service.client.wait_for_version()
    after = _values(trainer)
    trainer.close()
    return result.loss, {name: (array - after[name]) / VALIDATION_RATE for name, array in before.items()}


def _values(trainer: Trainer) -> dict[str, np.ndarray]:
    """Return all parameters by name in float64, tables too. Local; pulls every row."""
    dense, _ = trainer.dense_arrays()
    tables = {table.name: table.pull(np.arange(table.rows)) for table in trainer.tables}
    return {name: np.array(array, np.float64) for name, array in (dense | tables).items()}


def _rows(world: World, work: Work, batch: int, options: argparse.Namespace) -> list[dict[str, Any]]:
    """Train with one batch size; return the rate, and the share of scheduling."""
    model = work.model(np.float32)
    graphs = work.ready(model, work.graphs.select(np.arange(work.trees(batch))))
    batches = GraphBatches(graphs, batch, 0, world.compute.Get_rank(), world.compute.Get_size())
    labels = np.count_nonzero(graphs.data["label"] >= 0)
    trainer = Trainer(world, model, SGD(work.rate * labels / batches.batches_per_epoch))
    results: list[StepResult] = []

    def repetition() -> None:
        results.extend(trainer.train_step(part) for part in batches.one_pass())
        trainer.service.client.wait_for_version()

    def seconds_of(work: Callable[[], Any]) -> float:
        start_together(world)
        started = time.perf_counter()
        work()
        return slowest(world, time.perf_counter() - started)

    repetition()
    samples = [seconds_of(repetition) for _ in range(options.repeats)]
    steps = batches.batches_per_epoch
    step = float(np.median(samples)) / steps
    timed, scheduling, report = results[steps:], [], None
    for _ in range(SCHEDULING_REPEATS):
        report = work.report(model, repetition)
        scheduling.append(100 * slowest(world, report.times.scheduling / max(report.times.passes, 1)) / step)
    first, last = (sum(step.loss * step.examples for step in part) for part in (results[:steps], results[-steps:]))
    require(world, last < first, f"batch {batch}: the loss did not fall: {first} to {last}")
    trainer.close()
    if options.report and world.on_root():
        print(f"batch {batch}, a repetition on rank 0:\n{report}")
    loss = {"first": significant(first / len(graphs)), "last": significant(last / len(graphs), 8)}
    rates = [len(graphs) / seconds for seconds in samples]
    return [
        row(f"{options.form}, batch {batch}", rates, "trees/s", n=batch, phases_ms=phases_ms(timed), loss=loss),
        row(f"scheduling, batch {batch}", scheduling, "% of a step", n=batch),
    ]
