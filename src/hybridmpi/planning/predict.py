"""The predicted step: seconds by phase and bytes by link, for any choice of ways.

Links are full duplex; the fullest link of a phase counts. Phases follow each other, but for owners: they aggregate and
apply while the compute ranks sum and update what is dense. Ranks wait for the slowest before they agree.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from hybridmpi.collectives.cost import FORMULAS, Link, Network
from hybridmpi.planning import traffic
from hybridmpi.planning.costs import (
    BYTES_ON_WIRE,
    PHASES,
    Cost,
    Load,
    Transport,
    add_parameter,
    add_step,
    no_cost,
)
from hybridmpi.planning.machine import Machine
from hybridmpi.planning.modes import Way
from hybridmpi.planning.workload import Workload

# Sums of dense gradients between the nodes of one supernode; two_level is for several of them.
ALGORITHMS = ("recursive_doubling", "halving_doubling", "ring")


@dataclass(frozen=True)
class Seconds:
    """Seconds of a step by phase (those of costs.PHASES, and computing and agreeing), and of the whole step."""

    pull: float
    compute: float
    agree: float
    local: float
    push: float
    server: float
    allreduce: float
    allgather: float
    clip: float
    update: float
    embedded: bool = False

    @property
    def step(self) -> float:
        """Seconds of the whole step: servers work while the others sum; compute ranks that hold rows do both."""
        return self.pull + self.compute + self.agree + self.local + self.push + self.exchange

    @property
    def exchange(self) -> float:
        """Seconds from the push to the end of the step. Where the norm is limited, updates begin when it is known."""
        sums = self.allreduce + self.allgather
        if self.embedded:
            return self.server + sums + self.clip + self.update
        if self.clip:
            return max(self.server, sums) + self.clip + self.update
        return max(self.server, sums + self.update)


@dataclass(frozen=True)
class Bytes:
    """Bytes of a step, means over steps.

    `counted`: a compute rank's by category, as its counters count them (traffic.py), mean over the ranks. By phase, of
    the fullest: `node_in`, `node_out`: a node's link; `within`: a node's shared memory. `server_in`, `server_out`: of
    the busiest owner, from and to other nodes.
    """

    counted: dict[str, float]
    node_in: dict[str, float]
    node_out: dict[str, float]
    within: dict[str, float]
    server_in: float
    server_out: float


@dataclass(frozen=True)
class Prediction:
    """A step in which each parameter goes by `ways[name]`."""

    ways: Mapping[str, Way]
    seconds: Seconds
    bytes: Bytes


def predict(workload: Workload, ways: Mapping[str, Way], machine: Machine, transport: Transport) -> Prediction:
    """Return the step of `workload` with `ways[name]` for every parameter. Local."""
    cost = no_cost(machine)
    for parameter in workload.parameters:
        touched = workload.touched.get(parameter.name)
        add_parameter(cost, parameter, ways[parameter.name], touched, machine, transport)
    served = any(ways[parameter.name] == "ps" for parameter in workload.parameters)
    add_step(cost, machine, served, transport, workload.clip)
    _add_sums(cost["allreduce"], machine, transport)
    return Prediction(dict(ways), _seconds(cost, workload, machine, transport), _bytes(cost))


def sum_seconds(nbytes: float, machine: Machine, transport: Transport) -> tuple[str, float, float]:
    """Return (algorithm between nodes, seconds between nodes, seconds within them) of a sum of `nbytes`. Local.

    The formulas of collectives/cost.py for the nodes, whose ranks share the link and each take a part; within a node
    every rank reads and writes the buffer once.
    """
    most = max(machine.compute)
    near = 2 * nbytes * most / machine.node_memory_rate if most > 1 else 0.0
    nodes = int(np.count_nonzero(machine.compute))
    if nodes < 2 or not nbytes:
        return "shared", 0.0, near
    on_wire = nbytes * BYTES_ON_WIRE[transport.dense_wire]
    link = Link(machine.latency, 1 / machine.link_rate)
    return (*_fastest(int(on_wire), nodes, link, 1 / machine.memory_rate, transport.algorithm), near)


@lru_cache(maxsize=1024)
def _fastest(nbytes: int, nodes: int, link: Link, add: float, algorithm: str) -> tuple[str, float]:
    """Return (the fastest algorithm between so many nodes, its seconds); `algorithm`: "auto", or that one. Many choices
    sum as many bytes, and the formulas go through all pairs of nodes."""
    network = Network([(0, node) for node in range(nodes)], {"supernode": link}, add)
    candidates = [name for name in ALGORITHMS if algorithm == name] or ALGORITHMS
    seconds = {name: FORMULAS[name](nbytes, network) for name in candidates}
    best = min(seconds, key=seconds.__getitem__)
    return best, seconds[best]


def _add_sums(load: Load, machine: Machine, transport: Transport) -> None:
    """Add the bytes of the sums of dense arrays: each rank of a node sums a part of it over the nodes."""
    clients, w = machine.kinds.compute, load.summed
    nodes = int(np.count_nonzero(machine.compute))
    if not w:
        return
    algorithm, _, _ = sum_seconds(w, machine, transport)
    near = np.where(clients > 0, 2 * w * np.maximum(clients - 1, 0), 0.0)  # 2 w (m - 1) / m for each of m ranks
    far = traffic.allreduce_by(algorithm, w * BYTES_ON_WIRE[transport.dense_wire], nodes) if nodes > 1 else 0.0
    load.within += near
    load.into += np.where(clients > 0, far, 0.0)
    load.out += np.where(clients > 0, far, 0.0)
    load.counted["allreduce"] += float((machine.kinds.count * near).sum() + far * nodes) / machine.ranks


class _Link:
    """The fullest link, which saves up what it could have taken while it rests, up to a burst."""

    def __init__(self, machine: Machine) -> None:
        self._rate, self._burst = machine.link_rate, machine.link_burst or 0.0
        self._saved = self._burst

    def rest(self, seconds: float, times: float = 1) -> None:
        """Rest for so long, in that time between so many messages."""
        self._saved = min(self._burst * max(1.0, times), self._saved + seconds * self._rate)

    def take(self, nbytes: float) -> float:
        """Return the seconds that are saved of those that `nbytes` need."""
        used = min(self._saved, nbytes)
        self._saved -= used
        return used / self._rate


def _seconds(cost: Cost, workload: Workload, machine: Machine, transport: Transport) -> Seconds:
    ranks, owners = machine.crowding(machine.ranks), machine.crowding(machine.owners)
    nodes = int(np.count_nonzero(machine.compute))
    link, turn = _Link(machine), machine.notice_seconds + (machine.latency if machine.nodes > 1 else 0.0)
    compute = workload.compute_seconds * ranks
    agree = 2 * math.ceil(math.log2(nodes)) * machine.latency + machine.notice_seconds if machine.ranks > 1 else 0.0
    agree += workload.lag_seconds
    _, far, near = sum_seconds(cost["allreduce"].summed, machine, transport)
    hidden = min(far, workload.hidden_seconds)
    seconds: dict[str, float] = {}
    for phase in [*PHASES, *PHASES]:  # the second round begins as the first one has left the link
        load = cost[phase]
        # A rank sends one message after another, and so does an owner, each to the other; the last comes last.
        waits = load.turns * turn + load.rank_sends + load.owner_sends.max(initial=0.0)
        waits += load.rank_work * ranks + load.owner_work.max(initial=0.0) * owners
        if phase == "allreduce":
            waits += near * ranks
        # Between two pulls, one after another, it rests each time.
        link.rest(waits, load.turns / 2 if phase == "pull" else 1)
        nbytes = max(load.out.max(), load.into.max())
        sending = far - hidden if phase == "allreduce" else nbytes / machine.link_rate
        seconds[phase] = float(waits + max(0.0, sending - link.take(nbytes)))
        if phase == "pull":
            link.rest(compute + agree)
    return Seconds(compute=compute, agree=agree, embedded=machine.embedded, **seconds)


def _bytes(cost: Cost) -> Bytes:
    counted: dict[str, float] = {}
    for load in cost.values():
        for category, count in load.counted.items():
            counted[category] = counted.get(category, 0.0) + count
    owners = [sum(getattr(load, side) for load in cost.values()).max(initial=0.0) for side in ("owner_in", "owner_out")]
    by_phase = {
        link: {phase: float(getattr(load, link).max()) for phase, load in cost.items() if getattr(load, link).any()}
        for link in ("into", "out", "within")
    }
    return Bytes(counted, by_phase["into"], by_phase["out"], by_phase["within"], float(owners[0]), float(owners[1]))
