"""Tuning: an all-reduce learns what it runs on, in less than a second, once for each machine."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from hybridmpi.collectives import selection
from hybridmpi.collectives.calibration import fit, measure_network
from hybridmpi.collectives.cost import FORMULAS, Link, predict
from hybridmpi.collectives.reducer import MPI, SHARED, AllReduce
from hybridmpi.collectives.shared_buffer import SharedBuffer
from hybridmpi.folders import cache_folder

# Seconds that a calibration may take in all.
BUDGET = 0.8

# Each candidate is run so often at a size, in turns; the shortest counts, as everywhere in calibration.
REPEATS = 3

# Seconds that are filled with repetitions of a short call.
FILL = 1e-3

# Sizes that the links of shared memory and of MPI's own all-reduce are fitted to: (one node, several nodes).
SMALL, LARGE = 1 << 10, (1 << 20, 64 << 10)


def calibrate(allreduce: AllReduce, folder: Path | None = None, afresh: bool = False) -> list[selection.Choice]:
    """Let `allreduce` choose an algorithm for each size of its buffers; return the choices. Collective over compute.

    What an earlier run on the same hosts found is used, unless `afresh`; `folder`: where that is kept. The buffers'
    contents are lost.
    """
    if allreduce.ranks == 1 or allreduce.algorithm != "auto":
        return []
    started = time.perf_counter()
    world = allreduce.world
    hosts = world.gather(socket.gethostname())
    library = world.mpi.Get_library_version().split("\0")[0]
    identity = [library, hosts, allreduce.topology.places, allreduce.wire, world.embedded]
    file = selection.cache_file(folder or cache_folder(), identity)
    kept = {} if afresh else world.from_root(lambda: selection.read(file))

    by_size: dict[int, SharedBuffer] = {}
    for buffer in allreduce.buffers():
        if buffer.mine.size:
            by_size.setdefault(selection.size_class(buffer.mine.nbytes), buffer)
    missing = [size for size in by_size if size not in kept]
    if missing:
        found = _choices(allreduce, {size: by_size[size] for size in missing}, started)
        kept = {**kept, **{choice.nbytes: choice for choice in found}}
        allreduce.forget_sent()
        if world.on_root():
            selection.write(file, kept)
    allreduce.choose({size: kept[size] for size in by_size})
    return [kept[size] for size in sorted(by_size)]


def _choices(allreduce: AllReduce, by_size: dict[int, SharedBuffer], started: float) -> list[selection.Choice]:
    world = allreduce.world
    network = None
    if allreduce.nodes > 1 and allreduce.lane is not None:
        network = measure_network(allreduce.lane, world.wait_until)
    network = world.broadcast(network)
    shared, mpi = _fitted(allreduce, SHARED), None
    if allreduce.wire == "float32" and not world.embedded:
        # Ranks that hold rows must serve while they wait, which nobody can inside MPI.
        mpi = _fitted(allreduce, MPI)

    def predicted(size: int) -> dict[str, float]:
        nbytes = by_size[size].mine.nbytes
        inside = shared.seconds(nbytes) if allreduce.ranks > allreduce.nodes else 0.0
        if network is None:
            seconds = {SHARED: inside}
        else:
            part = nbytes // allreduce.lanes
            seconds = {name: inside + predict(name, part, network) for name in FORMULAS}
        return seconds if mpi is None else {**seconds, MPI: mpi.seconds(nbytes)}

    def timed(size: int, names: Sequence[str]) -> dict[str, float]:
        calls = {name: allreduce.call(by_size[size], name) for name in names}
        # Short ones are repeated, for the clock; the same number on all ranks, since predictions are.
        times = {name: max(1, min(100, int(FILL / predicted(size)[name]))) for name in names}
        by_size[size].mine[:] = 0
        samples = {name: [] for name in names}
        for _ in range(REPEATS):
            for name, call in calls.items():
                samples[name].append(_seconds(allreduce, call, times[name]))
        return {name: min(times) for name, times in samples.items()}

    def seconds_left() -> float:
        return BUDGET - max(world.gather(time.perf_counter() - started))

    return world.broadcast(selection.choose(list(by_size), predicted, timed, seconds_left, REPEATS))


def _fitted(allreduce: AllReduce, name: str) -> Link:
    """Return the link through two sizes of an all-reduce in the node, or of MPI's own over all ranks."""
    points = []
    for nbytes in (SMALL, LARGE[allreduce.nodes > 1]):
        values = np.zeros(nbytes // 4, np.float32)
        if name == MPI:
            call = lambda values=values: allreduce.world.compute.Allreduce(allreduce.world.mpi.IN_PLACE, values)  # noqa: E731
        else:
            call = lambda values=values: allreduce.sum_in_node(values)  # noqa: E731
        call()
        points.append((nbytes, min(_seconds(allreduce, call, 8) for _ in range(REPEATS))))
    return fit(*points)


def _seconds(allreduce: AllReduce, call: Callable[[], None], times: int) -> float:
    """Return the seconds of a call that all ranks begin at once, repeated `times` times, on the slowest rank."""
    allreduce.world.compute.Barrier()
    started = time.perf_counter()
    for _ in range(times):
        call()
    return max(allreduce.world.gather(time.perf_counter() - started)) / times
