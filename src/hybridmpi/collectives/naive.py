"""The naive all-reduce: every rank receives every buffer and adds them in order. The oracle of all others."""

from __future__ import annotations

import numpy as np

from hybridmpi.arrays import fit_to_receive
from hybridmpi.collectives.group import Group, completed
from hybridmpi.collectives.steps import Steps
from hybridmpi.collectives.wire import PLAIN, Wire


def naive(group: Group, buffer: np.ndarray, wire: Wire = PLAIN) -> Steps:
    """Replace `buffer` [n] on every rank by the sum over the group. Collective over the group; in place.

    (p - 1) n bytes per rank: for tests, not for gradients. Every rank adds in the same order: the same bits.
    """
    flat = fit_to_receive(buffer).reshape(-1)
    mine = wire.outgoing(flat)
    everyone = wire.scratch((group.size, flat.size), flat)
    everyone[group.index] = mine
    others = [index for index in range(group.size) if index != group.index]
    requests = [request for index in others for request in group.receive(everyone[index], index)]
    requests += [request for index in others for request in group.send(mine, index)]
    yield completed(requests)
    flat[:] = 0
    for contribution in everyone:
        wire.add(contribution, flat)
