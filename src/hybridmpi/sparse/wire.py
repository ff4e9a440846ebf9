"""What a push looks like on the wire.

A push message, int64 words first: [step, last, pieces, clients, weight and averaged as float64] (see `Sender`), then
[table, rows] per piece; then, piece by piece, the local row numbers (int64) and the row values, each padded to 8 bytes.
`last` is 1 in the final round of a step. Values have the form that forms.py says.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from hybridmpi.sparse.forms import Form

HEADER_BYTES = 48
PIECE_BYTES = 16
ID_BYTES = 8


def padded(count: int) -> int:
    """Return `count` bytes rounded up to whole words. Local."""
    return -(-count // 8) * 8


def smallest_slot(tables: int, largest_row: int) -> int:
    """Return the bytes that any slot must have: a header, a piece per table, one row of the widest table. Local."""
    return HEADER_BYTES + PIECE_BYTES * tables + ID_BYTES + padded(largest_row) + 64


@dataclass
class Outgoing:
    """Rows of one table on their way to one owner: local numbers [n] there, where they stand in `values` [*, dim], the
    form they travel in."""

    table: int
    local: np.ndarray
    where: slice | np.ndarray
    values: np.ndarray
    form: Form
    done: int = 0

    @property
    def left(self) -> int:
        return len(self.local) - self.done

    def write(self, rows: int, ids_out: np.ndarray, values_out: np.ndarray) -> None:
        """Write the next `rows` rows into the message."""
        first, last = self.done, self.done + rows
        ids_out[:] = self.local[first:last]
        if isinstance(self.where, slice):
            start = self.where.start
            self.form.write(self.values[start + first : start + last], values_out)
        else:
            self.form.gather(self.values, self.where[first:last], values_out)
        self.done = last


@dataclass(frozen=True)
class Sender:
    """Whom a push message stands for: `clients` of them, whose examples add `weight` to those of the step. `averaged`:
    over how many examples the rows of a mean are averages; a rank that pushes for itself has all three its own."""

    clients: int
    weight: float
    averaged: float


@dataclass
class PackedSizes:
    """What a message held, for the byte counters."""

    control: int
    ids: int
    rows: int


def pack_push(message: np.ndarray, step: int, sender: Sender, pieces: list[Outgoing]) -> tuple[int, bool, PackedSizes]:
    """Write as much of `pieces` as fits into `message` (bytes); return (bytes used, whether all is sent, sizes). Local.

    Call it again for the next round until all is sent; with no rows at all there is still one message, which says so.
    """
    room = message.size - HEADER_BYTES
    plan: list[tuple[Outgoing, int]] = []
    for piece in pieces:
        row = piece.values.shape[1] * piece.form.dtype.itemsize
        # 8 bytes of slack for the padding of the values.
        rows = min(piece.left, (room - PIECE_BYTES - 8) // (ID_BYTES + row))
        if rows <= 0:
            continue
        plan.append((piece, rows))
        room -= PIECE_BYTES + rows * ID_BYTES + padded(rows * row)
    words = message[: HEADER_BYTES + PIECE_BYTES * len(plan)].view(np.int64)
    sizes = PackedSizes(words.nbytes, 0, 0)
    at = words.nbytes
    for index, (piece, rows) in enumerate(plan):
        words[6 + 2 * index], words[7 + 2 * index] = piece.table, rows
        dim, dtype = piece.values.shape[1], piece.form.dtype
        ids_end = at + rows * ID_BYTES
        values_end = ids_end + rows * dim * dtype.itemsize
        ids_out = message[at:ids_end].view(np.int64)
        values_out = message[ids_end:values_end].view(dtype).reshape(rows, dim)
        piece.write(rows, ids_out, values_out)
        sizes.ids += rows * ID_BYTES
        sizes.rows += rows * dim * dtype.itemsize
        at = padded(values_end)
    done = all(piece.left == 0 for piece in pieces)
    words[0], words[1], words[2], words[3] = step, done, len(plan), sender.clients
    words[4:6].view(np.float64)[:] = sender.weight, sender.averaged
    return at, done, sizes


@dataclass(frozen=True)
class Header:
    """The head of a push message."""

    step: int
    last: bool
    sender: Sender


def read_push(
    message: np.ndarray, shapes: list[tuple[int, np.dtype]]
) -> tuple[Header, Iterator[tuple[int, np.ndarray, np.ndarray]]]:
    """Return the header of a push message and its pieces as (table, ids [n], values [n, dim]) views. Local.

    `shapes[t]`: (dim, dtype on the wire) of table t.
    """
    words = message[:HEADER_BYTES].view(np.int64)
    count = int(words[2])
    sender = Sender(int(words[3]), *words[4:6].view(np.float64).tolist())
    header = Header(int(words[0]), bool(words[1]), sender)

    def pieces() -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
        heads = message[HEADER_BYTES : HEADER_BYTES + PIECE_BYTES * count].view(np.int64).reshape(count, 2)
        at = HEADER_BYTES + PIECE_BYTES * count
        for table, rows in heads.tolist():
            dim, dtype = shapes[table]
            ids_end = at + rows * ID_BYTES
            values_end = ids_end + rows * dim * dtype.itemsize
            yield table, message[at:ids_end].view(np.int64), message[ids_end:values_end].view(dtype).reshape(rows, dim)
            at = padded(values_end)

    return header, pieces()
