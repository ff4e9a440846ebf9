"""Benchmark: rows on their way between compute ranks and their owners.

Purpose     rows/s, over all compute ranks, of pulls, of pushes applied by Adagrad, and of steps (duplicates merged,
            rows pulled, rows pushed and applied), for each way to pull rows: shared (memory of the node), message
            (request and reply), get (one indexed Get); a push is always one packed Put. Beside them a plain gather
            of as many rows out of an array of each rank's own
Parameters  rows: rows that each rank draws for a step; zipf: exponent of their frequencies, the frequent ones scattered
            over the table, as in benchmarks/peers/sparse_push.py (0: drawn uniformly, each at most once); dim: width;
            table: its rows; paths; servers; repeats
Validated   every row pulled, on every rank, after the first and after the last push, against a float64 replica of
            the touched rows that applies all ranks' pushes
Time        a pull ends with the rows in the caller's array, a push and a step when every owner has applied it; on the
            slowest rank. Paths take turns in one launch, each with a table of its own. A step counts every row drawn,
            duplicates included; a pull, a push and a gather count the distinct rows, which are what they move.
            "x NAME": how many times as fast as that path, or as the gather.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hybridmpi import kernels
from hybridmpi.bench.measure import alternate, at_least, ratio, require, row, server_count
from hybridmpi.bench.zipf import zipf_ids
from hybridmpi.errors import UsageError
from hybridmpi.field_types import Amount, argument
from hybridmpi.optim import Adagrad
from hybridmpi.roles import Servers
from hybridmpi.sparse.service import Service
from hybridmpi.sparse.shard import initialise
from hybridmpi.sparse.spec import TableSpec
from hybridmpi.world import World

RULE = Adagrad(0.1, initial=0.1)
PATHS = ("shared", "message", "get")
# Batches of ids that a rank goes through in turn: rows do not stay in a cache from one step to the next.
BATCHES = 8
SEED = 1


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `hybridmpi bench sparse`."""
    count = at_least(1)
    parser.add_argument("--rows", type=count, default=10_000, help="rows of each rank and step (default %(default)s)")
    parser.add_argument(
        "--zipf",
        type=argument(Amount),
        default=0.0,
        metavar="S",
        help="exponent of frequencies; 0: uniform, no duplicates",
    )
    parser.add_argument("--dim", type=count, default=64, help="width of a row (default %(default)s)")
    parser.add_argument("--table", type=count, default=200_000, help="rows of the table (default %(default)s)")
    parser.add_argument(
        "--paths", default="", metavar="P,P,...", help="ways to pull (default: all that these nodes allow)"
    )
    parser.add_argument("--repeats", type=count, default=7, help="timed repetitions (default %(default)s)")
    parser.add_argument(
        "--servers", type=server_count, default="per-node", metavar="N", help="or per-node (default %(default)s)"
    )


def servers(options: argparse.Namespace) -> Servers:
    """Return how many ranks hold the table. Local."""
    return options.servers


def measure(world: World, options: argparse.Namespace) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return (parameters, rows). Collective over compute. Raises HybridMPIError when a row is wrong."""
    if not options.zipf and options.rows > options.table:
        raise UsageError(f"--rows {options.rows}: the table has only {options.table} rows")
    draws = Draws(world, options)
    paths = {path: Path(world, options, path, draws) for path in _paths(world, options)}
    for path in paths.values():
        path.push()
        path.require_right()
        for _ in range(2 * BATCHES):  # shared memory is mapped when it is first read, and unmapped now and then
            path.pull()
    ways = {"gather": Gather(options, draws.mine(world)).run}
    ways |= {f"{kind} {name}": getattr(path, kind) for kind in ("pull", "push", "step") for name, path in paths.items()}
    seconds = alternate(world, ways, options.repeats)
    for path in paths.values():
        path.require_right()
        path.service.close()

    results = []
    drawn = options.rows * world.compute.Get_size()
    for name, samples in seconds.items():
        kind, _, path = name.partition(" ")
        moved = drawn if kind == "step" else draws.distinct_rows
        others = [f"{kind} {p}" for p in paths if p != path] if kind == "pull" else []
        ratios = {other.removeprefix("pull "): ratio(samples, seconds[other]) for other in others}
        if kind == "pull":
            ratios["gather"] = ratio(samples, seconds["gather"])
        results.append(row(name, [moved / s for s in samples], "rows/s", n=options.rows, ratio=ratios))
    params = {name: getattr(options, name) for name in ("rows", "zipf", "dim", "table")}
    return params | {"distinct": round(draws.distinct_rows), "optimizer": "adagrad"}, results


def _paths(world: World, options: argparse.Namespace) -> list[str]:
    """Return the paths to measure: shared memory reaches owners on the rank's own node only."""
    if options.paths:
        wanted = options.paths.split(",")
        if unknown := [path for path in wanted if path not in PATHS]:
            raise UsageError(f"--paths {unknown[0]}: expected some of {', '.join(PATHS)}")
        return wanted
    together = all(world.node_of[c] == world.node_of[o] for c in world.clients for o in world.owners)
    return [path for path in PATHS if together or path != "shared"]


