"""The picture of `hybridmpi bench allreduce --plot`: busbw over size, one line for each algorithm. Needs matplotlib."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hybridmpi.collectives.cost import Network
from hybridmpi.errors import UsageError
from hybridmpi.pictures import require_picture, save
from hybridmpi.world import World

# What a reader looks for stands out: what a Trainer uses and MPI's own; limits are gray and dashed.
STYLES = {
    "auto": {"color": "black", "linewidth": 2.5, "marker": "o", "zorder": 3},
    "mpi": {"color": "tab:red", "linewidth": 2, "marker": "s", "zorder": 2.5},
    "copies": {"color": "gray", "linestyle": "--", "label": "memory limit (copies)"},
}
OTHERS = ("tab:blue", "tab:orange", "tab:green", "tab:purple", "tab:brown", "tab:cyan", "tab:olive", "tab:pink")
LINKS = {"node": "-.", "supernode": "--", "trunk": ":"}


def require_possible(world: World, file: Path) -> None:
    """Raise UsageError on all ranks if `file` could not be drawn in the end. Collective over compute."""
    if world.compute.Get_size() == 1:
        raise UsageError("--plot: one rank sends nothing, there is no busbw to draw; start two ranks or more")
    world.from_root(lambda: require_picture(file, "--plot", force=False, remedy="give another name, or remove it"))


def draw(
    file: Path, results: Sequence[Mapping[str, Any]], machine: Mapping[str, Any], network: Network | None, times: int
) -> None:
    """Draw the rows of the benchmark into `file`. Local.

    `machine`: as in the benchmark's JSON. On several nodes the limit is the network's links, each `times` as much as
    one rank's: all lanes of a node together, twice that for values of 16 bits. On one node (`network` None) it is what
    copies take. Raises UsageError if the file cannot be written.
    """
    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    figure = Figure(figsize=(9, 5.5), layout="constrained")
    axes = figure.add_subplot()
    axes.set_prop_cycle(color=OTHERS)
    for name in dict.fromkeys(result["name"] for result in results if not network or result["name"] != "copies"):
        points = sorted((r["bytes"], r["GBps"]["busbw"]) for r in results if r["name"] == name)
        axes.plot(*zip(*points, strict=True), **{"label": name, "marker": ".", **STYLES.get(name, {})})
    for name, link in (network.links if network else {}).items():
        if link.per_byte:
            rate = times * 1e-9 / link.per_byte
            axes.axhline(rate, color="gray", linestyle=LINKS[name], label=f"link, {name}: {rate:.3g} GB/s")
    axes.set(xscale="log", yscale="log", xlabel="bytes of the buffer", ylabel="busbw, GB/s", title=_title(machine))
    axes.xaxis.set_major_locator(LogLocator(4, numticks=20))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda size, _: _short(size)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda rate, _: f"{rate:g}"))
    axes.tick_params(axis="x", rotation=40)
    axes.grid(which="major", alpha=0.4)
    figure.legend(loc="outside right upper", frameon=False)
    save(figure, file, "--plot", dpi=150)


def _title(machine: Mapping[str, Any]) -> str:
    ranks, nodes = machine["compute_ranks"], machine["nodes"]
    where = f"{ranks} ranks on {nodes} node{'s' * (nodes > 1)}, {machine['cores']} cores ({machine['processor']}) each"
    return f"All-reduce of float32, {where if nodes > 1 else where.removesuffix(' each')}\n{machine['mpi']}"


def _short(size: float) -> str:
    """Return bytes in the largest unit that is not larger: 4, 64 KiB, 16 MiB."""
    for unit, name in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if size >= unit:
            return f"{size / unit:g} {name}"
    return f"{size:g}"
