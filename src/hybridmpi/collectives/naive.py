"""The naive all-reduce: every rank receives every buffer and adds them in rank order. The oracle of all others."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from hybridmpi.arrays import fit_to_receive, fit_to_send

if TYPE_CHECKING:
    from mpi4py import MPI


def naive(comm: MPI.Intracomm, buffer: np.ndarray) -> int:
    """Replace `buffer` [n] on every rank by the sum over the ranks of `comm`; return the bytes this rank sent.
    Collective over `comm`.

    (p - 1) n bytes per rank: for tests, not for gradients. Every rank adds in the same order: the same bits.
    """
    fit_to_receive(buffer)
    everyone = np.empty((comm.Get_size(), buffer.size), buffer.dtype)
    comm.Allgather(fit_to_send(buffer), everyone)
    buffer[...] = 0
    for contribution in everyone:
        buffer += contribution
    return (comm.Get_size() - 1) * buffer.nbytes
