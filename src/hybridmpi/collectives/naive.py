"""The naive all-reduce: every rank receives every buffer and adds them in rank order. The oracle of all others."""

from __future__ import annotations

import numpy as np

from hybridmpi.arrays import fit_to_receive, fit_to_send
from hybridmpi.collectives.group import Group


def naive(group: Group, buffer: np.ndarray) -> None:
    """Replace `buffer` [n] on every rank by the sum over the group. Collective over the group; in place.

    (p - 1) n bytes per rank: for tests, not for gradients. Every rank adds in the same order: the same bits.
    """
    fit_to_receive(buffer)
    everyone = np.empty((group.size, buffer.size), buffer.dtype)
    group.comm.Allgather(fit_to_send(buffer), everyone)
    for index in range(group.size):
        if index != group.index:
            group.count(index, buffer.nbytes)
    buffer[...] = 0
    for contribution in everyone:
        buffer += contribution.reshape(buffer.shape)
