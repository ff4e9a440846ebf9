"""Topology: where each compute rank runs, in three levels: core, node, supernode.

A node is what shares memory. A supernode is a group of nodes whose links to each other are faster than the trunk that
leads to other groups: the hosts of one switch, rack or block (swCaffe, arXiv 1903.06934). The job file says which
hosts those are; otherwise Slurm's own topology does; otherwise all nodes count as near each other.
"""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from hybridmpi import environment
from hybridmpi.collectives.hostlist import expand
from hybridmpi.errors import LaunchError, UsageError
from hybridmpi.wording import plural
from hybridmpi.world import World

Source = Literal["job file", "Slurm", "none"]


class Place(NamedTuple):
    """Where a rank runs. Sorted, neighbours are as near each other as can be.

    `supernode`: from 0, in the order of the ranks; `node`: the number that World.node_of has; `core`: the lowest core
    that the rank may run on, 0 for one that is not bound.
    """

    supernode: int
    node: int
    core: int


@dataclass(frozen=True)
class Topology:
    """The places of all compute ranks, the same on each of them.

    `places[r]` is that of compute rank r. `supernode_names[s]` is the job file's host list or Slurm's switch or block
    of supernode s, "all" where there is nothing to know. `source` says who told which hosts are near each other.
    """

    places: tuple[Place, ...]
    supernode_names: tuple[str, ...]
    source: Source

    @property
    def nodes(self) -> int:
        """How many nodes the compute ranks are on."""
        return len({place.node for place in self.places})

    @property
    def supernodes(self) -> int:
        """How many supernodes the compute ranks are in."""
        return len(self.supernode_names)

    def describe(self) -> str:
        """Return one line for the plan: "16 ranks on 4 nodes in 2 supernodes (job file)". Local."""
        text = f"{plural(len(self.places), 'rank')} on {plural(self.nodes, 'node')}"
        if self.nodes == 1:
            return text
        source = "no topology known" if self.source == "none" else self.source
        return f"{text} in {plural(self.supernodes, 'supernode')} ({source})"


class Report(NamedTuple):
    """What one compute rank knows of its place: its world rank, node, host name, lowest core, and Slurm's variables."""

    rank: int
    node: int
    host: str
    core: int
    address: str
    pattern: str


def discover(world: World, supernodes: Sequence[str] = ()) -> Topology:
    """Return the topology of the compute ranks, the same on each. Collective over compute.

    `supernodes`: a host list for each supernode, such as ["node[01-16]", "node[17-32],gpu1"], the same on every rank;
    empty: ask Slurm. Raises the same error on every rank: UsageError for host lists that cannot be read or do not
    hold each compute host exactly once, LaunchError for ranks that share memory and are in different supernodes.
    """
    mine = Report(
        rank=world.rank,
        node=world.node_of[world.rank],
        host=socket.gethostname(),
        core=min(os.sched_getaffinity(0)),
        address=environment.text("SLURM_TOPOLOGY_ADDR"),
        pattern=environment.text("SLURM_TOPOLOGY_ADDR_PATTERN"),
    )
    return arrange(world.gather(mine), supernodes)


def arrange(reports: Sequence[Report], supernodes: Sequence[str] = ()) -> Topology:
    """Return the topology that the reports of compute ranks 0, 1, ... make; arguments and errors of discover. Local."""
    source: Source = "none"
    names = ["all"] * len(reports)
    if supernodes:
        source, names = "job file", _lists_of(reports, supernodes)
    elif leaves := _leaves_of(reports):
        source, names = "Slurm", leaves
    _refuse_split_nodes(reports, names, source)
    numbers = {name: number for number, name in enumerate(dict.fromkeys(names))}
    places = tuple(Place(numbers[name], mine.node, mine.core) for mine, name in zip(reports, names, strict=True))
    return Topology(places, tuple(numbers), source)


# -- Slurm -----------------------------------------------------------------------------------------------------------


def leaf_of(address: str, pattern: str) -> str | None:
    """Return the leaf switch or the block of SLURM_TOPOLOGY_ADDR and its _PATTERN; None if there is none. Local.

    topology/tree: "s0.s4.s8.tux1" and "switch.switch.switch.node", from the top down to the host. A level without a
    switch above this host is empty (".core.rack7.gpu27"), one with several is a host list ("s0.s[4-5].tux1"), and
    the host's name may hold dots. topology/block: "b8.tux1" and "block.node". Without a topology: "tux1" and "node".
    A torus ("torus:x:y:z.node") has no groups. Source: topology_p_get_node_addr of Slurm's plugins.
    """
    levels = pattern.split(".")
    parts = address.split(".", len(levels) - 1)
    if len(parts) != len(levels) or levels[-2:] not in (["switch", "node"], ["block", "node"]):
        return None
    return parts[-2] or None


