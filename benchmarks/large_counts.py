"""Transfers of more bytes, and of more elements, than a C int counts, each once and checked.

Purpose     does what is larger than 2 GiB arrive, with this MPI: an object that all hear, one between two ranks, rows
            gathered to all, rows pulled by Get and rows moved to another owner, a dense gradient summed by messages
Environment two ranks, each of which pretends to be a node; memory for five times --bytes, and for twice in /dev/shm:
            hybridmpi launch -n 2 -- python benchmarks/large_counts.py
Validated   every byte, on the ranks that it went to
Time        of one call each, and of making and reading what travels with it where that is a part of it: no comparison
"""

from __future__ import annotations

import argparse
import sys
import time
import zlib
from collections.abc import Callable
from dataclasses import replace

import numpy as np

import hybridmpi as hm
from hybridmpi.bench.measure import require, slowest, start_together
from hybridmpi.collectives import AllReduce
from hybridmpi.collectives.shared import room_for
from hybridmpi.errors import UsageError
from hybridmpi.large_counts import begin_allgather, receive_object, send_object
from hybridmpi.sparse.service import Service
from hybridmpi.sparse.shard import initialise
from hybridmpi.sparse.spec import TableSpec
from hybridmpi.world import World

DIM = 1024
TAG = 1


def pattern(size: int) -> np.ndarray:
    """Return `size` bytes, by 8, that differ wherever 32 bits of a place do not tell places apart."""
    return np.arange(size // 8, dtype=np.int64).view(np.uint8)


def broadcast(world: World, size: int) -> float:
    """One object for all: as many elements as bytes, for they are bytes."""
    value = pattern(size) if world.on_root() else None
    started = time.perf_counter()
    value = world.broadcast(value)
    seconds = time.perf_counter() - started
    require(world, np.array_equal(value, pattern(size)), "an object that all hear")
    return seconds


def send(world: World, size: int) -> float:
    """An object from one rank to another, as commands to servers and their answers go."""
    started = time.perf_counter()
    value = None
    if world.on_root():
        send_object(world.compute, pattern(size), 1, TAG)
    else:
        value = receive_object(world.compute, 0, TAG)
    seconds = time.perf_counter() - started
    require(world, value is None or np.array_equal(value, pattern(size)), "an object between two ranks")
    return seconds


def gather(world: World, size: int) -> float:
    """Rows gathered to all, whose displacements are what is large."""
    lengths = np.array([size // 16 + 8, size // 16], np.int64)
    mine = pattern(size // 2 + 64).view(np.int64)[: lengths[world.rank]]
    everything = np.empty(lengths.sum(), np.int64)
    started = time.perf_counter()
    world.wait_all(begin_allgather(world.compute, mine, everything, lengths))
    seconds = time.perf_counter() - started
    parts = np.split(everything, np.cumsum(lengths)[:-1])
    right = all(np.array_equal(part, np.arange(len(part))) for part in parts)
    require(world, right, "rows gathered to all")
    return seconds


def rows(world: World, size: int) -> float:
    """A table at one rank: the other one pulls it whole; it moves to the other, and all the same again."""
    count, rule = size // (4 * DIM), hm.optim.SGD(0.1)
    spec = TableSpec("rows", count, DIM, np.dtype("f4"), ("uniform", -1.0, 1.0), "mean", "block", rule, 1, homes=(0,))
    service = Service.open(world, [spec], "get")
    numbers = np.arange(count)
    expected, slab, seconds = 0, np.empty((1024, DIM), np.float32), 0.0
    for part in np.array_split(numbers, -(-count // len(slab))):
        initialise(slab[: len(part)], spec, int(part[0]), 1)
        expected = zlib.crc32(slab[: len(part)], expected)
    for owner in (0, 1):
        start_together(world)
        right, started = True, time.perf_counter()
        if world.rank != owner:
            pulled = service.client.pull(0, numbers)
            seconds = time.perf_counter() - started
        pulling = world.compute.Ibarrier()
        while (
            not pulling.Test()
        ):  # without the sleeps of other waits: some MPIs have the owner pack what it is asked for
            world.drive()
        if world.rank != owner:
            right = zlib.crc32(pulled) == expected
            del pulled
        require(world, right, f"rows pulled at once from rank {owner}")
        service.relayout(0, replace(spec, homes=(1 - owner,)))
    service.close()
    return seconds


def dense(world: World, size: int, algorithm: str = "ring") -> float:
    """A dense gradient summed between the ranks, a message at a time or by MPI's own."""
    allreduce = AllReduce(world, room_for(size), algorithm=algorithm)
    buffer = allreduce.allocate(size // 4, np.float32)
    buffer[:] = 1 + world.rank
    buffer[-1] = 10
    start_together(world)
    started = time.perf_counter()
    allreduce(buffer)
    seconds = time.perf_counter() - started
    require(world, bool((buffer[:-1] == 3).all()) and buffer[-1] == 20, f"a sum by {algorithm}")
    del buffer
    allreduce.close()
    return seconds


CASES: dict[str, Callable[[World, int], float]] = {
    "broadcast": broadcast,
    "send": send,
    "gather": gather,
    "rows": rows,
    "dense": dense,
    "dense by MPI": lambda world, size: dense(world, size, "mpi"),
    "dense by halves": lambda world, size: dense(world, size, "halving_doubling"),
    "dense whole": lambda world, size: dense(world, size, "recursive_doubling"),
}


def main(world: World) -> None:
    """Send, check, and print on rank 0. Collective over compute."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bytes", type=int, default=(2 << 30) + (1 << 20), help="of each transfer (%(default)s)")
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES), help="all by default")
    options = parser.parse_args()
    if world.size != 2 or options.bytes % (4 * DIM):
        raise UsageError(f"expected two ranks, not {world.size}, and a multiple of {4 * DIM} bytes")
    for name in options.cases:
        seconds = slowest(world, CASES[name](world, options.bytes))
        if world.on_root():
            print(f"{name:16} {options.bytes:,} bytes arrived in {seconds:.1f} s", flush=True)


if __name__ == "__main__":
    sys.exit(hm.run(main, servers=0, nodes_of_ranks=lambda rank: rank))
