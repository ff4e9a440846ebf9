"""Recursive doubling: in every step a rank exchanges all it has with a partner twice as far, and both add.

lg p messages of n bytes: the fewest messages, for small buffers (Thakur, Rabenseifner and Gropp, "Optimization of
collective communication operations in MPICH", 2005). Addition commutes, so both partners get the same bits. Ranks
beyond the largest power of two hand their data to a neighbour and get the sum back.
"""

from __future__ import annotations

import numpy as np

from hybridmpi.collectives.folding import Partner, folded
from hybridmpi.collectives.group import Group


def recursive_doubling(group: Group, buffer: np.ndarray) -> None:
    """Replace `buffer` [n] on every rank by the sum over the group. Collective over the group; in place."""
    folded(group, buffer, _double)


def _double(group: Group, flat: np.ndarray, scratch: np.ndarray, me: int, power: int, index: Partner) -> None:
    distance = 1
    while distance < power:
        group.exchange(flat, scratch, index(me ^ distance))
        flat += scratch
        distance *= 2