def _leaves_of(reports: Sequence[Report]) -> list[str] | None:
    """Return the leaf of each rank; None if Slurm does not give every rank one of its own host."""
    first: dict[str, Report] = {}
    leaves = []
    for mine in reports:
        other = first.setdefault(mine.address, mine)
        # Hydra hands the variables of mpiexec's host to the ranks of all hosts.
        inherited = other.host != mine.host and other.node != mine.node
        leaf = leaf_of(mine.address, mine.pattern)
        if leaf is None or inherited:
            return None
        leaves.append(leaf)
    return leaves


# -- job file --------------------------------------------------------------------------------------------------------


def _lists_of(reports: Sequence[Report], lists: Sequence[str]) -> list[str]:
    """Return the host list that holds each rank's host."""
    if isinstance(lists, str):
        raise UsageError(f'[topology] supernodes = "{lists}": expected a list of host lists, such as ["{lists}"]')
    listed = _listed(lists)
    by_short: dict[str, list[str]] = {}
    for name in listed:
        by_short.setdefault(_short(name), []).append(name)
    found: dict[str, str] = {}
    missing: dict[str, int] = {}
    for mine in reports:
        if mine.host in found or mine.host in missing:
            continue
        # A name without a domain stands for the host of any; two domains are two hosts.
        host = mine.host.lower()
        alike = [n for n in by_short.get(_short(host), []) if n == host or "." not in n or "." not in host]
        if not alike:
            missing[mine.host] = mine.rank
            continue
        numbers = {listed[name]: name for name in alike}
        if len(numbers) > 1:
            places = _places(((name, number) for number, name in numbers.items()), lists)
            raise UsageError(
                f"[topology] supernodes: host '{mine.host}' of rank {mine.rank} is {places}; "
                "expected it in one list: write it there as `hostname` prints it, and take it out of the others"
            )
        found[mine.host] = lists[next(iter(numbers))]
    if missing:
        _refuse_missing(missing, listed, lists)
    return [found[mine.host] for mine in reports]


def _listed(lists: Sequence[str]) -> dict[str, int]:
    """Return the number (from 0) of the list of each host named, in lower case."""
    listed: dict[str, int] = {}
    for number, text in enumerate(lists):
        for name in map(str.lower, expand(text)):
            other = listed.setdefault(name, number)
            if other != number:
                raise UsageError(
                    f"[topology] supernodes: host '{name}' is {_places([(name, other), (name, number)], lists)}; "
                    "expected it in one list: take it out of the others"
                )
    return listed


def _refuse_missing(missing: dict[str, int], listed: dict[str, int], lists: Sequence[str]) -> None:
    host, rank = next(iter(missing.items()))

    def nearness(name: str) -> tuple[bool, int]:
        return _unpadded(name) == _unpadded(host.lower()), len(os.path.commonprefix([name, host.lower()]))

    nearest = max(listed, key=nearness)
    others = f" (nor are {plural(len(missing) - 1, 'other host')})" if len(missing) > 1 else ""
    raise UsageError(
        f"[topology] supernodes: host '{host}' of rank {rank} is in none of the lists{others}; expected each host in "
        f"exactly one. The nearest name is {_places([(nearest, listed[nearest])], lists)}: correct it, or add '{host}' "
        "to the list of its supernode"
    )


def _places(names: Iterable[tuple[str, int]], lists: Sequence[str]) -> str:
    """Return where names stand, in words: 'a' in list 1 ("a,b") and ..."""
    return " and ".join(f"'{name}' in list {number + 1} (\"{lists[number]}\")" for name, number in names)


def _short(host: str) -> str:
    return host.partition(".")[0]


def _unpadded(host: str) -> str:
    """Return a name with its numbers stripped of leading zeros: node07 and node7 are alike."""
    return re.sub(r"(?<!\d)0+(?=\d)", "", host)


# -- both ------------------------------------------------------------------------------------------------------------


def _refuse_split_nodes(reports: Sequence[Report], names: Sequence[str], source: Source) -> None:
    """Raise LaunchError if ranks that share memory are in different supernodes."""
    first: dict[int, int] = {}
    for index, mine in enumerate(reports):
        before = first.setdefault(mine.node, index)
        if names[before] == names[index]:
            continue
        other = reports[before]
        says = "the job file's [topology] supernodes" if source == "job file" else "SLURM_TOPOLOGY_ADDR"
        do = (
            "put both hosts in one list"
            if source == "job file"
            else "leave the variable as Slurm sets it, or give the job file [topology] supernodes"
        )
        raise LaunchError(
            f"ranks {other.rank} (host '{other.host}') and {mine.rank} (host '{mine.host}') share the memory of node "
            f'{mine.node}, but {says} puts one in supernode "{names[before]}" and the other in "{names[index]}"; '
            f"expected one supernode for all ranks of a node: {do}"
        )
