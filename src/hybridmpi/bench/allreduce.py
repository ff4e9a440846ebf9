"""Benchmark: all-reduce, hybridmpi's algorithms beside MPI's own and beside the memory limit.

Purpose     time and bandwidth of a float32 sum in place over all compute ranks, by algorithm and size
Parameters  bytes: sizes of the buffer; algorithms: which, beside MPI's own; wire: what values travel as between ranks;
            supernodes: which hosts are near each other; repeats: repetitions of each
Rows        auto    AllReduce, calibrated for these sizes, called at once; a Trainer uses the same algorithms, in steps
            mpi     MPI's own, always measured
            shared  shared memory, on one node only
            copies  the memory limit, always measured: on every rank at once one plain copy of a private buffer of the
                    same size to another, which reads n and writes n bytes. So does a sum in shared memory at the least:
                    each of p ranks reads n / p of each of p buffers and writes as much to each. A copy that fetches
                    what it overwrites moves n more, which a sum in place does not: it can be ahead
            others  each algorithm of messages, over all ranks at once
Validated   every algorithm at every size, before and after it is timed: whole numbers whose sum is exact in the wire,
            all elements, on all ranks
Time        of one call, on the slowest rank; algorithms take turns. The timed calls sum zeros, since an in-place sum of
            anything else soon overflows. algbw = bytes / time; busbw = algbw 2 (p - 1) / p, what each link carries
            (the NCCL tests' terms), 0 on one rank. "x mpi": how many times as fast as MPI's own. "x copies": the share
            of the memory limit, on one node.
Bytes       bytes_by_level: what one sum sends within nodes, between the nodes of a supernode, across the trunk, all
            ranks together; in shared memory what ranks read from and write to each other. Nobody knows MPI's.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from hybridmpi.bench.allreduce_explain import explain
from hybridmpi.bench.measure import alternate, at_least, machine, numbers, ratio, require, row, significant
from hybridmpi.collectives import ALGORITHMS, WIRES, AllReduce, Group, discover, finish, wire_for
from hybridmpi.collectives.reducer import MPI, SHARED
from hybridmpi.collectives.shared import room_for
from hybridmpi.collectives.shared_buffer import SharedBuffer
from hybridmpi.collectives.tuning import calibrate
from hybridmpi.errors import UsageError
from hybridmpi.large_counts import most_items
from hybridmpi.paths import path_argument
from hybridmpi.world import World

AUTO, COPIES = "auto", "copies"

# Up to these, whole numbers are exact in a wire.
EXACT = {"float32": 1 << 24, "float16": 1 << 11, "bfloat16": 1 << 8}

# The numbers that are summed repeat after so many elements: no divisor of a slice or a chunk, which are powers of two
# here, so that one in the wrong place is seen.
PERIOD = 1009


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `hybridmpi bench allreduce`."""
    parser.add_argument(
        "--bytes",
        default="4096,65536,1048576,16777216,67108864",
        metavar="N,N,...",
        help="sizes of the buffer, in bytes (default %(default)s)",
    )
    parser.add_argument(
        "--algorithms", default="all", metavar="A,A,...", help=f"auto, shared, {', '.join(ALGORITHMS)} (default all)"
    )
    parser.add_argument(
        "--wire",
        choices=WIRES,
        default="float32",
        help="what values travel as in messages, but for mpi's (default %(default)s)",
    )
    parser.add_argument(
        "--supernodes", nargs="+", default=(), metavar="LIST", help="a host list for each group of near hosts"
    )
    parser.add_argument("--repeats", type=at_least(1), default=7, help="timed repetitions (default %(default)s)")
    parser.add_argument(
        "--explain", action="store_true", help="calibrate afresh; print what it found and why auto chooses as it does"
    )
    parser.add_argument(
        "--plot",
        type=path_argument,
        metavar="FILE",
        help="draw busbw over size, as .png, .svg or .pdf; calibrates afresh",
    )


def servers(options: argparse.Namespace) -> int:
    """Return how many ranks serve: none, all of them take part. Local."""
    return 0


def measure(world: World, options: argparse.Namespace) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return (parameters, rows). Collective over compute. Raises HybridMPIError when a sum is wrong."""
    lengths = [max(1, size // 4) for size in numbers(options.bytes)]
    topology = discover(world, options.supernodes)
    names = _names(options.algorithms, topology.nodes)
    if options.plot:
        from hybridmpi.bench import allreduce_plot

        allreduce_plot.require_possible(world, options.plot)
    reduce = AllReduce(world, sum(room_for(4 * length) for length in lengths), topology, options.wire)
    for length in lengths:
        reduce.allocate(length, np.float32)
    afresh = options.explain or options.plot is not None
    found = calibrate(reduce, afresh=afresh) if afresh or AUTO in names else None
    if options.explain and world.on_root():
        print(explain(found, topology))
    measured = _Sums(world, reduce, names)
    results = [result for shared in reduce.buffers() for result in measured.rows(shared, options.repeats)]
    if options.plot:
        times = reduce.lanes * (1 if options.wire == "float32" else 2)
        world.from_root(lambda: allreduce_plot.draw(options.plot, results, machine(world), found.network, times))
    params = {"bytes": options.bytes, "dtype": "float32", "wire": options.wire, "topology": topology.describe()}
    if AUTO in names:
        params[AUTO] = ", ".join(dict.fromkeys(reduce.algorithm_for(4 * length) for length in lengths))
    reduce.close()
    return params, results


def _names(text: str, nodes: int) -> list[str]:
    """Return the algorithms to measure, MPI's own first. Raises UsageError."""
    known = [MPI, AUTO, *[SHARED] * (nodes == 1), *(name for name in ALGORITHMS if name != MPI)]
    wanted = known if text == "all" else text.split(",")
    for name in wanted:
        if name == SHARED and nodes > 1:
            raise UsageError(f"--algorithms {SHARED}: these ranks are on {nodes} nodes; expected {', '.join(known)}")
        if name not in known:
            raise UsageError(f"--algorithms {name}: expected all or some of {', '.join(known)}")
    return list(dict.fromkeys([MPI, *wanted]))


