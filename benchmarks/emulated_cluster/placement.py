"""Which rank runs where, and how each MPI is told so. Pure functions."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest

from hybridmpi.errors import UsageError
from hybridmpi.mpi_implementations import MPICH, OPEN_MPI

BLOCK, ROUND_ROBIN = "block", "round-robin"
PLACEMENTS = (BLOCK, ROUND_ROBIN)
# Open MPI's own way depends on the number of ranks; Hydra fills a host before the next, unless told how many at once.
FLAGS = {
    (OPEN_MPI, BLOCK): ["--map-by", "slot"],
    (OPEN_MPI, ROUND_ROBIN): ["--map-by", "node"],
    (MPICH, BLOCK): [],
    (MPICH, ROUND_ROBIN): ["-ppn", "1"],
}


def shares(members: Sequence[Sequence[str]], ranks: int, placement: str) -> list[tuple[str, int]]:
    """Return (host, ranks there) in the order in which MPI must be given the hosts; `members`: hosts by group. Local.

    "block": neighbouring ranks on one host, then on the next host of the group. "round-robin": ranks are dealt to the
    groups in turn, so neighbours in rank are in different groups. Hosts that get no rank are left out.
    """
    if placement not in PLACEMENTS:
        raise UsageError(f"placement '{placement}': expected {' or '.join(PLACEMENTS)}")
    if ranks < 1:
        raise UsageError(f"{ranks} ranks: expected at least 1")
    if placement == BLOCK:
        order = [name for names in members for name in names]
    else:
        order = [name for names in zip_longest(*members) for name in names if name is not None]
    share, more = divmod(ranks, len(order))
    return [(name, count) for i, name in enumerate(order) if (count := share + (i < more))]


def hosts_of_ranks(order: Sequence[tuple[str, int]], placement: str) -> list[str]:
    """Return the host of every rank, from what `shares` returned. Local."""
    if placement == BLOCK:
        return [name for name, count in order for _ in range(count)]
    most = max(count for _, count in order)
    return [name for turn in range(most) for name, count in order if count > turn]
