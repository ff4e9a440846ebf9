"""MPI's own all-reduce, as one more candidate: best for scalars, and what the others are measured against."""

from __future__ import annotations

import numpy as np

from hybridmpi.arrays import fit_to_receive
from hybridmpi.collectives.group import Group

# Open MPI takes counts below 2^31 elements only.
MOST_ELEMENTS = 1 << 30


def mpi_own(group: Group, buffer: np.ndarray) -> None:
    """Replace `buffer` [n] on every rank by the sum over the group. Collective over the group; in place.

    Nobody can see what MPI sends, so nothing is counted. Whether all ranks get the same bits is up to MPI.
    """
    from mpi4py import MPI

    flat = fit_to_receive(buffer).reshape(-1)
    for start in range(0, flat.size, MOST_ELEMENTS):
        group.comm.Allreduce(MPI.IN_PLACE, flat[start : start + MOST_ELEMENTS])
