"""Benchmark: rows on their way between compute ranks and their owners.

Purpose     rows/s, over all compute ranks, of pulls and of pushes applied by Adagrad, for each way to pull rows: shared
            (memory of the node), message (request and reply), get (one indexed Get); a push is always one packed Put
Parameters  rows: unique rows of each rank and step, drawn uniformly; dim: width; table: its rows; paths; servers;
            repeats
Validated   every row pulled, on every rank, after the first and after the last push, against a float64 replica of
            the touched rows that applies all ranks' pushes
Time        a pull ends with the rows in the caller's array, a push when every owner has applied it; on the slowest
            rank. Paths take turns in one launch, each with a table of its own. "x NAME": how many times as fast as that
            path.
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np

from hybridmpi.bench.measure import alternate, at_least, ratio, require, row, server_count
from hybridmpi.errors import UsageError
from hybridmpi.optim import Adagrad
from hybridmpi.roles import Servers
from hybridmpi.sparse.service import Service
from hybridmpi.sparse.shard import initialise
from hybridmpi.sparse.spec import TableSpec
from hybridmpi.world import World

RULE = Adagrad(0.1, initial=0.1)
PATHS = ("shared", "message", "get")
# Batches of ids that a rank goes through in turn: rows do not stay in a cache from one step to the next.
BATCHES = 4


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `hybridmpi bench sparse`."""
    count = at_least(1)
    parser.add_argument("--rows", type=count, default=10_000, help="rows of each rank and step (default %(default)s)")
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
    if options.rows > options.table:
        raise UsageError(f"--rows {options.rows}: the table has only {options.table} rows")
    pushes = Pushes(world, options)
    paths = {path: Path(world, options, path, pushes) for path in _paths(world, options)}
    for path in paths.values():
        path.push()
        path.require_right()
    ways = {f"pull {name}": path.pull for name, path in paths.items()}
    ways |= {f"push {name}": path.push for name, path in paths.items()}
    seconds = alternate(world, ways, options.repeats)
    for path in paths.values():
        path.require_right()
        path.service.close()

    results = []
    moved = options.rows * world.compute.Get_size()
    for name, samples in seconds.items():
        kind, _, path = name.partition(" ")
        others = {p: ratio(samples, seconds[f"{kind} {p}"]) for p in paths if p != path} if kind == "pull" else {}
        results.append(row(name, [moved / s for s in samples], "rows/s", n=options.rows, ratio=others))
    return {"rows": options.rows, "dim": options.dim, "table": options.table, "optimizer": "adagrad"}, results


def _paths(world: World, options: argparse.Namespace) -> list[str]:
    """Return the paths to measure: shared memory reaches owners on the rank's own node only."""
    if options.paths:
        wanted = options.paths.split(",")
        if unknown := [path for path in wanted if path not in PATHS]:
            raise UsageError(f"--paths {unknown[0]}: expected some of {', '.join(PATHS)}")
        return wanted
    together = all(world.node_of[c] == world.node_of[o] for c in world.clients for o in world.owners)
    return [path for path in PATHS if together or path != "shared"]


class Pushes:
    """The row gradients of all ranks, batch by batch, and a replica of every row they touch. Local."""

    def __init__(self, world: World, options: argparse.Namespace) -> None:
        self.batches = []
        for client in range(len(world.clients)):
            random = np.random.default_rng([1, client])
            self.batches.append([
                (
                    np.sort(random.choice(options.table, options.rows, replace=False)).astype(np.int64),
                    random.standard_normal((options.rows, options.dim), dtype=np.float32),
                )
                for _ in range(BATCHES)
            ])  # fmt: skip

    def mine(self, world: World, step: int) -> tuple[np.ndarray, np.ndarray]:
        """Return this rank's (ids, values) of a step."""
        return self.batches[world.compute.Get_rank()][step % BATCHES]

    def replica(self, spec: TableSpec, steps: int) -> np.ndarray:
        """Return the table after `steps` steps as [rows, dim]: mean of all ranks' pushes, Adagrad, in float64."""
        values = np.empty((spec.rows, spec.dim), spec.dtype)
        initialise(values, spec, 0, 1)
        touched = np.unique(np.concatenate([ids for client in self.batches for ids, _ in client]))
        rows = values[touched].astype(np.float64)
        accumulator = np.full_like(rows, RULE.initial)
        sums = []
        for batch in range(BATCHES):
            total = np.zeros_like(rows)
            for client in self.batches:
                ids, gradients = client[batch]
                total[np.searchsorted(touched, ids)] += gradients
            sums.append(total / len(self.batches))
        for step in range(steps):
            gradient = sums[step % BATCHES]
            accumulator += gradient**2
            rows -= RULE.rate * gradient / (np.sqrt(accumulator) + RULE.epsilon)
        values[touched] = rows
        return values


class Path:
    """A table of its own whose rows are pulled one way. Collective over compute."""

    def __init__(self, world: World, options: argparse.Namespace, name: str, pushes: Pushes) -> None:
        self.world, self.name, self.pushes = world, name, pushes
        self.spec = TableSpec(
            "rows", options.table, options.dim, np.dtype("f4"), ("uniform", -1.0, 1.0), "mean", "cyclic", RULE, 1
        )
        self.service = Service.open(world, [self.spec], name)
        self.client = self.service.client
        self.pulls = 0

    def pull(self) -> np.ndarray:
        """Pull the rows of the next batch."""
        self.pulls += 1
        ids, _ = self.pushes.mine(self.world, self.pulls)
        return self.client.pull(0, ids)

    def push(self) -> None:
        """Push the next batch and wait until it is applied."""
        ids, values = self.pushes.mine(self.world, self.client.pushed)
        self.client.push([(0, ids, values)], 1.0)
        self.client.wait_for_version()

    def require_right(self) -> None:
        """Compare every touched row of this rank, pulled, with the replica."""
        expected = self.pushes.replica(self.spec, self.client.pushed)
        right = True
        for batch in range(BATCHES):
            ids, _ = self.pushes.mine(self.world, batch)
            right = right and np.allclose(self.client.pull(0, ids), expected[ids], rtol=1e-4, atol=1e-4)
        require(self.world, right, f"rows pulled by {self.name} after {self.client.pushed} pushes")
