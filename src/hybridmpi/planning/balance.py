"""How evenly the owners of a table are loaded, by bytes held and by rows that steps touch, and which part to move."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from hybridmpi.planning.sparsity import Draws, expected_rows
from hybridmpi.sparse.partition import Partition

# A part moves only if the busiest owner's load falls by more than this fraction: moving costs a step or so.
WORTH_MOVING = 0.05


class Balance(NamedTuple):
    """The load of the busiest owner over the mean of all: 1 is even, the number of owners is all on one."""

    bytes: float
    access: float


class Move(NamedTuple):
    """A part that is to lie at owner `to` instead of `source`."""

    part: int
    source: int
    to: int


def part_access(draws: Sequence[Draws], partition: Partition, ranks: float = 1) -> np.ndarray:
    """Return how many distinct rows of each part `ranks` ranks should touch together, float64 [parts]. Local."""
    access = np.zeros(partition.parts)
    for held in partition.pieces:
        for piece in held:
            access[piece.part] = expected_rows(draws, ranks, piece)
    return access


def owner_access(draws: Sequence[Draws], partition: Partition, ranks: float = 1) -> np.ndarray:
    """Return how many distinct rows at each owner `ranks` ranks are expected to touch, float64 [owners]. Local."""
    return at_owners(part_access(draws, partition, ranks), partition)


def at_owners(loads: np.ndarray, partition: Partition) -> np.ndarray:
    """Return the sums over each owner's parts of `loads` [parts], float64 [owners]. Local."""
    return np.bincount(partition.homes, weights=loads, minlength=partition.owners)


def shares(draws: Sequence[Draws], partition: Partition) -> tuple[float, ...]:
    """Return which part of a rank's touched rows lies at each owner; even where no row is touched. Local."""
    access = owner_access(draws, partition)
    total = access.sum()
    return tuple((access / total if total else np.full(partition.owners, 1 / partition.owners)).tolist())


def balance(partition: Partition, owner_loads: np.ndarray) -> Balance:
    """Return how even `owner_loads` [owners] and the numbers of rows that the owners hold are. Local."""
    return Balance(uneven([partition.count_of(owner) for owner in range(partition.owners)]), uneven(owner_loads))


def uneven(loads: Sequence[float]) -> float:
    """Return the largest of `loads` over their mean, 1 where all are 0. Local."""
    mean = float(np.mean(loads))
    return float(np.max(loads)) / mean if mean else 1.0


def deal(loads: Sequence[float], owners: int) -> tuple[int, ...]:
    """Return an owner for each part, the heaviest parts first, each to the owner with the least so far. Local.

    Graham 1969: the busiest owner has at most 4/3 of the least possible. Equal loads are dealt in turn.
    """
    totals, homes = [0.0] * owners, [0] * len(loads)
    for part in sorted(range(len(loads)), key=lambda part: -loads[part]):
        home = min(range(owners), key=totals.__getitem__)
        homes[part], totals[home] = home, totals[home] + loads[part]
    return tuple(homes)


def hot_part(loads: Sequence[float], homes: Sequence[int], owners: int) -> Move | None:
    """Return the move of one part away from the busiest owner that lowers the largest load most. Local.

    `loads` [parts]: measured accesses, say. None where no move lowers the largest load by `WORTH_MOVING`.
    """
    totals = np.bincount(homes, weights=loads, minlength=owners)
    source, to = int(totals.argmax()), int(totals.argmin())
    third = np.delete(totals, [source, to]).max(initial=0.0) if source != to else 0.0
    after = {
        part: max(totals[source] - loads[part], totals[to] + loads[part], third)
        for part, home in enumerate(homes)
        if home == source and source != to
    }
    if not after:
        return None
    part = min(after, key=after.__getitem__)
    return Move(part, source, to) if after[part] < totals[source] * (1 - WORTH_MOVING) else None
