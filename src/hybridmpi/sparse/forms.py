"""The form of rows on their way between two ranks: as they are within a node, as the wire says between nodes.

A 16-bit wire halves what the rows of float32 tables take between nodes: their values are rounded to nearest even by the
sender and widened by the receiver. Sums, and the rows themselves, stay in float32; ids and float64 rows travel as they
are, and so does everything between ranks of one node.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hybridmpi import kernels
from hybridmpi.collectives.wire import WIRES
from hybridmpi.errors import UsageError
from hybridmpi.sparse.spec import TableSpec
from hybridmpi.world import World

# The largest numbers of 16 bits; what rounds to more becomes infinite.
LARGEST = {"float16": 65504.0, "bfloat16": float.fromhex("0x1.fep+127")}

# Rows are rounded in blocks of about so many values, gathered before: both stay in the core's cache.
BLOCK_VALUES = 16384


class Form:
    """Rows travel as they are. `dtype`: of a value on the wire; `largest`: the largest value that it can carry, where
    rows may hold larger ones. Local."""

    name = ""
    largest: float | None = None

    def __init__(self, dtype: np.dtype) -> None:
        self.dtype = dtype

    def write(self, values: np.ndarray, out: np.ndarray) -> None:
        """Write rows [n, dim] into a message's [n, dim] of this form's dtype."""
        out[...] = values

    def gather(self, table: np.ndarray, ids: np.ndarray, out: np.ndarray) -> None:
        """Write rows `ids` int64[n] of `table` [rows, dim] into a message's [n, dim] of this form's dtype."""
        kernels.gather(table, ids, out=out)

    def read(self, message: np.ndarray, out: np.ndarray) -> None:
        """Write a message's rows [n, dim] into `out` [n, dim] of the table's dtype."""
        out[...] = message

    def scatter(self, message: np.ndarray, places: np.ndarray, out: np.ndarray) -> None:
        """Write a message's rows [n, dim] to rows `places` int64[n], all different, of `out` [*, dim]."""
        kernels.scatter(out, places, message)


class HalfForm(Form):
    """float32 rows travel in 16 bits; `name`: "bfloat16" or "float16". Local."""

    def __init__(self, name: str) -> None:
        super().__init__(np.dtype(np.uint16))
        self.name, self.largest = name, LARGEST[name]
        self._narrow, self._widen = getattr(kernels, f"to_{name}"), getattr(kernels, f"from_{name}")

    def write(self, values: np.ndarray, out: np.ndarray) -> None:
        """Round rows into a message."""
        self._narrow(values.reshape(-1), out.reshape(-1))

    def gather(self, table: np.ndarray, ids: np.ndarray, out: np.ndarray) -> None:
        """Gather and round rows into a message."""
        rows = max(1, BLOCK_VALUES // table.shape[1])
        block = np.empty((min(rows, len(ids)), table.shape[1]), table.dtype)
        for start in range(0, len(ids), rows):
            part = ids[start : start + rows]
            kernels.gather(table, part, out=block[: len(part)])
            self.write(block[: len(part)], out[start : start + rows])

    def read(self, message: np.ndarray, out: np.ndarray) -> None:
        """Widen a message's rows."""
        self._widen(message.reshape(-1), out.reshape(-1))

    def scatter(self, message: np.ndarray, places: np.ndarray, out: np.ndarray) -> None:
        """Widen a message's rows and write them to their places."""
        rows = max(1, BLOCK_VALUES // out.shape[1])
        block = np.empty((min(rows, len(places)), out.shape[1]), out.dtype)
        for start in range(0, len(places), rows):
            part = places[start : start + rows]
            self.read(message[start : start + rows], block[: len(part)])
            kernels.scatter(out, part, block[: len(part)])


class Forms:
    """The form of every table's rows, by whether the two ranks are on one node. Local."""

    def __init__(self, specs: Sequence[TableSpec], wire: str) -> None:
        near = [Form(spec.dtype) for spec in specs]
        far = near if wire == "float32" else [HalfForm(wire) if form.dtype == np.float32 else form for form in near]
        self._forms = {True: near, False: far}

    def between(self, same_node: bool) -> list[Form]:
        """Return the forms between ranks on the same node, or not."""
        return self._forms[same_node]


def check_wire(world: World, wire: str, path: str) -> None:
    """Raise UsageError for a wire that there is not, or that `path` cannot honour. Local, alike on all ranks."""
    if wire not in WIRES:
        raise UsageError(f"wire of rows = {wire!r}: expected one of {', '.join(WIRES)}")
    if wire != "float32" and path == "get" and world.nodes > 1:
        raise UsageError(
            f"rows are to be pulled by Get, which reads them as they lie, and to travel as {wire} between nodes: use "
            "path = 'auto' or 'message', or wire = 'float32'"
        )
