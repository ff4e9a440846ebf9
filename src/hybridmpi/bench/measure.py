"""What all benchmarks share: alternating repetitions, validation by all ranks, rows and the JSON object they end in.

The habit is that of the Parallel Research Kernels (ParRes): state the purpose and the parameters, check the result, and
report a rate only if it is right.
"""

from __future__ import annotations

import json
import os
import platform
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from hybridmpi.cores import usable_cores
from hybridmpi.errors import HybridMPIError, RemoteError, UsageError
from hybridmpi.roles import Servers
from hybridmpi.training.results import StepResult
from hybridmpi.world import World

# A repetition of a fast call repeats it until about this much time has passed, so that the clock and the skew of the
# ranks at its start do not count.
FILL_SECONDS = 0.03
MOST_CALLS = 2000


def alternate(world: World, functions: Mapping[str, Callable[[], Any]], repeats: int) -> dict[str, list[float]]:
    """Return, by name, the seconds of one call in each of `repeats` repetitions. Collective over compute.

    The functions take turns: first, second, ..., first, second, ..., so that whatever else the machine does falls on
    all of them alike. A repetition is a barrier, then as many calls as fill FILL_SECONDS; its time is that of the
    slowest rank.
    """
    calls = {}
    for name, function in functions.items():
        _slowest(world, function, 1)  # compiles, allocates, touches pages
        once = _slowest(world, function, 1)
        calls[name] = max(1, min(MOST_CALLS, round(FILL_SECONDS / max(once, 1e-7))))
    seconds: dict[str, list[float]] = {name: [] for name in functions}
    for _ in range(repeats):
        for name, function in functions.items():
            seconds[name].append(_slowest(world, function, calls[name]) / calls[name])
            # One call may have been lucky: four ranks of a spinning MPI on two cores need a thousand times its time.
            calls[name] = max(1, min(calls[name], round(FILL_SECONDS / seconds[name][-1])))
    return seconds


def _slowest(world: World, function: Callable[[], Any], calls: int) -> float:
    """Call `function` so often on all ranks at once; return the seconds of the slowest rank."""
    start_together(world)
    started = time.perf_counter()
    for _ in range(calls):
        function()
    return slowest(world, time.perf_counter() - started)


def start_together(world: World) -> None:
    """Return on all ranks within microseconds. Collective over compute; nobody may owe anybody rows."""
    world.barrier()  # serves, but its sleeps end up to a millisecond apart
    world.compute.Barrier()


def slowest(world: World, seconds: float) -> float:
    """Return the largest of all compute ranks' seconds. Collective over compute."""
    return max(world.gather(seconds))


def require(world: World, right: bool, what: str) -> None:
    """Raise HybridMPIError on all ranks unless `right` holds on every one of them. Collective over compute."""
    wrong = [rank for rank, fine in world.gather((world.rank, bool(right))) if not fine]
    if wrong:
        error = HybridMPIError if world.rank == wrong[0] else RemoteError
        raise error(f"benchmark result is wrong on rank {', '.join(map(str, wrong))}: {what}; nothing is reported")


def row(name: str, samples: Sequence[float], unit: str, **more: Any) -> dict[str, Any]:
    """Return one row of the results: median, smallest and largest sample. Local.

    `more`: `bytes` or `n`, the size; `ratio`: {name: times as fast as that}; and details, {key: number} each.
    """
    size = {key: more.pop(key) for key in ("bytes", "n") if key in more}
    return {
        "name": name,
        **size,
        "median": significant(statistics.median(samples)),
        "min": significant(min(samples)),
        "max": significant(max(samples)),
        "unit": unit,
        "repeats": len(samples),
        **more,
    }


def limit_threads(threads: int) -> None:
    """Let BLAS of this process have so many threads, and no others. Local. Raises UsageError if it cannot."""
    from threadpoolctl import threadpool_info, threadpool_limits

    threadpool_limits(limits=threads)
    found = {pool["num_threads"] for pool in threadpool_info()}
    if found != {threads}:
        raise UsageError(f"--threads {threads}: BLAS has {sorted(found)}; expected no more than it was built for")


