"""MPI's own all-reduce, as one more candidate: best for scalars, and what the others are measured against."""

from __future__ import annotations

import numpy as np

from hybridmpi.arrays import fit_to_receive
from hybridmpi.collectives.group import MOST_ELEMENTS, Group
from hybridmpi.collectives.steps import Steps
from hybridmpi.collectives.wire import PLAIN, Wire
from hybridmpi.errors import HybridMPIError


def mpi_own(group: Group, buffer: np.ndarray, wire: Wire = PLAIN) -> Steps:
    """Replace `buffer` [n] on every rank by the sum over the group. Collective over the group; in place.

    It waits inside MPI, in one go. Nobody can see what MPI sends, so nothing is counted; whether all ranks get the same
    bits is up to MPI. Raises HybridMPIError for a wire of 16 bits, of which MPI knows nothing.
    """
    from mpi4py import MPI

    if wire is not PLAIN:
        raise HybridMPIError(f"MPI's own all-reduce cannot send {wire.name}: expected the wire float32")
    flat = fit_to_receive(buffer).reshape(-1)
    for start in range(0, flat.size, MOST_ELEMENTS):
        group.comm.Allreduce(MPI.IN_PLACE, flat[start : start + MOST_ELEMENTS])
    yield from ()
