"""Tuning: an all-reduce learns what it runs on, in less than a second, once for each machine."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from hybridmpi.collectives import selection
from hybridmpi.collectives.calibration import LONG_ENOUGH, fit, measure_network
from hybridmpi.collectives.cost import FORMULAS, Link, Network, predict
from hybridmpi.collectives.reducer import MPI, SHARED, AllReduce
from hybridmpi.collectives.shared_buffer import SharedBuffer
from hybridmpi.folders import cache_folder

# Seconds that a calibration may take in all.
BUDGET = 0.8

# Each candidate is run so often at a size, in turns; the shortest counts, as everywhere in calibration.
REPEATS = 3

# Seconds that are filled with repetitions of a short call, and how many at most.
FILL, MOST_CALLS = 1e-3, 100

# Sizes that the links of shared memory and of MPI's own all-reduce are fitted to: (one node, several nodes).
SMALL, LARGE = 1 << 10, (1 << 20, 64 << 10)


@dataclass(frozen=True)
class Calibration:
    """What was found: a choice for each size, smallest first; the links that predictions came from.

    `network`: between nodes, None on one node; `sums`: of all-reduces of whole buffers in the node ("shared") and by
    MPI's own ("mpi"), where it is a candidate. Without `network` and `sums` all choices come from an earlier run.
    """

    choices: list[selection.Choice] = field(default_factory=list)
    network: Network | None = None
    sums: dict[str, Link] = field(default_factory=dict)


def calibrate(allreduce: AllReduce, folder: Path | None = None, afresh: bool = False) -> Calibration:
    """Let `allreduce` choose an algorithm for each size of its buffers; return why. Collective over compute.

    What an earlier run on the same hosts found is used, unless `afresh`; `folder`: where that is kept. The buffers'
    contents are lost.
    """
    world = allreduce.world
    # Ranks that hold rows must serve while they wait, which nobody can inside MPI.
    by_mpi = allreduce.wire == "float32" and not world.embedded
    if allreduce.ranks == 1 or allreduce.algorithm != "auto":
        return Calibration()
    by_size: dict[int, SharedBuffer] = {}
    for buffer in allreduce.buffers():
        if buffer.mine.size:
            by_size.setdefault(selection.size_class(buffer.mine.nbytes), buffer)
    if allreduce.nodes == 1 and not by_mpi and not afresh:
        # There is nothing to choose between.
        return Calibration([selection.Choice(size, SHARED) for size in sorted(by_size)])
    hosts = world.gather(socket.gethostname())
    library = world.mpi.Get_library_version().split("\0")[0]
    places = [place[:2] for place in allreduce.topology.places]
    identity = [library, hosts, places, allreduce.wire, world.embedded]
    file = selection.cache_file(folder or cache_folder(), identity)
    kept = world.from_root(lambda: selection.read(file))
    known = {SHARED, MPI} if allreduce.nodes == 1 else {*FORMULAS, MPI}
    missing = [size for size in by_size if afresh or size not in kept or kept[size].algorithm not in known]
    found = Calibration()
    if missing:
        found = _measure(allreduce, {size: by_size[size] for size in missing}, by_mpi)
        kept = {**kept, **{choice.nbytes: choice for choice in found.choices}}
        allreduce.forget_sent()
        if world.on_root():
            selection.write(file, kept)
    allreduce.choose({size: kept[size] for size in by_size})
    return replace(found, choices=[kept[size] for size in sorted(by_size)])


def _measure(allreduce: AllReduce, by_size: dict[int, SharedBuffer], by_mpi: bool) -> Calibration:
    # The first compiled call takes half a second to load, here or later: it is not the calibration's.
    allreduce.sum_in_node(np.zeros(1, np.float32))
    started = time.perf_counter()
    world = allreduce.world
    network = None
    if allreduce.nodes > 1 and allreduce.lane is not None:
        network = measure_network(allreduce.lane, world.wait_until)
    network = world.broadcast(network)
    sums = {SHARED: _fitted(allreduce, SHARED)}
    if by_mpi:
        sums[MPI] = _fitted(allreduce, MPI)

    def predicted(size: int) -> dict[str, float]:
        buffer = by_size[size].mine
        nbytes, narrow = buffer.nbytes, allreduce.wire != "float32" and buffer.dtype == np.float32
        inside = sums[SHARED].seconds(nbytes) if allreduce.ranks > allreduce.nodes else 0.0
        if network is None:
            seconds = {SHARED: inside}
        else:
            part = nbytes // allreduce.lanes // (1 + narrow)
            seconds = {name: inside + predict(name, part, network) for name in FORMULAS}
        return {**seconds, MPI: sums[MPI].seconds(nbytes)} if MPI in sums else seconds

    # By one rank: they decide what all ranks time together.
    predictions = world.from_root(lambda: {size: predicted(size) for size in by_size})

    def timed(size: int, names: Sequence[str]) -> dict[str, float]:
        calls = {name: allreduce.call(by_size[size], name) for name in names}
        by_size[size].mine[:] = 0
        times = {}  # the same on all ranks, since these seconds are
        for name, call in calls.items():
            once = _seconds(allreduce, call, 1)
            if once > FILL > predictions[size][name]:
                once = _seconds(allreduce, call, 1)  # the first one may have loaded code
            times[name] = repetitions(once)
        samples = {name: [] for name in names}
        for _ in range(REPEATS):
            for name, call in calls.items():
                samples[name].append(_seconds(allreduce, call, times[name]))
        return {name: min(seconds) for name, seconds in samples.items()}

    def seconds_left() -> float:
        return BUDGET - max(world.gather(time.perf_counter() - started))

    choices = world.broadcast(
        selection.choose(list(by_size), predictions.__getitem__, timed, seconds_left, 1 + REPEATS)
    )
    return Calibration(choices, network, sums)


def _fitted(allreduce: AllReduce, name: str) -> Link:
    """Return the link through two sizes of an all-reduce in the node, or of MPI's own over all ranks.

    The large size is smaller where the small one takes long: ranks that spin on shared cores take a second for 1 MiB.
    """
    small = _sum_seconds(allreduce, name, SMALL)
    large = min(max(4, int(LONG_ENOUGH / small)) * SMALL, LARGE[allreduce.nodes > 1])
    return fit((SMALL, small), (large, _sum_seconds(allreduce, name, large)))


def _sum_seconds(allreduce: AllReduce, name: str, nbytes: int) -> float:
    """Return the shortest time of a sum of `nbytes` of private memory, in the node or by MPI's own."""
    world, values = allreduce.world, np.zeros(nbytes // 4, np.float32)

    def call() -> None:
        if name == MPI:
            world.compute.Allreduce(world.mpi.IN_PLACE, values)
        else:
            allreduce.sum_in_node(values)

    call()
    times = repetitions(_seconds(allreduce, call, 1))
    return min(_seconds(allreduce, call, times) for _ in range(REPEATS))


def repetitions(seconds: float) -> int:
    """Return how often a call of so many seconds is made, for the clock. Local."""
    return max(1, min(MOST_CALLS, int(FILL / seconds)))


def _seconds(allreduce: AllReduce, call: Callable[[], None], times: int) -> float:
    """Return the seconds of a call that all ranks begin at once, repeated `times` times, on the slowest rank."""
    allreduce.world.compute.Barrier()
    started = time.perf_counter()
    for _ in range(times):
        call()
    return max(allreduce.world.gather(time.perf_counter() - started)) / times
