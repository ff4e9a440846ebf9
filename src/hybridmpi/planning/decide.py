"""Which way each parameter goes: the cheapest by the cost model, with the reason in words.

The paper's rule, dense once alpha > bandwidth(servers) / bandwidth(all-reduce), is what the model says where links are
all that counts: `crossover_alpha` is that ratio with row ids, messages and the owners' work in it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from hybridmpi.planning.costs import WAYS, Transport
from hybridmpi.planning.machine import Machine
from hybridmpi.planning.modes import DENSE_WAY, MODES, TABLE_WAY, Mode, Way
from hybridmpi.planning.predict import Prediction, predict
from hybridmpi.planning.workload import Dense, Sparse, Workload

Ways = Mapping[str, Way]

# A parameter leaves the way it goes only if the other one adds less than this part of its time: alpha scatters, and
# moving a table costs.
WORTH_CHANGING = 0.9

# How often all parameters are looked at again, since what one does changes what the others cost.
ROUNDS = 3

# Alpha is found to this precision.
PRECISION = 1e-4


@dataclass(frozen=True)
class Decision:
    """A parameter's way, why, and what each way adds to a step in seconds; `crossover`: see `crossover_alpha`."""

    name: str
    way: Way
    reason: str
    seconds: dict[Way, float]
    crossover: float | None = None


def possible_ways(parameter: Dense | Sparse, machine: Machine, beside: int = 0) -> tuple[Way, ...]:
    """Return the ways that a parameter can go. Local.

    Nothing dense is gathered; a table is not copied to every rank if that takes too much memory, with the `beside`
    bytes that copies of others take on a rank, or for one rank only.
    """
    if isinstance(parameter, Dense):
        return ("allreduce", "ps")
    return WAYS if machine.ranks > 1 and beside + copy_bytes(parameter) <= room_for_copies(machine) else ("ps",)


def room_for_copies(machine: Machine) -> float:
    """Return the bytes that copies of tables may take on a rank: the ranks of a node share its memory. Local."""
    return machine.replica_bytes / max(machine.compute)


def bytes_of_copies(tables: Iterable[Sparse], ways: Ways) -> int:
    """Return the bytes that those of `tables` take on every rank which `ways` copies there. Local."""
    return sum(copy_bytes(table) for table in tables if ways[table.name] != "ps")


def copy_bytes(table: Sparse) -> int:
    """Return the bytes that a table takes on every rank when it is copied there: values, state, gradient. Local."""
    return table.bytes * (2 + table.slots)


def ways_of_mode(mode: Mode, workload: Workload) -> dict[str, Way]:
    """Return the way of every parameter in a mode, in "hybrid" before anything is known of it. Local."""
    return {p.name: (DENSE_WAY if isinstance(p, Dense) else TABLE_WAY)[mode] for p in workload.parameters}


def choose_ways(
    workload: Workload, machine: Machine, transport: Transport, current: Ways | None = None
) -> dict[str, Way]:
    """Return the way of every parameter in mode "hybrid". Local; the same on ranks that give the same numbers.

    One parameter after another takes what makes the step shortest, beside what the others do, beginning with the best
    mode. `current`: the ways of a running job, where it begins, and which a parameter leaves only if that is worth it.
    """
    ways = dict(current) if current else min(
        (_possible(ways_of_mode(mode, workload), workload, machine) for mode in MODES),
        key=lambda ways: predict(workload, ways, machine, transport).seconds.step,
    )  # fmt: skip
    for _ in range(ROUNDS):
        before = dict(ways)
        for parameter in workload.parameters:
            seconds = added_seconds(parameter, workload, ways, machine, transport)
            here = ways[parameter.name]
            if here not in seconds:  # there is no room for its copy beside the others'
                ways[parameter.name] = here = "ps"
            best = min(seconds, key=seconds.__getitem__)
            limit = seconds.get(here, math.inf) * (WORTH_CHANGING if current else 1.0)
            if seconds[best] < limit:
                ways[parameter.name] = best
        if ways == before:
            break
    return ways


def _possible(ways: Ways, workload: Workload, machine: Machine) -> dict[str, Way]:
    """Return `ways` without copies of tables that memory has no room for, the first ones first."""
    found: dict[str, Way] = {p.name: ways[p.name] if isinstance(p, Dense) else "ps" for p in workload.parameters}
    for table in workload.tables:
        if ways[table.name] in possible_ways(table, machine, bytes_of_copies(workload.tables, found)):
            found[table.name] = ways[table.name]
    return found


