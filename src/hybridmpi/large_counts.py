"""Large counts: what is larger than one call of MPI can take goes in pieces.

Up to MPI 3.1, which Open MPI 4.1 and 5 are, counts are C ints, and mpi4py refuses a larger one (MPI_ERR_ARG); where MPI
has the functions with large counts of version 4 (MPI_Send_c), as MPICH 4 has, mpi4py calls those. But libraries
multiply counts by sizes, and not all of them in 64 bits: MPI_Bcast of 2^29 ints failed in MPICH (issue 2257),
MPI_Iallreduce of 12 GB in Open MPI (pull request 10094), though neither count was large. So the limit is one of bytes,
for every MPI alike.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from mpi4py import MPI

# Half of what a C int counts, so that the few bytes that go with a piece do not matter.
LARGEST = 1 << 30


class _Announced(NamedTuple):
    """Comes before a pickled object in pieces: its size in bytes."""

    size: int


def most_items(item_bytes: int) -> int:
    """Return how many items of so many bytes go in one call; at least one. Local."""
    return max(1, LARGEST // item_bytes)


def stretches(count: int, item_bytes: int) -> Iterator[slice]:
    """Yield the slices in which `count` items of `item_bytes` each go, in their order. Local."""
    most = most_items(item_bytes)
    for start in range(0, count, most):
        yield slice(start, min(start + most, count))


def pieces(array: np.ndarray) -> list[np.ndarray]:
    """Return the C-contiguous `array` as the flat views that go in one call each, in their order. Local."""
    flat = array.reshape(-1)
    return [flat[part] for part in stretches(flat.size, flat.itemsize)]


def begin_allgather(
    comm: MPI.Intracomm, mine: np.ndarray, everything: np.ndarray, lengths: np.ndarray
) -> list[MPI.Request]:
    """Begin to gather the flat `mine` of every rank in the flat `everything` of each, one rank's after the other's;
    return the requests. Collective over `comm`.

    `lengths` int64[ranks]: the elements of each rank, of one dtype. Both arrays stay as they are until all is complete.
    """
    starts = np.cumsum(lengths) - lengths
    if everything.nbytes <= LARGEST:
        return [comm.Iallgatherv(mine, [everything, (lengths.tolist(), starts.tolist())])]
    # Counts may be small, but displacements are not.
    parts = [everything[start : start + length] for start, length in zip(starts, lengths, strict=True)]
    parts[comm.Get_rank()][:] = mine
    return [comm.Ibcast(piece, root=rank) for rank, part in enumerate(parts) for piece in pieces(part)]


def send_object(comm: MPI.Intracomm, value: Any, rank: int, tag: int) -> None:
    """Send a picklable value to a rank, which takes it by `receive_object`. Local; waits as MPI's own sends do."""
    data = pickle.dumps(value, protocol=5)
    if len(data) <= LARGEST:
        comm.Send(data, rank, tag)
        return
    comm.send(_Announced(len(data)), rank, tag)
    for piece in pieces(np.frombuffer(data, np.uint8)):
        comm.Send(piece, rank, tag)


def receive_object(comm: MPI.Intracomm, rank: int, tag: int) -> Any:
    """Return what a rank sent by `send_object`. Local; waits for it."""
    value = comm.recv(source=rank, tag=tag)
    if not isinstance(value, _Announced):
        return value
    data = np.empty(value.size, np.uint8)
    for piece in pieces(data):
        comm.Recv(piece, rank, tag)
    return pickle.loads(data)
