"""Calibration: latency and bandwidth of each level of a network, and the rate of additions, measured in milliseconds.

All ranks of a level exchange at once, as they do in an all-reduce, and the slowest rank's time counts. Every rank
returns the same numbers.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import numpy as np

from hybridmpi.collectives.cost import Link, Network
from hybridmpi.collectives.group import LEVELS, Group, completed
from hybridmpi.collectives.steps import Ready, finish

Wait = Callable[[Ready], None]

# A message grows until it takes this long: long beside the clock and the latency, short beside a second.
LONG_ENOUGH = 5e-3
LARGEST = 1 << 20
REPEATS = 3


def measure_network(group: Group, wait_until: Wait) -> Network:
    """Return the network of `group`, measured. Collective over the communicator of the group."""
    links = {}
    for name in LEVELS:
        partners = [partner(group.places, index, name) for index in range(group.size)]
        if any(other is not None for other in partners):
            links[name] = _measure_link(group, partners[group.index], wait_until)
    return Network(tuple(group.places), links, _measure_addition(group, wait_until))


def partner(places: Sequence[tuple[int, ...]], index: int, name: str) -> int | None:
    """Return the index that `index` exchanges with when the link of a level is measured, None if it has none. Local.

    Ranks are dealt into the parts that the level joins (the nodes of a supernode, the supernodes); of each two parts
    the first ranks form a pair, the second ones, and so on.
    """
    depth = len(LEVELS) - 1 - LEVELS.index(name)  # node 2, supernode 1, trunk 0: what all parts have in common
    parts: dict[tuple[int, ...], list[int]] = {}
    for number, place in enumerate(places):
        if place[:depth] == places[index][:depth]:
            parts.setdefault(place[: depth + 1] if depth < 2 else (*place[:2], number), []).append(number)
    keys = sorted(parts)
    mine = next(k for k, key in enumerate(keys) if index in parts[key])
    if (other := mine ^ 1) >= len(keys):
        return None
    position = parts[keys[mine]].index(index)
    members = parts[keys[other]]
    return members[position] if position < len(members) else None


def fit(small: tuple[float, float], large: tuple[float, float]) -> Link:
    """Return the link through two measurements (bytes, seconds). Local.

    Half of the small one's time is latency at least: where a steeper line goes through both, the machine had something
    else to do during one of them.
    """
    per_byte = max(0.0, (large[1] - small[1]) / (large[0] - small[0]))
    return Link(max(small[1] / 2, small[1] - small[0] * per_byte), per_byte)


def slowest(group: Group, seconds: float, wait_until: Wait) -> float:
    """Return the largest of all ranks' `seconds`. Collective over the communicator of the group."""
    from mpi4py import MPI

    mine, longest = np.array([seconds]), np.empty(1)
    wait_until(completed([group.comm.Iallreduce(mine, longest, MPI.MAX)]))
    return float(longest[0])


def exchange_seconds(
    group: Group, other: int | None, nbytes: int, times: int, wait_until: Wait, tries: int = REPEATS
) -> float:
    """Return the seconds of an exchange of `nbytes` each way with index `other` (None: this rank has no partner), made
    `times` times by all ranks at once: the slowest rank's, the shortest of all tries. Collective over the communicator
    of the group."""
    outgoing, incoming = np.zeros(nbytes, np.uint8), np.empty(nbytes, np.uint8)
    samples = []
    for _ in range(tries):
        slowest(group, 0.0, wait_until)
        started = time.perf_counter()
        if other is not None:
            for _ in range(times):
                finish(group.exchange(outgoing, incoming, other), wait_until)
        samples.append(slowest(group, (time.perf_counter() - started) / times, wait_until))
    # The shortest: what the network can do; whatever else runs on the machines makes single exchanges longer.
    return min(samples)


def _measure_link(group: Group, other: int | None, wait_until: Wait) -> Link:
    small, size = 8, 16 << 10
    latency = exchange_seconds(group, other, small, 8, wait_until)
    while (seconds := exchange_seconds(group, other, size, 1, wait_until)) < LONG_ENOUGH and size < LARGEST:
        size *= 4
    return fit((small, latency), (size, seconds))


def _measure_addition(group: Group, wait_until: Wait) -> float:
    values = np.zeros(LARGEST // 4, np.float32)
    samples = []
    for _ in range(REPEATS):
        started = time.perf_counter()
        np.add(values, values, out=values)
        samples.append(time.perf_counter() - started)
    return slowest(group, min(samples), wait_until) / values.nbytes
