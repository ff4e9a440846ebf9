"""Benchmark: training on trees that the model itself draws, so that values decide the structure, in batches.

Purpose     trees/s of a step (draw, loss, backward, update) of the top-down Tree-LSTM by batch size, with all calls
            that wait together run as batches, and of the same program one call after the other
Parameters  batch: trees of a step on each compute rank; levels: how many a tree has at most; hidden; repeats; threads:
            of BLAS on each rank
Validated   before: loss and every gradient of a few trees in float64 must be those of one call after the other, on
            every rank
Time        steps through the Trainer, on the same trees, both ways in turn; on the slowest rank. A vertex has two
            children with probability 3/4, else none: trees of 8 levels have 49 vertices in the mean
"""

from __future__ import annotations

import argparse
from typing import Any, NamedTuple

import numpy as np

from hybridmpi.autograd import Tensor
from hybridmpi.bench.measure import alternate, at_least, limit_threads, ratio, require, row, server_count
from hybridmpi.models.draws import below
from hybridmpi.models.td_tree_lstm import MOST_CHILDREN, TopDownTreeLSTM
from hybridmpi.optim import SGD
from hybridmpi.roles import Servers
from hybridmpi.training.trainer import Trainer
from hybridmpi.world import World

KINDS, WIDTH = 50, 64
RATE = 1e-5
"""So small that the trees stay as they are."""
FEW = 3
TOLERANCE = 1e-9


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `hybridmpi bench growing`."""
    count = at_least(1)
    parser.add_argument("--batch", type=count, nargs="+", default=[16, 64, 256], help="(default 16 64 256)")
    parser.add_argument("--levels", type=count, default=8, help="of a tree (default %(default)s)")
    parser.add_argument("--hidden", type=count, default=150, help="size of a state (default %(default)s)")
    parser.add_argument("--threads", type=count, default=1, help="of BLAS, on each rank (default %(default)s)")
    parser.add_argument("--repeats", type=count, default=7, help="timed repetitions (default %(default)s)")
    parser.add_argument(
        "--servers", type=server_count, default="per-node", metavar="N", help="or per-node (default %(default)s)"
    )


def servers(options: argparse.Namespace) -> Servers:
    """Return how many ranks hold the tables. Local."""
    return options.servers


class _Trees(NamedTuple):
    """What one step draws: a tree for each of `seeds`."""

    seeds: list[int]
    levels: int
    policy: str

    @property
    def weight(self) -> int:
        return len(self.seeds)


class _Growing(TopDownTreeLSTM):
    """Learns the trees that it draws."""

    vertices = 0

    def loss(self, batch: _Trees) -> Tensor:
        """Return the negative log likelihood of trees just drawn, a mean over their vertices."""
        seeds, levels, policy = batch
        drawn = self.tree.over(seeds, [levels] * len(seeds), policy=policy)
        self.vertices = len(drawn.label)
        return self.told(drawn)


def measure(world: World, options: argparse.Namespace) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return (parameters, rows). Collective over compute. Raises HybridMPIError when a result is wrong."""
    limit_threads(options.threads)
    require(world, _is_right(world, options), "loss or gradients are not those of one call after the other")
    limit_threads(options.threads)  # once more: where there is scipy, numba has loaded its BLAS meanwhile
    results = [line for batch in options.batch for line in _rows(world, batch, options)]
    return {name: getattr(options, name) for name in ("levels", "hidden", "threads")}, results


def _trainer(world: World, model: _Growing) -> Trainer:
    trainer = Trainer(world, model, SGD(RATE))
    # Of the logits' biases the last are those of the number of children.
    counts = model.output.bias.data[-MOST_CHILDREN - 1 :]
    counts[...] = -30.0
    counts[0], counts[MOST_CHILDREN] = np.log(0.25), np.log(0.75)
    return trainer


def _seeds(world: World, batch: int) -> list[int]:
    return [below(world.compute.Get_rank(), tree) for tree in range(batch)]


def _is_right(world: World, options: argparse.Namespace) -> bool:
    """Return whether both ways give the same loss and gradients of dense parameters."""
    model = _Growing(KINDS, WIDTH, options.hidden, np.float64)
    trainer, found = _trainer(world, model), []
    for policy in ("serial", "batched", "batched"):  # twice: the first finds out what the functions return
        model.loss(_Trees(_seeds(world, FEW), min(options.levels, 6), policy)).backward()
        table = model.kinds.take_gradient()
        gradients = {name: parameter.grad.copy() for name, parameter in model.named_parameters()}
        gradients["kinds"] = table.values.copy()
        for parameter in model.parameters():
            parameter.begin_step()
        found.append(gradients)
    trainer.close()
    expected = found[0]
    return all(
        part[name].shape == expected[name].shape
        and np.linalg.norm(part[name] - expected[name]) <= TOLERANCE * np.linalg.norm(expected[name])
        for part in found[1:]
        for name in expected
    )


def _rows(world: World, batch: int, options: argparse.Namespace) -> list[dict[str, Any]]:
    model = _Growing(KINDS, WIDTH, options.hidden)
    trainer, seeds = _trainer(world, model), _seeds(world, batch)

    def step(policy: str) -> Any:
        return lambda: trainer.train_step(_Trees(seeds, options.levels, policy))

    seconds = alternate(world, {policy: step(policy) for policy in ("batched", "serial")}, options.repeats)
    trainer.close()
    trees, vertices = (sum(part) for part in zip(*world.gather((batch, model.vertices)), strict=True))
    size = {"vertices of a tree": round(vertices / trees, 1)}
    rates = {policy: [trees / one for one in samples] for policy, samples in seconds.items()}
    return [
        row(
            f"batch {batch}", rates["batched"], "trees/s", n=batch, trees=size,
            ratio={"one call after the other": ratio(seconds["batched"], seconds["serial"])},
        ),
        row(f"batch {batch}, one call after the other", rates["serial"], "trees/s", n=batch),
    ]  # fmt: skip
