"""Benchmark: summing the duplicate rows of a sparse gradient.

Purpose     rows/s at which n pairs (id, row of d float32) become sorted unique ids and one sum for each, by
            kernels.aggregate and by what numpy and scipy offer (scipy only where it is installed)
Parameters  rows: pairs; dim: widths; table: ids are below it; zipf: exponent of the ids' frequencies; repeats
Validated   every method: ids equal, sums within float32 rounding of a float64 reference, before it is timed
Time        of one call on unsorted ids, sorting included, on the slowest rank; methods take turns. Under mpirun all
            ranks work at once, each on its own rows, and the rate is that of one rank.
            "x NAME": how many times as fast as that method.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import numpy as np

from hybridmpi import kernels
from hybridmpi.bench.measure import alternate, at_least, numbers, ratio, require, row
from hybridmpi.bench.zipf import zipf_ids
from hybridmpi.field_types import Amount, argument
from hybridmpi.world import World

Sums = tuple[np.ndarray, np.ndarray]

# What one addition in float32 may be off by, relative to the sizes of its terms; errors of k terms add up as sqrt(k).
ROUNDING = 6e-7


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `hybridmpi bench aggregate`."""
    count = at_least(1)
    parser.add_argument("--rows", type=count, default=65_536, help="pairs to sum (default %(default)s)")
    parser.add_argument("--dim", default="64,512", metavar="N,N,...", help="widths of a row (default %(default)s)")
    parser.add_argument("--table", type=count, default=1_000_000, help="ids are below this (default %(default)s)")
    parser.add_argument(
        "--zipf", type=argument(Amount), default=1.1, help="exponent of frequencies (default %(default)s)"
    )
    parser.add_argument("--repeats", type=count, default=7, help="timed repetitions (default %(default)s)")


def servers(options: argparse.Namespace) -> int:
    """Return how many ranks serve: none. Local."""
    return 0


def measure(world: World, options: argparse.Namespace) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return (parameters, rows). Collective over compute. Raises HybridMPIError when a sum is wrong."""
    random = np.random.default_rng([1, world.compute.Get_rank()])
    ids = zipf_ids(random, options.table, options.zipf, options.rows)
    results = []
    for dim in numbers(options.dim):
        values = random.standard_normal((options.rows, dim), dtype=np.float32)
        ways = {"hybridmpi": lambda v=values: kernels.aggregate(ids, v, options.table)}
        ways |= {name: lambda v=values, f=function: f(ids, v) for name, function in alternatives().items()}
        expected = _reference(ids, values)
        for name, way in ways.items():
            require(world, _agrees(way(), *expected), f"aggregation by {name}, dim {dim}")
        seconds = alternate(world, ways, options.repeats)
        for name, samples in seconds.items():
            others = {n: ratio(samples, s) for n, s in seconds.items() if n != name} if name == "hybridmpi" else {}
            rates = [options.rows / s for s in samples]
            results.append(row(f"{name}, dim {dim}", rates, "rows/s", n=options.rows, ratio=others))
    params = {name: getattr(options, name) for name in ("rows", "dim", "table", "zipf")}
    return params | {"unique": len(np.unique(ids))}, results


def alternatives() -> dict[str, Callable[[np.ndarray, np.ndarray], Sums]]:
    """Return the other ways by name; scipy's if it is installed. Local."""

    def add_at(ids: np.ndarray, values: np.ndarray) -> Sums:
        unique, inverse = np.unique(ids, return_inverse=True)
        sums = np.zeros((len(unique), values.shape[1]), values.dtype)
        np.add.at(sums, inverse, values)
        return unique, sums

    def reduceat(ids: np.ndarray, values: np.ndarray) -> Sums:
        order, unique, starts = _sorted(ids)
        return unique, np.add.reduceat(values[order], starts, axis=0)

    ways = {"numpy add.at": add_at, "numpy reduceat": reduceat}
    try:
        from scipy import sparse
    except ImportError:
        return ways

    def product(ids: np.ndarray, values: np.ndarray) -> Sums:
        order, unique, starts = _sorted(ids)
        ones, ends = np.ones(len(ids), values.dtype), np.append(starts, len(ids))
        return unique, sparse.csr_matrix((ones, order, ends), shape=(len(unique), len(ids))) @ values

    return ways | {"scipy csr": product}


def _sorted(ids: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the stable order of ids, the unique ids, and where each begins in that order."""
    order = np.argsort(ids, kind="stable")
    ordered = ids[order]
    starts = np.flatnonzero(np.concatenate([[True], ordered[1:] != ordered[:-1]]))
    return order, ordered[starts], starts


def _reference(ids: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return unique ids, sums in float64, and how far a float32 sum may be off."""
    unique, inverse, counts = np.unique(ids, return_inverse=True, return_counts=True)
    sums, sizes = np.zeros((len(unique), values.shape[1])), np.zeros((len(unique), values.shape[1]))
    np.add.at(sums, inverse, values.astype(np.float64))
    np.add.at(sizes, inverse, np.abs(values).astype(np.float64))
    return unique, sums, ROUNDING * sizes * np.sqrt(counts)[:, None] + ROUNDING


def _agrees(found: Sums, unique: np.ndarray, sums: np.ndarray, bound: np.ndarray) -> bool:
    return bool(
        np.array_equal(found[0], unique) and found[1].shape == sums.shape and (np.abs(found[1] - sums) <= bound).all()
    )
