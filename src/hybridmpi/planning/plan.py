"""The plan: for every parameter, what it is, how its gradient travels, and where it lives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from hybridmpi.sparse.spec import TableSpec
from hybridmpi.world import World

if TYPE_CHECKING:
    from hybridmpi.autograd import Parameter
    from hybridmpi.collectives import AllReduce, Bucket


@dataclass(frozen=True)
class Entry:
    """One parameter: `kind` "dense" or "sparse"; `travels` and `lives` in words; sizes of the values alone."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    kind: str
    travels: str
    lives: str

    @property
    def bytes(self) -> int:
        """Bytes of the values."""
        return int(np.prod(self.shape, dtype=np.int64)) * np.dtype(self.dtype).itemsize


@dataclass(frozen=True)
class Plan:
    """What was decided for every parameter; `str(plan)` is the table that a run prints."""

    entries: tuple[Entry, ...]
    compute_ranks: int
    servers: int
    nodes: int
    topology: str = ""  # in words, where nodes are in several supernodes

    def __str__(self) -> str:
        head = ("parameter", "shape", "size", "kind", "gradient travels", "values live")
        rows = [
            (e.name, " x ".join(f"{n:,}" for n in e.shape), human(e.bytes), e.kind, e.travels, e.lives)
            for e in self.entries
        ]
        widths = [max(len(row[column]) for row in [head, *rows]) for column in range(len(head))]
        right = (1, 2)
        lines = [
            "  ".join(
                cell.rjust(width) if column in right else cell.ljust(width)
                for column, (cell, width) in enumerate(zip(row, widths, strict=True))
            )
            for row in [head, *rows]
        ]
        lines = [line.rstrip() for line in lines]
        kinds = {kind: sum(e.bytes for e in self.entries if e.kind == kind) for kind in ("dense", "sparse")}
        return "\n".join([
            f"plan: {count(self.compute_ranks, 'compute rank')}, {count(self.servers, 'server')}, "
            f"{count(self.nodes, 'node')}; {human(kinds['dense'])} dense, {human(kinds['sparse'])} sparse",
            *([f"  {self.topology}"] if self.topology else []),
            *(f"  {line}" for line in lines),
        ])  # fmt: skip


def make_plan(
    world: World,
    parameters: Sequence[tuple[str, Parameter]],
    specs: Sequence[TableSpec],
    buckets: Sequence[Bucket],
    allreduce: AllReduce,
    paths: Sequence[str],
) -> Plan:
    """Return the plan of a model: dense parameters by all-reduce, tables to their owners. Local.

    `paths`: how this rank pulls rows from each owner ("shared", "message", "get").
    """
    ranks, owners = len(world.clients), len(world.owners)
    bucket_of = {part.name: number for number, bucket in enumerate(buckets) for part in bucket.slices}
    summed = [allreduce.describe(bucket.values.nbytes) for bucket in buckets]
    entries = []
    for name, p in parameters:
        number = bucket_of[name]
        travels = f"{summed[number]}, bucket {number}"
        entries.append(Entry(name, p.shape, p.dtype.name, "dense", travels, "every compute rank"))
    holder = "compute rank" if world.embedded else "server"
    by = ", ".join(sorted({"shared memory" if p == "shared" else f"{p}s" for p in paths}))
    for spec in specs:
        sizes = [spec.map(owners).count_of(owner) for owner in range(owners)]
        dealt = f", {spec.partition}, {min(sizes):,} to {max(sizes):,} rows each" if owners > 1 else ""
        entries.append(
            Entry(
                spec.name,
                (spec.rows, spec.dim),
                spec.dtype.name,
                "sparse",
                f"rows pushed to owners, pulled by {by}",
                f"{count(owners, holder)}{dealt}",
            )
        )
    topology = allreduce.topology.describe() if allreduce.topology.supernodes > 1 else ""
    return Plan(tuple(entries), ranks, len(world.servers), world.nodes, topology)


def count(number: int, what: str) -> str:
    """Return '1 server', '2 servers'. Local."""
    return f"{number} {what}{'' if number == 1 else 's'}"


def human(size: float) -> str:
    """Return bytes as '512 B', '1.5 MB'. Local."""
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000 or unit == "GB":
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    raise AssertionError
