"""Benchmark: all-reduce, hybridmpi's algorithms beside MPI's own.

Purpose     time and bandwidth of a float32 sum in place over all compute ranks, by algorithm and size
Parameters  bytes: sizes of the buffer; repeats: repetitions of each
Validated   every algorithm at every size, before and after it is timed: whole numbers whose sum is exact, all elements,
            on all ranks
Time        of one call, on the slowest rank; algorithms take turns. The timed calls sum zeros, since an in-place sum of
            anything else soon overflows. algbw = bytes / time; busbw = algbw 2 (p - 1) / p, what each link carries
            (the NCCL tests' terms), 0 on one rank. "auto": what a Trainer uses. "x mpi": how many times as fast as
            MPI's own.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable
from typing import Any

import numpy as np

from hybridmpi.bench.measure import alternate, at_least, numbers, ratio, require, row, significant
from hybridmpi.collectives import ALGORITHMS, AllReduce, Group
from hybridmpi.world import World


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `hybridmpi bench allreduce`."""
    parser.add_argument(
        "--bytes",
        default="4096,65536,1048576,16777216,67108864",
        metavar="N,N,...",
        help="sizes of the buffer, in bytes (default %(default)s)",
    )
    parser.add_argument("--repeats", type=at_least(1), default=7, help="timed repetitions (default %(default)s)")


def servers(options: argparse.Namespace) -> int:
    """Return how many ranks serve: none, all of them take part. Local."""
    return 0


def measure(world: World, options: argparse.Namespace) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return (parameters, rows). Collective over compute. Raises HybridMPIError when a sum is wrong."""
    sizes, ranks = numbers(options.bytes), world.compute.Get_size()
    results = []
    for size in sizes:
        reduce = AllReduce(world, max(64, size + 64))
        buffer = reduce.allocate(max(1, size // 4), np.float32)
        group = Group(world.compute)
        calls = {"mpi": lambda b=buffer: world.compute.Allreduce(world.mpi.IN_PLACE, b)}
        calls["auto"] = lambda b=buffer, reduce=reduce: reduce(b)
        calls |= {
            name: lambda b=buffer, algorithm=algorithm, group=group: algorithm(group, b)
            for name, algorithm in ALGORITHMS.items()
            if name != "mpi"
        }
        _require_right(world, calls, buffer)
        buffer.fill(0)
        seconds = alternate(world, calls, options.repeats)
        _require_right(world, calls, buffer)
        for name, samples in seconds.items():
            bandwidth = buffer.nbytes / statistics.median(samples) / 1e9
            bus = bandwidth * 2 * (ranks - 1) / ranks
            results.append(
                row(
                    name,
                    [s * 1e6 for s in samples],
                    "us",
                    bytes=buffer.nbytes,
                    ratio={} if name == "mpi" else {"mpi": ratio(samples, seconds["mpi"])},
                    GBps={"algbw": significant(bandwidth, 3), "busbw": significant(bus, 3)},
                )
            )
        reduce.close()
    return {"bytes": options.bytes, "dtype": "float32"}, results


def _require_right(world: World, calls: dict[str, Callable[[], Any]], buffer: np.ndarray) -> None:
    """Sum whole numbers, different on every rank and element, by every algorithm; compare with the exact sum."""
    ranks, rank = world.compute.Get_size(), world.compute.Get_rank()
    pattern = np.arange(buffer.size, dtype=np.float32) % 1000
    for name, call in calls.items():
        np.copyto(buffer, pattern * (rank + 1))
        call()
        right = np.array_equal(buffer, pattern * (ranks * (ranks + 1) // 2))
        require(world, right, f"the sum by {name} of {buffer.nbytes:,} bytes")
