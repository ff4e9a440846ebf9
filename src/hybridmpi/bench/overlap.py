"""Benchmark: what it brings that sums of dense gradients begin while backward is at work.

Purpose     time of a training step with and without overlap; time that sums take after backward ("exposed") and in it
            ("in backward": this rank's own work on them), and how long they are under way meanwhile ("hidden")
Parameters  model: mlp, 8 linear layers of `width` x `width`, 64 MB by default, `batch` examples a rank; lm, the model
            of `bench lm` with `vocab` words; first bucket and others, MiB, as in "mlp 1+4 MiB"; repeats x
            steps_per_repeat timed steps; servers
Validated   trainers with and without overlap must end with the same bits of the dense parameters, on all ranks, and
            the loss must have fallen
Time        trainers take turns, a block of steps each; a block begins at a barrier, ends when the owners have applied
            its last step, and counts on the slowest rank. Phases are means over its steps and over all ranks.
            "exposed" of the trainer without overlap is its whole all-reduce.

Every size of buckets has two trainers of its own, all in memory at once. With `--servers 0` the compute ranks hold the
tables too: all ranks that were started sum dense gradients.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from hashlib import blake2b
from typing import Any

import numpy as np

from hybridmpi import autograd, nn
from hybridmpi.bench.lm import INITIAL, RATE
from hybridmpi.bench.measure import (
    at_least,
    ratio,
    require,
    row,
    server_count,
    significant,
    slowest,
    start_together,
)
from hybridmpi.data import ZipfStreams
from hybridmpi.errors import UsageError
from hybridmpi.models.lm import LanguageModel
from hybridmpi.optim import SGD, Adagrad, Optimizer
from hybridmpi.roles import Servers
from hybridmpi.training.dense import DenseOptions
from hybridmpi.training.trainer import StepResult, Trainer
from hybridmpi.world import World

MIB = 1 << 20
WARMUP_STEPS = 3

# The layers of the MLP; its batches come round again after so many.
LAYERS, BATCHES = 8, 8
# An example of the MLP belongs to the largest of its first so many inputs.
CLASSES = 16
MLP_RATE = 0.05

# Words of a rank's step in the language model: streams x steps, as in `bench lm`.
STREAMS, STEPS, ZIPF = 32, 20, 1.1


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `hybridmpi bench overlap`."""
    count, usual = at_least(1), DenseOptions()
    parser.add_argument("--model", choices=("mlp", "lm", "both"), default="both", help="(default %(default)s)")
    parser.add_argument("--width", type=at_least(CLASSES), default=1448, help="of the MLP (default %(default)s)")
    parser.add_argument("--batch", type=count, default=64, help="examples of each rank, MLP (default %(default)s)")
    parser.add_argument("--vocab", type=at_least(1024), default=100_000, help="words of the LM (default %(default)s)")
    parser.add_argument(
        "--bucket-mib",
        type=_sizes,
        default=[usual.bucket_bytes / MIB],
        metavar="N,N,...",
        help=f"sizes of buckets (default {usual.bucket_bytes / MIB:g})",
    )
    parser.add_argument(
        "--first-bucket-mib",
        type=_sizes,
        default=[usual.first_bucket_bytes / MIB],
        metavar="N,N,...",
        help=f"of the first bucket, one for all or one for each (default {usual.first_bucket_bytes / MIB:g})",
    )
    parser.add_argument("--repeats", type=count, default=9, help="timed blocks (default %(default)s)")
    parser.add_argument("--steps-per-repeat", type=count, default=5, help="steps of one (default %(default)s)")
    parser.add_argument(
        "--servers", type=server_count, default=0, metavar="N", help="or per-node (default %(default)s)"
    )


def _sizes(text: str) -> list[float]:
    sizes = [float(part) for part in text.split(",")]
    if not all(1 / MIB <= size < float("inf") for size in sizes):
        raise ValueError
    return sizes


_sizes.__name__ = "list of sizes in MiB"  # argparse: "invalid list of sizes in MiB value"


def servers(options: argparse.Namespace) -> Servers:
    """Return how many ranks hold the tables. Local."""
    return options.servers


