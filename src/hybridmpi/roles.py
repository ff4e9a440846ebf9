"""Roles: which ranks of a world become servers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from hybridmpi.errors import LaunchError, UsageError

Servers = int | Literal["per-node"]


def assign_servers(node_of: Sequence[int], servers: Servers) -> list[int]:
    """Return the world ranks that become servers, ascending; empty when the compute ranks hold the shards. Local.

    `node_of[r]` is the node of world rank r. "per-node" makes the last rank of every node that has at least two a
    server. A number is spread over the nodes in turn, each giving its highest rank, and a node gives its last compute
    rank only when no other node has one to spare. Raises LaunchError when no compute rank would remain.
    """
    members: dict[int, list[int]] = {}
    for rank, node in enumerate(node_of):
        members.setdefault(node, []).append(rank)
    if servers == "per-node":
        return sorted(ranks[-1] for ranks in members.values() if len(ranks) > 1)
    if isinstance(servers, bool) or not isinstance(servers, int) or servers < 0:
        raise UsageError(f"servers = {servers!r}: expected 'per-node' or a number from 0 up")
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
