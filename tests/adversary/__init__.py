"""What makes missing waits show on one machine, where messages are eager and ranks keep pace: MPI that is as late as it
may be (`lazy`), and ranks that are slow at the worst moments (`storm`). For the runner of checks; nothing of it is in
the product.
"""

from __future__ import annotations


def install(lazy_seed: int | None, storm_seed: int | None) -> None:
    """Let messages be late and ranks be slow, by seeds; None: they are not. Local, before any world is made."""
    from mpi4py import MPI

    from adversary import lazy, storm

    slow = None
    if storm_seed is not None:
        slow = storm.Storm(storm_seed, MPI.COMM_WORLD.Get_rank(), MPI.COMM_WORLD.Get_size())
        storm.install(slow)
    lazy.install(lazy_seed or 0, slow, late=lazy_seed is not None)
