"""The plan: for every parameter, what it is, how its gradient travels, and where it lives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

from hybridmpi.planning.modes import Way
from hybridmpi.sparse.spec import TableSpec
from hybridmpi.wording import plural
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
            f"plan: {plural(self.compute_ranks, 'compute rank')}, {plural(self.servers, 'server')}, "
            f"{plural(self.nodes, 'node')}; {human(kinds['dense'])} dense, {human(kinds['sparse'])} sparse",
            *([f"  {self.topology}"] if self.topology else []),
            *(f"  {line}" for line in lines),
        ])  # fmt: skip


class Located(Protocol):
    """What a plan asks of the tables of a model: their specs, each one's way, and how this rank pulls rows."""

    specs: Sequence[TableSpec]
    ways: Mapping[str, Way]
    paths: Sequence[str]

    def describe_sum(self, nbytes: int) -> str:
        """Return how a table's whole gradient is summed."""
        ...


def make_plan(
    world: World,
    parameters: Sequence[tuple[str, Parameter]],
    tables: Located,
    buckets: Sequence[Bucket],
    allreduce: AllReduce,
) -> Plan:
    """Return the plan of a model: how each parameter's gradient travels, and where its values live. Local."""
    ranks, owners = len(world.clients), len(world.owners)
    bucket_of = {part.name: number for number, bucket in enumerate(buckets) for part in bucket.slices}
    summed = [allreduce.describe(bucket.values.nbytes) for bucket in buckets]
    holder = "compute rank" if world.embedded else "server"
    by = ", ".join(sorted({"shared memory" if p == "shared" else f"{p}s" for p in tables.paths}))
    specs = {spec.name: spec for spec in tables.specs}
    entries = []

    def add_rows(spec: TableSpec, shape: tuple[int, ...], kind: str) -> None:
        sizes = [n for owner in range(owners) if (n := spec.map(owners).count_of(owner))] or [0]
        dealt = f", {spec.partition}, {min(sizes):,} to {max(sizes):,} rows each" if len(sizes) > 1 else ""
        what = "rows pushed to owners, pulled" if kind == "sparse" else "pushed whole to owners, pulled whole"
        lives = f"{plural(len(sizes), holder)}{dealt}"
        entries.append(Entry(spec.name, shape, spec.dtype.name, kind, f"{what} by {by}", lives))

    for name, p in parameters:
        if name in specs:
            add_rows(specs[name], p.shape, "dense")
            continue
        number = bucket_of[name]
        travels = f"{summed[number]}, bucket {number}"
        entries.append(Entry(name, p.shape, p.dtype.name, "dense", travels, "every compute rank"))
    dense = {name for name, _ in parameters}
    for spec in tables.specs:
        way, shape = tables.ways[spec.name], (spec.rows, spec.dim)
        if spec.name in dense:
            continue
        if way == "ps":
            add_rows(spec, shape, "sparse")
            continue
        travels = f"rows gathered by {plural(ranks, 'rank')}"
        if way == "allreduce":
            travels = f"whole: {tables.describe_sum(spec.rows * spec.row_bytes)}"
        entries.append(Entry(spec.name, shape, spec.dtype.name, "sparse", travels, "every compute rank"))
    topology = allreduce.topology.describe() if allreduce.topology.supernodes > 1 else ""
    return Plan(tuple(entries), ranks, len(world.servers), world.nodes, topology)


def human(size: float) -> str:
    """Return bytes as '512 B', '1.5 MB'. Local."""
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000 or unit == "GB":
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    raise AssertionError
