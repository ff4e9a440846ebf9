"""Windows in memory that the ranks of a node share, and what is said where there is no room for one.

Most MPIs do not look whether the file system that such memory lies in has room, and a rank dies by a signal when it
touches what is not there; where one does look, each rank knows its own share only. So the ranks look first, together.
"""

from __future__ import annotations

import platform
import shutil
from typing import TYPE_CHECKING, Any, NamedTuple

from hybridmpi import environment
from hybridmpi.errors import HybridMPIError, RemoteError
from hybridmpi.mpi_implementations import of_library

if TYPE_CHECKING:
    from mpi4py import MPI

SHARED_MEMORY = "/dev/shm"
"""Where MPI keeps what ranks share, unless it is told otherwise."""
_held: list[tuple[Any, int]] = []


class Claim(NamedTuple):
    """What one rank of a node wants: its rank in the job and the bytes; and the room it sees: free and in all, where
    MPI will keep them, or None where that cannot be told."""

    rank: int
    size: int
    room: tuple[int, int] | None


def shared_window(
    mpi: Any, size: int, unit: int, comm: MPI.Intracomm, node: MPI.Intracomm, what: str, remedy: str
) -> MPI.Win:
    """Return a window of `size` bytes of this rank in units of `unit` bytes. Collective over `comm` and `node`.

    Where both are the same the ranks see each other's memory. `node`: the ranks of `comm` on this node; `what` the
    memory is for and the `remedy` that is its own are for the error. Raises HybridMPIError on the first rank of a node
    that has no room for what its ranks want together, RemoteError on its others.
    """
    _held[:] = [(window, held) for window, held in _held if window != mpi.WIN_NULL]
    folder = _folder(mpi)
    claims = node.allgather(Claim(mpi.COMM_WORLD.Get_rank(), size, _room(folder)))
    wanted = sum(claim.size for claim in claims)
    rooms = [claim.room for claim in claims if claim.room is not None]
    if rooms:
        free, whole = min(rooms)
        if wanted > free or wanted + sum(held for _, held in _held) > whole:
            text = no_room(what, claims, folder, "", remedy)
            raise HybridMPIError(text) if node.Get_rank() == 0 else RemoteError(text)
    make = mpi.Win.Allocate_shared if comm == node else mpi.Win.Allocate
    try:
        window = make(size, unit, comm=comm)
    except mpi.Exception as error:
        raise HybridMPIError(no_room(what, claims, folder, f": {error}", remedy)) from error
    _held.append((window, wanted))
    return window


def no_room(what: str, claims: list[Claim], folder: str, said: str, remedy: str) -> str:
    """Return the error of ranks that cannot share what they want: the sum over the node, and whose part is the largest.
    Local, pure."""
    wanted, most = sum(claim.size for claim in claims), max(claims, key=lambda claim: claim.size)
    free = min((claim.room[0] for claim in claims if claim.room is not None), default=None)
    room = f"{folder} has {free:,} bytes free" if free is not None else f"look at the room in {folder}"
    ranks = f"{len(claims)} rank{'s' * (len(claims) > 1)} of {platform.node()}"
    part = f", {most.size:,} of them of rank {most.rank}," if len(claims) > 1 else ""
    return (
        f"{what}: {wanted:,} bytes{part} could not be shared by {ranks}{said}; {room}. Give it more (a container: "
        "docker run --shm-size=8g, or --ipc=host), remove what ended jobs have left there, raise the memory limit of "
        f"this job, or {remedy}"
    )


def _folder(mpi: Any) -> str:
    known = of_library(mpi.Get_library_version())
    return (known and known[0].backing and environment.text(known[0].backing)) or SHARED_MEMORY


def _room(folder: str) -> tuple[int, int] | None:
    try:
        whole, _, free = shutil.disk_usage(folder)
    except OSError:
        return None
    return free, whole
