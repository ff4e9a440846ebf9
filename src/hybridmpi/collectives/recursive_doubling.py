"""Recursive doubling: in every step a rank exchanges all it has with a partner twice as far, and both add.

lg p messages of n bytes: the fewest messages, for small buffers (Thakur, Rabenseifner and Gropp, "Optimization of
collective communication operations in MPICH", 2005). Addition commutes, so both partners get the same bits. Ranks
beyond the largest power of two hand their data to a neighbour and get the sum back.
"""

from __future__ import annotations

import numpy as np

from hybridmpi.arrays import fit_to_receive
from hybridmpi.collectives.group import Group
from hybridmpi.collectives.halving_doubling import folded


def recursive_doubling(group: Group, buffer: np.ndarray) -> None:
    """Replace `buffer` [n] on every rank by the sum over the group. Collective over the group; in place."""
    fit_to_receive(buffer)
    flat = buffer.reshape(-1)
    if group.size == 1 or flat.size == 0:
        return
    scratch = np.empty_like(flat)

    def core(index_of, me: int, power: int) -> None:
        distance = 1
        while distance < power:
            group.exchange(flat, scratch, index_of(me ^ distance))
            np.add(flat, scratch, out=flat)
            distance *= 2

    folded(group, flat, scratch, core)
