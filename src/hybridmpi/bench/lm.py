"""Benchmark: training steps of the language model, its tables on servers and its LSTM in all-reduce buckets.

Purpose     words/s over all compute ranks of models.lm.LanguageModel through the Trainer, where the time of a step
            goes, and the bytes it moves
Parameters  vocab, width, hidden, samples: the model; batch x steps: words of each rank's step; zipf: exponent of the
            drawn words' frequencies; repeats x steps_per_repeat timed training steps after some that are not; servers;
            mode, parts: how gradients travel, and into how many parts tables are dealt
Validated   first a small model trained by the same code must end where one process ends that trains on all ranks'
            words; afterwards all ranks must hold the same bits of the dense parameters, and over 30 steps or more the
            loss must have fallen
Time        a repetition begins at a barrier and ends when the owners have applied its last step; it counts on the
            slowest rank. Drawing the words is part of it. Phases are compute rank 0's.

The same work as benchmarks/peers/lm_ddp.py: model, words, Adagrad(0.1, initial 0.1). One thing differs: candidates are
drawn once for all ranks, where the peers draw them for each.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from hashlib import blake2b
from typing import Any, get_args

import numpy as np

from hybridmpi.bench.measure import (
    at_least,
    phases_ms,
    require,
    row,
    server_count,
    significant,
    slowest,
    start_together,
)
from hybridmpi.data import Batch, ZipfStreams
from hybridmpi.field_types import Amount, argument
from hybridmpi.models.lm import LanguageModel
from hybridmpi.optim import Adagrad
from hybridmpi.planning.modes import MODES
from hybridmpi.roles import Servers
from hybridmpi.sparse.node_sum import Aggregate
from hybridmpi.training.tables import SparseOptions
from hybridmpi.training.trainer import StepResult, Trainer
from hybridmpi.world import World

RATE, INITIAL = 0.1, 0.1
# A loss over fewer steps than these may rise by the words that were drawn.
SHOWING_STEPS = 30
# The model that one process can train too, and how long: enough for an error of the exchange to show.
SMALL = {"vocab": 300, "width": 8, "hidden": 16, "samples": 32, "batch": 4, "steps": 5}
SMALL_STEPS = 4
# The arguments that the result repeats.
SAID = (
    "vocab",
    "width",
    "hidden",
    "samples",
    "batch",
    "steps",
    "zipf",
    "steps_per_repeat",
    "mode",
    "parts",
    "aggregate",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `hybridmpi bench lm`."""
    count = at_least(1)
    parser.add_argument("--vocab", type=count, default=100_000, help="rows of both tables (default %(default)s)")
    parser.add_argument("--width", type=count, default=128, help="of a word's vector (default %(default)s)")
    parser.add_argument("--hidden", type=count, default=256, help="LSTM cells (default %(default)s)")
    parser.add_argument("--samples", type=count, default=1024, help="candidates of a step (default %(default)s)")
    parser.add_argument("--batch", type=count, default=32, help="streams of each rank (default %(default)s)")
    parser.add_argument("--steps", type=count, default=20, help="words of a stream in a step (default %(default)s)")
    parser.add_argument(
        "--zipf", type=argument(Amount), default=1.1, help="exponent of word frequencies (default %(default)s)"
    )
    parser.add_argument("--repeats", type=count, default=7, help="timed repetitions (default %(default)s)")
    parser.add_argument("--warm-up", type=count, default=3, help="steps before the first (default %(default)s)")
    parser.add_argument("--steps-per-repeat", type=count, default=5, help="training steps of one (default %(default)s)")
    parser.add_argument(
        "--servers", type=server_count, default="per-node", metavar="N", help="or per-node (default %(default)s)"
    )
    parser.add_argument("--mode", choices=MODES, default="hybrid", help="(default %(default)s)")
    parser.add_argument(
        "--aggregate",
        choices=get_args(Aggregate),
        default="auto",
        help="whether a node's ranks push and pull rows together (default %(default)s)",
    )
    parser.add_argument(
        "--parts", type=at_least(0), default=0, help="of each table; 0: one for each owner (default %(default)s)"
    )


def servers(options: argparse.Namespace) -> Servers:
    """Return how many ranks hold the tables. Local."""
    return options.servers


