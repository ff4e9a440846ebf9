"""What a calibration of the all-reduce found, in words: the links, and for each size the algorithms side by side."""

from __future__ import annotations

from hybridmpi.collectives import Topology
from hybridmpi.collectives.cost import Link
from hybridmpi.collectives.group import LEVELS
from hybridmpi.collectives.selection import Choice
from hybridmpi.collectives.tuning import Calibration

NAMES = {
    "node": "link in a node",
    "supernode": "link in a supernode",
    "trunk": "link across the trunk",
    "shared": "all-reduce in a node",
    "mpi": "MPI's all-reduce",
}


def explain(found: Calibration, topology: Topology) -> str:
    """Return lines that say what was measured and why which algorithm was chosen. Local."""
    lines = [f"calibration: {topology.describe()}"]
    if not found.choices:
        return f"{lines[0]}; nothing to choose"
    links = {name: found.network.links[name] for name in LEVELS if name in found.network.links} if found.network else {}
    lines += [_link(name, link) for name, link in (links | found.sums).items()]
    if found.network:
        lines.append(f"  {'additions':<23}{1e-9 / found.network.add:>31.4g} GB/s")
    lines.append(f"{'bytes':>14}  {'algorithm':<20}{'predicted us':>14}{'measured us':>14}")
    return "\n".join([*lines, *(line for choice in found.choices for line in _choice(choice))])


def _link(name: str, link: Link) -> str:
    rate = f"{1e-9 / link.per_byte:>8.4g} GB/s" if link.per_byte else "no cost per byte"
    return f"  {NAMES[name]:<23}latency {link.latency * 1e6:>10.4g} us, {rate}"


def _choice(choice: Choice) -> list[str]:
    """Return a line for each algorithm, best prediction first, the chosen one marked. What was not measured, since
    there was no time or no hope, has a dash."""
    lines = []
    for name in sorted(choice.predicted, key=choice.predicted.__getitem__):
        measured = f"{choice.measured[name] * 1e6:,.5g}" if name in choice.measured else "-"
        size = "" if lines else f"{choice.nbytes:,}"
        mark = "  <- chosen" if name == choice.algorithm else ""
        lines.append(f"{size:>14}  {name:<20}{choice.predicted[name] * 1e6:>14,.5g}{measured:>14}{mark}")
    return lines
