"""Halving-doubling all-reduce, nearest partner first (Rabenseifner 2004; swCaffe, arXiv 1903.06934, for the order).

Recursive halving is a reduce-scatter: in every step a rank exchanges half of what it still sums with a partner.
Recursive doubling gathers it back the same way. 2 lg p messages and 2 (p - 1) / p n bytes per rank. What counts on a
slow trunk is the pairing order: the first exchange moves n / 2, the next n / 4, ... so near partners come first and the
trunk sees only the smallest pieces: 2 (p - q) / (p q) n instead of 2 (p - q) / p n with q ranks below it.

Ranks beyond the largest power of two hand their data to a neighbour and get the sum back: n more bytes each way.
"""

from __future__ import annotations

import numpy as np

from hybridmpi.collectives.folding import Partner, folded
from hybridmpi.collectives.group import Group
from hybridmpi.collectives.steps import Steps
from hybridmpi.collectives.wire import PLAIN, Wire


def halving_doubling(group: Group, buffer: np.ndarray, wire: Wire = PLAIN) -> Steps:
    """Replace `buffer` [n] on every rank by the sum over the group. Collective over the group; in place."""
    return folded(group, buffer, wire, _halve_and_double)


def _halve_and_double(
    group: Group, flat: np.ndarray, scratch: np.ndarray, wire: Wire, me: int, power: int, index: Partner
) -> Steps:
    start, stop = 0, flat.size
    exchanges = []
    distance = 1
    while distance < power:
        partner = index(me ^ distance)
        middle = start + (stop - start) // 2
        lower, upper = slice(start, middle), slice(middle, stop)
        keep, give = (upper, lower) if me & distance else (lower, upper)
        exchanges.append((partner, keep, give))
        yield from group.exchange(wire.outgoing(flat[give]), scratch[keep], partner)
        wire.add(scratch[keep], flat[keep])
        start, stop = keep.start, keep.stop
        distance *= 2
    wire.settle(flat[start:stop])
    for partner, keep, give in reversed(exchanges):
        landing = wire.landing(flat[give])
        yield from group.exchange(wire.outgoing(flat[keep]), landing, partner)
        wire.land(landing, flat[give])