class _Sums:
    """The sums of one launch. Collective over compute."""

    def __init__(self, world: World, reduce: AllReduce, names: Sequence[str]) -> None:
        self.world, self.reduce, self.names = world, reduce, names
        self.group = Group(world.compute, [tuple(place) for place in reduce.topology.places])
        self.wire = wire_for(reduce.wire, np.dtype(np.float32))

    def rows(self, shared: SharedBuffer, repeats: int) -> list[dict[str, Any]]:
        """Return the rows for one buffer."""
        buffer, ranks = shared.mine, self.world.compute.Get_size()
        mine, expected = whole_numbers(buffer.size, ranks, self.world.compute.Get_rank(), self.wire.name)
        copied = np.empty_like(mine)
        sums = {name: self.call(name, shared) for name in self.names}
        sent = {name: self._sent_rightly(name, call, buffer, mine, expected) for name, call in sums.items()}
        buffer.fill(0)
        seconds = alternate(self.world, sums | {COPIES: partial(np.copyto, copied, mine)}, repeats)
        for name, call in sums.items():
            self._sent_rightly(name, call, buffer, mine, expected)
        require(self.world, np.array_equal(copied, mine), f"a copy of {buffer.nbytes:,} bytes")
        results = []
        for name, samples in seconds.items():
            bandwidth = buffer.nbytes / statistics.median(samples) / 1e9
            bus = bandwidth * 2 * (ranks - 1) / ranks
            beside = {AUTO: (MPI, COPIES)[: 1 + (self.reduce.nodes == 1)], MPI: (), COPIES: ()}.get(name, (MPI,))
            levels = {"bytes_by_level": sent[name]} if sent.get(name) else {}
            results.append(
                row(
                    name,
                    [s * 1e6 for s in samples],
                    "us",
                    bytes=buffer.nbytes,
                    ratio={other: ratio(samples, seconds[other]) for other in beside},
                    GBps={"algbw": significant(bandwidth, 3), "busbw": significant(bus, 3)},
                    **levels,
                )
            )
        return results

    def call(self, name: str, shared: SharedBuffer) -> Callable[[], Any]:
        """Return what sums a buffer by an algorithm. Local."""
        buffer, world = shared.mine, self.world
        if name == AUTO:
            return partial(self.reduce, buffer)
        if name == MPI and buffer.size <= most_items(buffer.itemsize):
            return partial(world.compute.Allreduce, world.mpi.IN_PLACE, buffer)
        if name in (MPI, SHARED):
            return self.reduce.call(shared, name)
        return lambda: finish(ALGORITHMS[name](self.group, buffer, self.wire), world.wait_until)

    def _sent_rightly(
        self, name: str, call: Callable[[], Any], buffer: np.ndarray, mine: np.ndarray, expected: np.ndarray
    ) -> dict[str, int]:
        """Sum whole numbers; require the exact sum; return the bytes that all ranks sent, by level, {} if unknown."""
        np.copyto(buffer, mine)
        before = self._counted(name, buffer.nbytes)
        call()
        after = self._counted(name, buffer.nbytes)
        require(self.world, np.array_equal(buffer, expected), f"the sum by {name} of {buffer.nbytes:,} bytes")
        sent = self.world.gather({level: after[level] - before[level] for level in before})
        return {level: sum(of_rank[level] for of_rank in sent) for level in before}

    def _counted(self, name: str, nbytes: int) -> dict[str, int]:
        """Return the bytes that this rank has sent so far, by level; {} for what MPI sent."""
        if MPI in (name, self.reduce.algorithm_for(nbytes) if name == AUTO else ""):
            return {}
        return self.reduce.sent() if name in (AUTO, SHARED) else dict(self.group.sent)


def whole_numbers(length: int, ranks: int, rank: int, wire: str) -> tuple[np.ndarray, np.ndarray]:
    """Return a rank's numbers and the sum over all ranks, float32 [length] each: exact in `wire`, as is every sum of
    some ranks' numbers. Neighbouring elements differ, and so do the ranks. Local. Raises UsageError for more ranks
    than `wire` can tell apart."""
    period = min(PERIOD, EXACT[wire] // ranks + 1)
    period -= 1 - period % 2
    if period < 3:
        raise UsageError(
            f"--wire {wire}: whole numbers of {ranks} ranks have no exact sum in it; expected {EXACT[wire] // 2} ranks "
            "at most, or --wire float32"
        )
    all_ranks = (np.arange(period) + np.arange(ranks)[:, None]) % period
    one = all_ranks[rank].astype(np.float32)
    return np.resize(one, length), np.resize(all_ranks.sum(axis=0).astype(np.float32), length)
