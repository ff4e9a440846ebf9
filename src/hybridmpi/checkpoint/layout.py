"""Which rows lie where: the shards of a table, and the rows that two arithmetic progressions share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import gcd

import numpy as np

from hybridmpi.errors import CheckpointError

FORMAT = 3
DENSE_FILE = "dense.h5"
INDEX_FILE = "index.h5"
MANIFEST_FILE = "manifest.json"
KINDS = ("block", "cyclic")


def server_file(server: int) -> str:
    """Return the name of the file that `server` writes. Local."""
    return f"server-{server:03d}.h5"


@dataclass(frozen=True, slots=True)
class Progression:
    """The global rows first, first + stride, ... (count of them): a block (stride 1) or a cyclic share of a table."""

    first: int
    stride: int
    count: int

    @property
    def last(self) -> int:
        """The last row, or first - stride when there is none."""
        return self.first + (self.count - 1) * self.stride


@dataclass(frozen=True, slots=True)
class Overlap:
    """`count` rows shared by two progressions: positions start + k * step in each of them."""

    start: int
    step: int
    other_start: int
    other_step: int
    count: int


def overlap(a: Progression, b: Progression) -> Overlap | None:
    """Return where `a` and `b` hold the same rows (start, step count in `a`, the other two in `b`), or None. Local.

    The common terms of two arithmetic progressions are again one, with the least common multiple of the strides as
    its stride (Chinese remainder theorem).
    """
    if not a.count or not b.count:
        return None
    common = gcd(a.stride, b.stride)
    distance = b.first - a.first
    if distance % common:
        return None
    stride = a.stride // common * b.stride
    turns = b.stride // common
    steps = distance // common * pow(a.stride // common, -1, turns) % turns
    row = a.first + steps * a.stride
    start = max(a.first, b.first)
    row += -((row - start) // stride) * stride if row < start else 0
    end = min(a.last, b.last)
    if row > end:
        return None
    return Overlap(
        start=(row - a.first) // a.stride,
        step=stride // a.stride,
        other_start=(row - b.first) // b.stride,
        other_step=stride // b.stride,
        count=(end - row) // stride + 1,
    )


def covered(spans: Sequence[Progression], rows: int) -> bool:
    """Return whether progressions have each of the rows from 0 to before `rows` once. Local."""
    spans = [span for span in spans if span.count]
    if sum(span.count for span in spans) != rows or any(span.first < 0 or span.last >= rows for span in spans):
        return False
    if len({span.stride for span in spans}) > 1:
        return not any(overlap(a, b) for position, a in enumerate(spans) for b in spans[:position])
    ordered = sorted(spans, key=lambda span: (span.first % span.stride, span.first))
    return all(
        before.first % before.stride != after.first % after.stride or before.last < after.first
        for before, after in pairwise(ordered)
    )


@dataclass(frozen=True)
class TableShard:
    """Rows of table `name` that one server holds, all or some of them: row i is the global row first + i * stride.

    `values` is [n, dim] and every array of `state` (one per optimiser slot) has the same shape; `rows` counts the whole
    table. `kind` is "block" (stride 1) or "cyclic". Raises CheckpointError on construction for anything else.
    """

    name: str
    rows: int
    dim: int
    kind: str
    first: int
    stride: int
    values: np.ndarray
    state: Mapping[str, np.ndarray] = field(default_factory=dict)

    def __post_init__(self) -> None:
        where = f"table '{self.name}'"
        check_name(self.name, "table")
        if self.kind not in KINDS or self.stride < 1 or (self.kind == "block" and self.stride != 1):
            raise CheckpointError(
                f"{where}: kind '{self.kind}' with stride {self.stride}: expected 'block' with stride 1, or 'cyclic' "
                "with the number of servers as its stride"
            )
        for slot, array in {"values": self.values, **self.state}.items():
            check_name(slot, f"{where}, slot")
            if array.ndim != 2 or array.shape != (len(self.values), self.dim):
                raise CheckpointError(
                    f"{where}, {slot}: expected shape ({len(self.values)}, {self.dim}), found {array.shape}: "
                    "values and state must have one row per local row and the table's width"
                )
        span = self.span
        if span.count and not (span.first >= 0 and span.last < self.rows):
            raise CheckpointError(
                f"{where}: the shard covers rows {span.first} to {span.last}, the table has rows 0 to {self.rows - 1}; "
                "check first and stride against the partition map"
            )

    @property
    def span(self) -> Progression:
        """The global rows of this shard."""
        return Progression(self.first, self.stride, len(self.values))


def check_name(name: str, what: str) -> None:
    """Raise CheckpointError unless `name` can be one HDF5 link. Local."""
    try:
        encoded = name.encode()
    except UnicodeEncodeError:
        encoded = b"/"
    if not name or name in (".", "..") or b"/" in encoded or b"\0" in encoded:
        raise CheckpointError(
            f"{what} name {name!r} cannot be stored: expected a non-empty valid UTF-8 name without '/' and NUL, "
            "for example 'lstm.weight_x'; rename it"
        )
