"""Which owner should hold which part: so that none has much more to do, or to store, than the others.

What an owner does in a step grows with the bytes of the rows that are pushed to it; so a part weighs what was pushed to
it. Before anything was, it weighs what it stores. Parts are placed heaviest first, each at the owner that has least
(Graham, "Bounds on multiprocessing timing anomalies", 1969: at most 4/3 of the best possible), but stay where they are
while their owner has room: rows that do not move cost nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hybridmpi.errors import UsageError

# Rows are moved when the most loaded owner then has a tenth less to do: smaller gains are within what steps differ by.
LEAST_GAIN = 0.1
# A part stays where it is while its owner has at most so much more than the mean.
SLACK = 0.02
# No owner stores more than this times the mean, unless parts are so large that it cannot be helped.
MOST_STORED = 1.5


@dataclass(frozen=True)
class Part:
    """A part of a table: the bytes it stores, with optimiser state; bytes of rows that were pushed to it; its owner."""

    table: str
    number: int
    stored: int
    pushed: int
    home: int


@dataclass(frozen=True)
class Proposal:
    """Where parts should lie: `homes` by (table, part), for all parts, moved or not.

    `before` and `after`: the most loaded owner over the mean; `moved`: bytes to move; `reason`: in words, why rows
    should move, or why not. `pays`: whether the gain is worth it; if not, `homes` are the present ones.
    """

    homes: Mapping[tuple[str, int], int]
    before: float
    after: float
    moved: int
    pays: bool
    reason: str


def propose(parts: Sequence[Part], owners: int, least_gain: float = LEAST_GAIN) -> Proposal:
    """Return where the parts of all tables should lie, over owners 0 to owners - 1. Local.

    Raises UsageError for a part at an owner that there is not, or of negative size.
    """
    for part in parts:
        if not 0 <= part.home < owners or part.stored < 0 or part.pushed < 0:
            raise UsageError(f"{part}: expected an owner from 0 to {owners - 1}, and bytes from 0 up")
    measured = any(part.pushed for part in parts)
    weights = [float(part.pushed if measured else part.stored) for part in parts]
    now = [part.home for part in parts]
    then = _place(parts, weights, owners)
    before, after = _imbalance(weights, now, owners), _imbalance(weights, then, owners)
    moved = sum(part.stored for part, home in zip(parts, then, strict=True) if part.home != home)
    what = "rows pushed" if measured else "bytes stored"
    found = f"{what}: the most loaded of {owners} owners has {before:.2f} times the mean"
    count = sum(part.home != home for part, home in zip(parts, then, strict=True))
    pays = after * (1 + least_gain) <= before and count > 0
    if pays:
        homes, reason = then, f"{found}, {after:.2f} after {count} of {len(parts)} parts move ({moved:,} bytes)"
    else:
        homes, reason = now, f"{found}; {_why_not(parts, weights, owners, before, after)}"
        moved, after = 0, before
    by_part = {(part.table, part.number): home for part, home in zip(parts, homes, strict=True)}
    return Proposal(by_part, before, after, moved, pays, reason)


def _why_not(parts: Sequence[Part], weights: list[float], owners: int, before: float, after: float) -> str:
    mean = sum(weights) / owners
    heaviest = max(range(len(parts)), key=weights.__getitem__, default=None)
    if heaviest is not None and weights[heaviest] > mean * (1 + LEAST_GAIN):
        part = parts[heaviest]
        return (
            f"part {part.number} of '{part.table}' alone has {weights[heaviest] / mean:.2f} times the mean: "
            "more parts would help, other places do not"
        )
    return f"{after:.2f} at best: not worth moving" if after < before else "nothing to gain"


def _imbalance(weights: Sequence[float], homes: Sequence[int], owners: int) -> float:
    """Return the load of the most loaded owner over the mean; 1 where there is no load."""
    loads = [0.0] * owners
    for weight, home in zip(weights, homes, strict=True):
        loads[home] += weight
    return max(loads) * owners / sum(loads) if sum(loads) else 1.0


def _place(parts: Sequence[Part], weights: Sequence[float], owners: int) -> list[int]:
    """Return the homes of the parts, heaviest first."""
    enough = sum(weights) / owners * (1 + SLACK)
    room = MOST_STORED * sum(part.stored for part in parts) / owners
    loads, stored = [0.0] * owners, [0] * owners
    homes = [0] * len(parts)
    for index in sorted(range(len(parts)), key=lambda i: (-weights[i], -parts[i].stored, i)):
        part, weight = parts[index], weights[index]
        free = [o for o in range(owners) if stored[o] + part.stored <= room]
        if part.home in free and loads[part.home] + weight <= enough:
            home = part.home
        elif free:
            home = min(free, key=lambda o: (loads[o], o != part.home, o))
        else:
            home = min(range(owners), key=lambda o: (stored[o], o != part.home, o))
        homes[index] = home
        loads[home] += weight
        stored[home] += part.stored
    return homes
