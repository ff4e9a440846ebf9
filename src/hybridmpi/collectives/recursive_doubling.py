"""Recursive doubling: in every step a rank exchanges all it has with a partner twice as far, and both add.

lg p messages of n bytes: the fewest messages, for small buffers (Thakur, Rabenseifner and Gropp, "Optimization of
collective communication operations in MPICH", 2005). Addition commutes, so both partners get the same bits. Ranks
beyond the largest power of two hand their data to a neighbour and get the sum back.
"""

from __future__ import annotations

import numpy as np

from hybridmpi.collectives.folding import Partner, folded
from hybridmpi.collectives.group import Group
from hybridmpi.collectives.steps import Steps
from hybridmpi.collectives.wire import PLAIN, Wire


def recursive_doubling(group: Group, buffer: np.ndarray, wire: Wire = PLAIN) -> Steps:
    """Replace `buffer` [n] on every rank by the sum over the group. Collective over the group; in place."""
    return folded(group, buffer, wire, _double)


def _double(
    group: Group, flat: np.ndarray, scratch: np.ndarray, wire: Wire, me: int, power: int, index: Partner
) -> Steps:
    distance = 1
    while distance < power:
        # Both partners add the same two numbers only if each also rounds its own.
        wire.settle(flat)
        yield from group.exchange(wire.outgoing(flat), scratch, index(me ^ distance))
        wire.add(scratch, flat)
        distance *= 2