def measure(world: World, options: argparse.Namespace) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return (parameters, rows). Collective over compute. Raises HybridMPIError when a result is wrong."""
    require(world, _small_model_is_right(world, options), "the small model does not end where one process ends")
    ranks = world.compute.Get_size()
    sizes = {name: getattr(options, name) for name in ("vocab", "width", "hidden", "samples")}
    trainer = _trainer(world, sizes, options)
    words = ZipfStreams(
        options.vocab, options.zipf, ranks * options.batch, options.steps, 1, world.compute.Get_rank(), ranks
    )
    batches = iter(words)
    results = _train(trainer, batches, options.warm_up)
    before, rates, steps = _busy_seconds(trainer), [], options.steps_per_repeat
    for _ in range(options.repeats):
        start_together(world)
        started = time.perf_counter()
        results += _train(trainer, batches, steps)
        seconds = slowest(world, time.perf_counter() - started)
        rates.append(ranks * options.batch * options.steps * steps / seconds)
    busy = [after - first for after, first in zip(_busy_seconds(trainer), before, strict=True)]

    losses = [result.loss for result in results]
    first, last = np.mean(losses[:5]), np.mean(losses[-5:])
    if len(losses) >= SHOWING_STEPS:
        require(world, last < first, f"the loss did not fall: {first:.4f} to {last:.4f}")
    digest = blake2b(b"".join(bucket.values.tobytes() for bucket in trainer.buckets)).hexdigest()
    require(world, len(set(world.gather(digest))) == 1, "the ranks hold different dense parameters")
    trainer.close()

    timed = results[options.warm_up :]
    params = {name: getattr(options, name) for name in SAID}
    result = row(
        "words",
        rates,
        "words/s",
        n=options.batch * options.steps * ranks,
        phases_ms=phases_ms(timed) | {"server busy": significant(max(busy) / len(timed) * 1e3, 3)},
        bytes_per_step={name: round(sum(r.bytes[name] for r in timed) / len(timed)) for name in timed[0].bytes},
        loss={"first": significant(first), "last": significant(last)},
    )
    return params, [result]


def _trainer(world: World, sizes: dict[str, int], options: argparse.Namespace) -> Trainer:
    sparse = SparseOptions(parts=options.parts, aggregate=options.aggregate, adapt_every=0)
    return Trainer(world, LanguageModel(**sizes), Adagrad(RATE, INITIAL), mode=options.mode, sparse=sparse)


def _train(trainer: Trainer, batches: Iterator[Batch], steps: int) -> list[StepResult]:
    """Train for some steps and wait until the owners have applied the last one."""
    results = [trainer.train_step(next(batches)) for _ in range(steps)]
    trainer.service.client.wait_for_version()
    return results


def _busy_seconds(trainer: Trainer) -> list[float]:
    """Return how long each owner of rows has worked so far. Collective over compute."""
    return [answer["busy_seconds"] for answer in trainer.service.call("statistics")]


def _small_model_is_right(world: World, options: argparse.Namespace) -> bool:
    """Train a small model on all ranks, and again on rank 0 alone; return whether both end alike (True elsewhere)."""
    sizes = {name: SMALL[name] for name in ("vocab", "width", "hidden", "samples")}
    ranks, rank = world.compute.Get_size(), world.compute.Get_rank()

    def words(of_rank: int) -> Iterator[Batch]:
        return iter(ZipfStreams(SMALL["vocab"], 1.1, ranks * SMALL["batch"], SMALL["steps"], 1, of_rank, ranks))

    trainer = _trainer(world, sizes, options)
    _train(trainer, words(rank), SMALL_STEPS)
    found = _parameters(trainer)
    trainer.close()
    if rank:
        return True
    with World(0, world.mpi.COMM_SELF) as alone:
        reference = _trainer(alone, sizes, options)
        _train(reference, _side_by_side([words(of_rank) for of_rank in range(ranks)]), SMALL_STEPS)
        expected = _parameters(reference)
    return found.keys() == expected.keys() and all(
        np.allclose(found[name], expected[name], rtol=1e-4, atol=1e-6) for name in expected
    )


def _side_by_side(parts: list[Iterator[Batch]]) -> Iterator[Batch]:
    """Yield the batches of several ranks as one: their streams below each other."""
    while True:
        batches = [next(part) for part in parts]
        yield Batch(
            np.concatenate([batch.inputs for batch in batches]),
            np.concatenate([batch.targets for batch in batches]),
            0,
            batches[0].position,
            batches[0].new_epoch,
        )


def _parameters(trainer: Trainer) -> dict[str, np.ndarray]:
    """Return all parameters by name, tables too. Local; pulls every row."""
    dense, _ = trainer.dense_arrays()
    tables = {table.name: table.pull(np.arange(table.rows)) for table in trainer.tables}
    return {name: array.copy() for name, array in (dense | tables).items()}
