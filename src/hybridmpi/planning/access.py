"""How many rows of each part and at each owner of a table steps touch, and how even that is.

Expected, from frequencies; what a running job moves by what it has measured is balance.py."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from hybridmpi.planning.sparsity import Draws, expected_rows
from hybridmpi.sparse.partition import Partition


class Balance(NamedTuple):
    """The load of the busiest owner over the mean of all: 1 is even, the number of owners is all on one."""

    bytes: float
    access: float


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