def measure(world: World, options: argparse.Namespace) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return (parameters, rows). Collective over compute. Raises HybridMPIError when a result is wrong."""
    if world.compute.Get_size() == 1:
        raise UsageError(
            "bench overlap with one compute rank: there is nothing to sum. Start more: hybridmpi launch -n 2 -- bench "
            "overlap (one more for each server)"
        )
    models = ("mlp", "lm") if options.model == "both" else (options.model,)
    dense = _options(world, options)
    rows = [result for name in models for result in _measure_model(world, name, options, dense)]
    params = {name: getattr(options, name) for name in ("model", "width", "batch", "vocab", "steps_per_repeat")}
    return params, rows


def _options(world: World, options: argparse.Namespace) -> list[DenseOptions]:
    """Return one DenseOptions for each bucket size, with overlap; the algorithm is fixed: what is measured at start
    could differ between two trainers, and so could their bits."""
    buckets, first = options.bucket_mib, options.first_bucket_mib
    if len(first) == 1:
        first = first * len(buckets)
    if len(first) != len(buckets):
        raise UsageError(
            f"--first-bucket-mib has {len(first)} sizes and --bucket-mib {len(buckets)}: expected 1 or both"
        )
    algorithm = "shared" if len({world.node_of[rank] for rank in world.clients}) == 1 else "ring"
    return [
        DenseOptions(algorithm=algorithm, bucket_bytes=round(size * MIB), first_bucket_bytes=round(least * MIB))
        for size, least in zip(buckets, first, strict=True)
    ]


# -- the models --------------------------------------------------------------------------------------------------------


class Layers(nn.Module):
    """Linear layers of one width with a rectifier between them; the outputs are scores of classes."""

    def __init__(self, width: int) -> None:
        self.layers = [nn.Linear(width, width) for _ in range(LAYERS)]

    def loss(self, batch: tuple[np.ndarray, np.ndarray]) -> autograd.Tensor:
        """Return the mean cross entropy over the batch (inputs [n, width], classes [n]). Local."""
        inputs, classes = batch
        x = autograd.Tensor(inputs)
        for layer in self.layers[:-1]:
            x = autograd.relu(layer(x))
        return nn.cross_entropy(self.layers[-1](x), classes)


def _mlp(world: World, options: argparse.Namespace) -> _Case:
    rng = np.random.default_rng(world.compute.Get_rank())
    inputs = rng.standard_normal((BATCHES, options.batch, options.width), np.float32)
    batches = [(x, x[:, :CLASSES].argmax(axis=1)) for x in inputs]
    return _Case(lambda: Layers(options.width), SGD(MLP_RATE), lambda: itertools.cycle(batches))


def _lm(world: World, options: argparse.Namespace) -> _Case:
    rank, ranks = world.compute.Get_rank(), world.compute.Get_size()
    return _Case(
        lambda: LanguageModel(options.vocab),
        Adagrad(RATE, INITIAL),
        lambda: iter(ZipfStreams(options.vocab, ZIPF, ranks * STREAMS, STEPS, 1, rank, ranks)),
    )


@dataclasses.dataclass(frozen=True)
class _Case:
    """What is trained: a new model, its optimiser, this rank's batches from the first one on."""

    model: Callable[[], nn.Module]
    optimizer: Optimizer
    batches: Callable[[], Iterator[Any]]


# -- measuring ---------------------------------------------------------------------------------------------------------


@dataclasses.dataclass
class _Run:
    """A trainer and what was measured of it: by block, seconds of a step, and this rank's phases of it."""

    trainer: Trainer
    batches: Iterator[Any]
    seconds: list[float] = dataclasses.field(default_factory=list)
    phases: list[dict[str, float]] = dataclasses.field(default_factory=list)
    losses: list[float] = dataclasses.field(default_factory=list)

    def train(self, world: World, steps: int) -> tuple[float, list[StepResult]]:
        """Train a block; return the seconds of the slowest rank, and the steps' results. Collective over compute."""
        batches = list(itertools.islice(self.batches, steps))
        start_together(world)
        started = time.perf_counter()
        results = [self.trainer.train_step(batch) for batch in batches]
        self.trainer.service.client.wait_for_version()
        seconds = slowest(world, time.perf_counter() - started)
        self.losses += [result.loss for result in results]
        return seconds, results

    def measure(self, world: World, steps: int) -> None:
        """Train a block and keep what it took. Collective over compute."""
        seconds, results = self.train(world, steps)
        self.seconds.append(seconds / steps)
        phases = [_phases(result) for result in results]
        self.phases.append({name: statistics.fmean(step[name] for step in phases) for name in phases[0]})