@dataclass(frozen=True)
class Batch:
    """What one rank draws for one step: ids int64[n], which may repeat, and a gradient row for each, [n, dim]; and what
    becomes of them when duplicates are merged, `distinct` int64[u] sorted and `sums` [u, dim]."""

    ids: np.ndarray
    gradients: np.ndarray
    distinct: np.ndarray
    sums: np.ndarray


class Draws:
    """The batches of all ranks, and a replica of every row they touch. Local.

    With `zipf`, the ids are those of benchmarks/peers/sparse_push.py: frequent on one rank is frequent on all.
    """

    def __init__(self, world: World, options: argparse.Namespace) -> None:
        self.batches: list[list[Batch]] = []
        place = np.random.default_rng(SEED).permutation(options.table) if options.zipf else None
        for client in range(len(world.clients)):
            random = np.random.default_rng([SEED, client])
            self.batches.append([])
            for _ in range(BATCHES):
                if place is None:
                    ids = np.sort(random.choice(options.table, options.rows, replace=False)).astype(np.int64)
                else:
                    ids = zipf_ids(random, options.table, options.zipf, options.rows, place)
                gradients = random.standard_normal((options.rows, options.dim), dtype=np.float32)
                self.batches[-1].append(Batch(ids, gradients, *kernels.aggregate(ids, gradients, options.table)))
        self.distinct_rows = sum(len(batch.distinct) for client in self.batches for batch in client) / BATCHES

    def mine(self, world: World) -> list[Batch]:
        """Return this rank's batches."""
        return self.batches[world.compute.Get_rank()]

    def replica(self, spec: TableSpec, steps: int) -> np.ndarray:
        """Return the table after `steps` steps as [rows, dim]: mean of all ranks' pushes, Adagrad, in float64."""
        values = np.empty((spec.rows, spec.dim), spec.dtype)
        initialise(values, spec, 0, 1)
        touched = np.unique(np.concatenate([batch.ids for client in self.batches for batch in client]))
        rows = values[touched].astype(np.float64)
        accumulator = np.full_like(rows, RULE.initial)
        sums = []
        for step in range(BATCHES):
            total = np.zeros_like(rows)
            for client in self.batches:
                np.add.at(total, np.searchsorted(touched, client[step].ids), client[step].gradients.astype(np.float64))
            sums.append(total / len(self.batches))
        for step in range(steps):
            gradient = sums[step % BATCHES]
            accumulator += gradient**2
            rows -= RULE.rate * gradient / (np.sqrt(accumulator) + RULE.epsilon)
        values[touched] = rows
        return values


class Gather:
    """The rows of one batch after the other out of an array of this process, as large as the table. Local."""

    def __init__(self, options: argparse.Namespace, batches: Sequence[Batch]) -> None:
        self.rows, self.batches = np.ones((options.table, options.dim), np.float32), batches
        self.done = 0

    def run(self) -> np.ndarray:
        """Gather the next batch's distinct rows."""
        self.done += 1
        return kernels.gather(self.rows, self.batches[self.done % BATCHES].distinct)


class Path:
    """A table of its own whose rows are pulled one way. Collective over compute."""

    def __init__(self, world: World, options: argparse.Namespace, name: str, draws: Draws) -> None:
        self.world, self.name, self.draws = world, name, draws
        self.batches = draws.mine(world)
        self.spec = TableSpec(
            "rows", options.table, options.dim, np.dtype("f4"), ("uniform", -1.0, 1.0), "mean", "cyclic", RULE, 1
        )
        self.service = Service.open(world, [self.spec], name)
        self.client = self.service.client
        self.pulls = 0

    def pull(self) -> np.ndarray:
        """Pull the distinct rows of the next batch."""
        self.pulls += 1
        return self.client.pull(0, self.batches[self.pulls % BATCHES].distinct)

    def push(self) -> None:
        """Push the next batch, merged, and wait until it is applied."""
        batch = self.batches[self.client.pushed % BATCHES]
        self.client.push([(0, batch.distinct, batch.sums)], 1.0)
        self.client.wait_for_version()

    def step(self) -> np.ndarray:
        """Do what a step with an Embedding does with the next batch's rows: find the distinct ones, pull them, sum the
        gradients of each, push these, and wait until they are applied."""
        batch = self.batches[self.client.pushed % BATCHES]
        distinct, positions = kernels.unique_inverse(batch.ids, self.spec.rows)
        rows = self.client.pull(0, distinct)
        sums = kernels.position_sums(batch.gradients, positions, len(distinct))
        self.client.push([(0, distinct, sums)], 1.0)
        self.client.wait_for_version()
        return rows

    def require_right(self) -> None:
        """Compare every touched row of this rank, pulled, with the replica."""
        expected = self.draws.replica(self.spec, self.client.pushed)
        right = True
        for batch in self.batches:
            pulled = self.client.pull(0, batch.distinct)
            right = right and np.allclose(pulled, expected[batch.distinct], rtol=1e-4, atol=1e-4)
        require(self.world, right, f"rows pulled by {self.name} after {self.client.pushed} pushes")