def phases_ms(results: Sequence[StepResult]) -> dict[str, float]:
    """Return the mean milliseconds of a step by phase; "other" is what no phase claims. Local."""
    total = sum(result.total_seconds for result in results)
    seconds = {phase: sum(result.seconds[phase] for result in results) for phase in results[0].seconds}
    seconds["other"] = total - sum(seconds.values())
    return {phase: significant(spent / len(results) * 1e3, 3) for phase, spent in seconds.items()}


def ratio(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """Return how many times as fast `ours` is, from alternating seconds: the median over the repetitions. Local."""
    return significant(statistics.median(b / a for a, b in zip(ours, theirs, strict=True)), 3)


def significant(value: float, digits: int = 5) -> float:
    """Round to a number of significant digits. Local."""
    return float(f"{value:.{digits}g}")


def machine(world: World) -> dict[str, Any]:
    """Return what a figure depends on beside its parameters: ranks, cores, versions, load. Local."""
    import numba
    import numpy
    from threadpoolctl import threadpool_info

    return {
        "host": platform.node(),
        "processor": platform.machine(),
        "cores": usable_cores(),
        "compute_ranks": len(world.clients),
        "servers": len(world.servers),
        "nodes": world.nodes,
        "mpi": world.mpi.Get_library_version().split("\0")[0].split("\n")[0].split(",")[0].strip(),
        "python": platform.python_version(),
        "numpy": numpy.__version__,
        "numba": numba.__version__,
        "blas_threads": max((pool["num_threads"] for pool in threadpool_info()), default=1),
        "load_average": [round(load, 2) for load in os.getloadavg()],
    }


def report(world: World, bench: str, params: dict[str, Any], results: list[dict[str, Any]], as_json: bool) -> None:
    """Print the results on compute rank 0: some lines for people and, with `as_json`, one object on the last. Local."""
    if not world.on_root():
        return
    print(f"{bench}: {', '.join(f'{key} {value}' for key, value in params.items())}")
    ranks = f"{len(world.clients)} compute ranks, {len(world.servers)} servers, {world.nodes} nodes"
    print(f"{ranks}; all results validated")
    for result in results:
        print(as_text(result))
    if as_json:
        about = {"bench": bench, "params": params, "machine": machine(world), "validated": True}
        print(json.dumps({**about, "results": results}))


# What every row has; what else there is are details, printed below it.
COMMON = ("name", "bytes", "n", "median", "min", "max", "unit", "repeats", "ratio")


def as_text(result: Mapping[str, Any]) -> str:
    """Return a row as text for people: a line, and one more for each detail. Local."""
    size = f"{result['bytes']:,} B" if "bytes" in result else f"n {result['n']:,}"
    spread = f"{result['min']:,.6g} to {result['max']:,.6g}, {result['repeats']} repeats"
    ratios = "".join(f"  {value:g} x {name}" for name, value in result.get("ratio", {}).items())
    lines = [f"{result['name']:<24}{size:>14}{result['median']:>14,.6g} {result['unit']} ({spread}){ratios}"]
    for name, details in result.items():
        if name not in COMMON:
            lines.append(f"    {name}: {', '.join(f'{key} {value:,}' for key, value in details.items())}")
    return "\n".join(lines)


def numbers(text: str) -> list[int]:
    """Return the comma-separated whole numbers, each at least 1, of an option. Local. Raises UsageError."""
    try:
        found = [int(part) for part in text.split(",")]
    except ValueError:
        found = []
    if not found or min(found) < 1:
        raise UsageError(f"'{text}': expected whole numbers from 1 up, separated by commas, such as 4096,1048576")
    return found


def at_least(low: int) -> Callable[[str], int]:
    """Return the argparse type of a whole number from `low` up. Local."""

    def convert(text: str) -> int:
        value = int(text)
        if value < low:
            raise ValueError
        return value

    convert.__name__ = f"whole number from {low} up"  # argparse: "invalid whole number from 1 up value"
    return convert


def server_count(text: str) -> Servers:
    """Return the value of --servers: "per-node" or a number. Local."""
    return text if text == "per-node" else at_least(0)(text)


server_count.__name__ = "number of servers"  # argparse: "invalid number of servers value"
