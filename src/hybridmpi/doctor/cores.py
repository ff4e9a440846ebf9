"""Ranks on hosts and cores: the map and the roles it leads to, binding, threads, clocks."""

from __future__ import annotations

import math
import os
import platform
import time
from collections.abc import Sequence
from dataclasses import dataclass

from hybridmpi.cores import quota_of_groups, usable_cores
from hybridmpi.doctor.finding import Finding, ok, seconds_text, warn
from hybridmpi.environment import hint
from hybridmpi.mpi_implementations import NODES_SPLIT_BY, UNBIND
from hybridmpi.roles import assign_servers

CLOCK_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Seat:
    """Where a rank runs: its host, the cores it may use, how many the host has, and how many a quota of processor time
    allows, None without one."""

    host: str
    cores: frozenset[int]
    host_cores: int
    quota: float | None = None


def my_seat() -> Seat:
    """Return the place of this process. Local."""
    return Seat(platform.node(), frozenset(os.sched_getaffinity(0)), os.cpu_count() or 1, quota_of_groups())


def node_map(node_of: Sequence[int], seats: Sequence[Seat]) -> list[Finding]:
    """Return which ranks are where and what they would be with servers = "per-node". Local, pure."""
    hosts = len({seat.host for seat in seats})
    nodes = len(set(node_of))
    per_node = sorted({list(node_of).count(node) for node in set(node_of)})
    each = f"{per_node[0]}" if len(per_node) == 1 else f"{per_node[0]} to {per_node[-1]}"
    servers = len(assign_servers(node_of, "per-node"))
    roles = f"{len(node_of) - servers} compute, {servers} server{'s' * (servers != 1)} with servers = 'per-node'"
    text = f"{nodes} node{'s' * (nodes != 1)} with {each} rank{'s' * (each != '1')}: {roles}"
    if len(node_of) == 1:
        text = f"one rank on {seats[0].host}: it does everything"
    if nodes > hosts:
        return [warn(
            "node map", f"{text}; but there {'is' if hosts == 1 else 'are'} only {hosts} host{'s' * (hosts != 1)}: "
            "ranks of one host do not share memory",
            f"give the containers of a host one /dev/shm and one IPC and PID namespace; look for {NODES_SPLIT_BY}",
        )]  # fmt: skip
    return [ok("node map", text)]


def binding(seats: Sequence[Seat]) -> list[Finding]:
    """Return a line for each host whose ranks crowd on few of its cores, or one that says how many share. Local, pure.

    More ranks than cores are no fault as long as waiting ranks give their core away, which the all-reduce shows.
    """
    found = []
    for host in dict.fromkeys(seat.host for seat in seats):
        here = [seat for seat in seats if seat.host == host]
        allowed = frozenset().union(*(seat.cores for seat in here))
        crowded = max(here, key=lambda seat: _sharing(seat, here) / len(seat.cores))
        sharing, cores = _sharing(crowded, here), len(crowded.cores)
        total = crowded.host_cores
        if sharing > cores and (len(allowed) > cores or total > cores):
            found.append(warn(
                "cores", f"{sharing} ranks are bound to {_cores(cores)} of {host}, which has {total}",
                f"{UNBIND}, or ask for more: --cpus-per-task",
            ))  # fmt: skip
            continue
        quota = min((seat.quota for seat in here if seat.quota is not None), default=None)
        usable = len(allowed) if quota is None else min(len(allowed), max(1, math.ceil(quota)))
        limited = f", of which a quota of the control group allows {quota:g}" if usable < len(allowed) else ""
        verb = "ranks take turns on" if len(here) > usable else f"rank{'s' * (len(here) > 1)} on"
        found.append(ok("cores", f"{len(here)} {verb} {_cores(len(allowed))}{limited}"))
    return list(dict.fromkeys(found))


def _sharing(seat: Seat, here: Sequence[Seat]) -> int:
    return sum(1 for other in here if other.cores & seat.cores)


def _cores(number: int) -> str:
    return f"{number} core{'s' * (number != 1)}"


def threads() -> list[Finding]:
    """Return how many threads BLAS uses in this process after hybridmpi has limited them. Local."""
    import numpy as np  # noqa: F401  (loads the BLAS that is looked at)
    from threadpoolctl import threadpool_info

    pools = {pool["internal_api"]: pool["num_threads"] for pool in threadpool_info()}
    mine = usable_cores()
    text = ", ".join(f"{name} {number} a rank" for name, number in sorted(pools.items())) or "no BLAS with threads"
    numba = hint("NUMBA_NUM_THREADS")
    if any(number > mine for number in pools.values()):
        return [warn("threads", f"{text}, more than the {_cores(mine)} that the rank may use", "OMP_NUM_THREADS=1")]
    if numba is not None and numba > (os.cpu_count() or 1):
        return [warn("threads", f"NUMBA_NUM_THREADS={numba}, the host has {os.cpu_count()} cores", "unset it")]
    return [ok("threads", text)]


def clocks(times: Sequence[float], hosts: Sequence[str]) -> list[Finding]:
    """Return whether hosts agree on the time, from time.time() of all ranks right after a barrier. Local, pure."""
    if len(set(hosts)) == 1:
        return [ok("clocks", f"{time.strftime('%Y-%m-%d %H:%M:%S %Z', time.localtime(times[0]))} on one host")]
    apart = max(times) - min(times)
    late, early = hosts[times.index(min(times))], hosts[times.index(max(times))]
    if apart > CLOCK_SECONDS:
        return [warn(
            "clocks", f"{early} is {seconds_text(apart)} ahead of {late}: logs and file times of hosts do not compare",
            "chronyc tracking on both; ask the administrator to let NTP run",
        )]  # fmt: skip
    return [ok("clocks", f"hosts agree to {seconds_text(apart)}")]