def added_seconds(
    parameter: Dense | Sparse, workload: Workload, ways: Ways, machine: Machine, transport: Transport
) -> dict[Way, float]:
    """Return what a parameter adds to the step by each way that it can go, the others going theirs. Local."""
    rest = workload.without(parameter.name)
    without = predict(rest, ways, machine, transport).seconds.step
    return {
        way: predict(workload, {**ways, parameter.name: way}, machine, transport).seconds.step - without
        for way in possible_ways(parameter, machine, bytes_of_copies(rest.tables, ways))
    }


def decide(
    parameter: Dense | Sparse, workload: Workload, ways: Ways, machine: Machine, transport: Transport
) -> Decision:
    """Return the decision behind `ways[parameter.name]`, as `choose_ways` has taken it. Local."""
    way = ways[parameter.name]
    seconds = added_seconds(parameter, workload, ways, machine, transport)
    if isinstance(parameter, Dense):
        words = {"allreduce": "dense: summed by all-reduce", "ps": "dense: kept at its owners"}
        return Decision(parameter.name, way, f"{words[way]}; {_times(seconds)}", seconds)
    if machine.ranks == 1:
        return Decision(parameter.name, way, f"one compute rank: rows at their owners; {_times(seconds)}", seconds)
    if len(seconds) == 1:
        copies = copy_bytes(parameter) + bytes_of_copies(workload.without(parameter.name).tables, ways)
        limit = room_for_copies(machine) / 1e9
        reason = (
            f"copies on every rank take {copies / 1e9:.1f} GB with it, more than {limit:.1f} GB: rows to their owners"
        )
        return Decision(parameter.name, way, reason, seconds)
    crossover = crossover_alpha(parameter, workload, ways, machine, transport)
    alpha = workload.touched[parameter.name].alpha(parameter.rows).rank
    if crossover is None:
        compared = f"alpha {alpha:.3g}; all-reduce is slower than owners at any alpha"
    else:
        side = "above" if alpha > crossover else "below"
        compared = f"alpha {alpha:.3g} is {side} the crossover {crossover:.3g}"
    if way == "allgather":
        compared = f"alpha {alpha:.3g}, {machine.ranks} ranks"
    words = {"ps": "rows to their owners", "allreduce": "dense all-reduce", "allgather": "rows gathered to all ranks"}
    kept = "" if seconds[way] == min(seconds.values()) else ", kept since a change gains too little"
    return Decision(parameter.name, way, f"{compared}: {words[way]}{kept}; {_times(seconds)}", seconds, crossover)


def crossover_alpha(
    table: Sparse, workload: Workload, ways: Ways, machine: Machine, transport: Transport
) -> float | None:
    """Return the fraction of the table's rows per rank above which all-reduce is faster than owners; None if it never
    is. Local."""
    touched = workload.touched[table.name]

    def owners_lose(alpha: float) -> bool:
        there = workload.with_touched(table.name, touched.moved_to(alpha, table.rows))
        ps, dense = (
            predict(there, {**ways, table.name: way}, machine, transport).seconds.step for way in ("ps", "allreduce")
        )
        return ps > dense

    if not table.rows or not owners_lose(1.0):
        return None
    low, high = 0.0, 1.0
    while high - low > PRECISION:
        middle = (low + high) / 2
        low, high = (low, middle) if owners_lose(middle) else (middle, high)
    return high


def predict_modes(workload: Workload, machine: Machine, transport: Transport) -> dict[Mode, Prediction]:
    """Return the predicted step in every mode, "hybrid" with the ways that `choose_ways` returns. Local."""
    ways = {mode: ways_of_mode(mode, workload) for mode in MODES}
    ways["hybrid"] = choose_ways(workload, machine, transport)
    return {mode: predict(workload, ways[mode], machine, transport) for mode in MODES}


def _times(seconds: Mapping[Way, float]) -> str:
    ordered = sorted(seconds, key=seconds.__getitem__)
    return "adds " + ", ".join(f"{seconds[way] * 1e3:.2f} ms by {way}" for way in ordered)