def _phases(result: StepResult) -> dict[str, float]:
    """Return the seconds of a step that are reported, in their order."""
    return {
        "exposed": result.seconds["allreduce"],
        "hidden": result.hidden_seconds,
        "in backward": result.seconds["overlap"],
        "wait": result.seconds["wait"],
        "forward": result.seconds["forward"],
        "backward": result.seconds["backward"],
    }


def _measure_model(
    world: World, name: str, options: argparse.Namespace, dense: Sequence[DenseOptions]
) -> Iterator[dict[str, Any]]:
    """Yield the rows of a model: two for each bucket size, with overlap and without. Collective over compute."""
    case = {"mlp": _mlp, "lm": _lm}[name](world, options)

    def run(how: DenseOptions, overlap: bool) -> _Run:
        how = dataclasses.replace(how, overlap=overlap)
        return _Run(Trainer(world, case.model(), case.optimizer, dense=how), case.batches())

    pairs = [(run(how, True), run(how, False)) for how in dense]
    for one in itertools.chain(*pairs):
        one.train(world, WARMUP_STEPS)
    for _ in range(options.repeats):
        for one in itertools.chain(*pairs):
            one.measure(world, options.steps_per_repeat)
    for how, (overlapping, plain) in zip(dense, pairs, strict=True):
        _validate(world, overlapping, plain)
        label = f"{name} {how.first_bucket_bytes / MIB:.3g}+{how.bucket_bytes / MIB:.3g} MiB"
        yield from _rows(world, label, overlapping, plain)
    for one in itertools.chain(*pairs):
        one.trainer.close()


def _validate(world: World, overlapping: _Run, plain: _Run) -> None:
    """Raise HybridMPIError unless both have learnt, and the same. Collective over compute."""
    for one in (overlapping, plain):
        first, last = one.losses[0], statistics.fmean(one.losses[-3:])
        require(world, last < first, f"the loss did not fall: {first:.4f} to {last:.4f}")
    digests = [_digest(one.trainer) for one in (overlapping, plain)]
    require(world, digests[0] == digests[1], "with overlap other dense parameters than without it")
    require(world, len(set(world.gather(digests[0]))) == 1, "the ranks hold different dense parameters")


def _digest(trainer: Trainer) -> str:
    return blake2b(b"".join(bucket.values.tobytes() for bucket in trainer.buckets)).hexdigest()


def _rows(world: World, label: str, overlapping: _Run, plain: _Run) -> Iterator[dict[str, Any]]:
    """Yield the two rows of a bucket size. Collective over compute."""
    buckets = overlapping.trainer.buckets
    nbytes = sum(bucket.values.nbytes for bucket in buckets)
    sizes = {"number": len(buckets), "first": buckets[0].values.nbytes}
    with_overlap, without = _over_ranks(world, overlapping.phases), _over_ranks(world, plain.phases)
    shares = [a["exposed"] / b["exposed"] for a, b in zip(with_overlap, without, strict=True)]
    yield row(
        f"{label} overlap",
        [seconds * 1e3 for seconds in overlapping.seconds],
        "ms",
        bytes=nbytes,
        ratio={"no overlap": ratio(overlapping.seconds, plain.seconds)},
        exposed={"share of the all-reduce without overlap": significant(statistics.median(shares), 3)},
        phases_ms=_medians_ms(with_overlap),
        buckets=sizes,
    )
    yield row(
        f"{label} no overlap",
        [seconds * 1e3 for seconds in plain.seconds],
        "ms",
        bytes=nbytes,
        phases_ms=_medians_ms(without),
    )


def _over_ranks(world: World, blocks: list[dict[str, float]]) -> list[dict[str, float]]:
    """Return each block's phases as the mean over all ranks. Collective over compute."""
    return [
        {name: statistics.fmean(of_rank[name] for of_rank in ranks) for name in ranks[0]}
        for ranks in zip(*world.gather(blocks), strict=True)
    ]


def _medians_ms(blocks: list[dict[str, float]]) -> dict[str, float]:
    return {name: significant(statistics.median(block[name] for block in blocks) * 1e3, 3) for name in blocks[0]}
