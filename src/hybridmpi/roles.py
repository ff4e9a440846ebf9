"""Roles: which ranks of a world become servers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

from hybridmpi.errors import LaunchError, UsageError
from hybridmpi.field_types import Range, checked

Servers = Annotated[Literal["per-node"] | int | tuple[int, ...], Range(0)]


def assign_servers(node_of: Sequence[int], servers: Servers) -> list[int]:
    """Return the world ranks that become servers, ascending; empty when the compute ranks hold the shards. Local.

    `node_of[r]` is the node of world rank r. "per-node" makes the last rank of every node that has at least two a
    server. A number is spread over the nodes in turn, each giving its highest rank, and a node gives its last compute
    rank only when no other node has one to spare. A tuple names the ranks themselves, such as those of a component of a
    heterogeneous job. Raises LaunchError when no compute rank would remain, or a rank is named that there is not.
    """
    servers = checked(servers, Servers, "servers", python=True)
    members: dict[int, list[int]] = {}
    for rank, node in enumerate(node_of):
        members.setdefault(node, []).append(rank)
    if servers == "per-node":
        return sorted(ranks[-1] for ranks in members.values() if len(ranks) > 1)
    if isinstance(servers, tuple):
        return _named(servers, len(node_of))
    if servers >= len(node_of) and servers > 0:
        raise LaunchError(
            f"{servers} servers were asked for and MPI started {len(node_of)} rank{'s' * (len(node_of) > 1)}: at least "
            f"one rank must compute. Start {servers + 1} or more ranks (mpirun -n {servers + 1}), or ask for fewer "
            "servers (servers = 0 keeps the rows on the compute ranks)"
        )
    free = {node: list(ranks) for node, ranks in sorted(members.items())}
    chosen: list[int] = []
    while len(chosen) < servers:
        willing = [node for node, ranks in free.items() if len(ranks) > 1] or [n for n, r in free.items() if r]
        for node in willing[: servers - len(chosen)]:
            chosen.append(free[node].pop())
    return sorted(chosen)


def _named(servers: tuple[int, ...], ranks: int) -> list[int]:
    """Return the named ranks, ascending, checked to be different ones of `ranks` ranks of which one is left."""
    chosen = sorted(set(servers))
    if len(chosen) < len(servers):
        raise UsageError(f"servers = {list(servers)}: a rank is named twice")
    if chosen and chosen[-1] >= ranks:
        raise LaunchError(
            f"servers = {list(servers)}: there is no rank {chosen[-1]}: MPI started {ranks}, 0 to {ranks - 1}. Start "
            "as many as the list was made for, or name others"
        )
    if len(chosen) == ranks:
        raise LaunchError(f"servers = {list(servers)}: all {ranks} ranks would serve; leave one that computes")
    return chosen
