"""MPI's own all-reduce, as one more candidate: best for scalars, and what the others are measured against."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from hybridmpi.arrays import fit_to_receive
from hybridmpi.collectives.group import Group
from hybridmpi.collectives.steps import Steps
from hybridmpi.collectives.wire import PLAIN, Wire
from hybridmpi.errors import HybridMPIError
from hybridmpi.large_counts import pieces

if TYPE_CHECKING:
    from mpi4py import MPI


def mpi_own(group: Group, buffer: np.ndarray, wire: Wire = PLAIN) -> Steps:
    """Replace `buffer` [n] on every rank by the sum over the group. Collective over the group; in place.

    It waits inside MPI, in one go. Nobody can see what MPI sends, so nothing is counted; whether all ranks get the same
    bits is up to MPI. Raises HybridMPIError for a wire of 16 bits, of which MPI knows nothing.
    """
    if wire is not PLAIN:
        raise HybridMPIError(f"MPI's own all-reduce cannot send {wire.name}: expected the wire float32")
    flat = fit_to_receive(buffer).reshape(-1)
    sum_by_mpi(group.comm, flat)
    yield from ()


def sum_by_mpi(comm: MPI.Intracomm, flat: np.ndarray, wait_all: Callable[[list[Any]], None] | None = None) -> None:
    """Replace the flat buffer on every rank by the sum over `comm`. Collective over `comm`.

    It waits inside MPI, or by `wait_all` for ranks that have something to do meanwhile.
    """
    from mpi4py import MPI

    for part in pieces(flat):
        if wait_all is None:
            comm.Allreduce(MPI.IN_PLACE, part)
        else:
            wait_all([comm.Iallreduce(MPI.IN_PLACE, part)])
