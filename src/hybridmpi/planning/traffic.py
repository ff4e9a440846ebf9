"""How many bytes a step moves, by formula (Parallax, arXiv 1808.02621, table 2; exact, not asymptotic).

`w` is a parameter's bytes, `alpha` the fraction of a table's rows that a rank touches in a step, `p` the ranks of an
all-reduce. The byte counters of a run equal these exactly; tests hold them against each other.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from hybridmpi.collectives.folding import largest_power
from hybridmpi.sparse.requests import PIECE_HEAD, REPLY_HEAD, REQUEST_HEAD
from hybridmpi.sparse.wire import HEADER_BYTES, ID_BYTES, PIECE_BYTES


def allreduce(w: int, p: int) -> float:
    """Bytes that a rank sends for a dense parameter of `w` bytes: 2 w (p - 1) / p, on average over the ranks.

    The ring's, halving-doubling's, and what crosses between ranks in shared memory.
    """
    return 2 * w * (p - 1) / p


def allreduce_by(algorithm: str, w: float, p: int) -> float:
    """Bytes that a rank sends, on average, when `algorithm` sums a buffer of `w` bytes over `p` ranks of nodes alike.

    Numbers of ranks that are no power of two cost a fold in "recursive_doubling" and "halving_doubling".
    """
    power = largest_power(p)
    fold = 2 * (p - power) * w
    if algorithm == "recursive_doubling":
        return (fold + power * w * (power.bit_length() - 1)) / p
    if algorithm == "halving_doubling":
        return (fold + 2 * w * (power - 1)) / p
    return 2 * w * (p - 1) / p


def on_wire(w: float, dtype: np.dtype, wire: str, far: float = 1.0) -> float:
    """Bytes that `w` bytes of rows of `dtype` take on the way, of which the fraction `far` goes to another node: the
    `w` of the formulas for rows. A wire of 16 bits halves float32 there."""
    return w * (1 - far / 2) if wire != "float32" and dtype == np.float32 else w


def pull_rows(alpha: float, w: float) -> float:
    """Bytes of row values that a rank receives from the owners: alpha w. From other nodes a node that pulls together
    receives each row once: alpha is then the fraction of the rows that any of its ranks touches."""
    return alpha * w


def push_rows(alpha: float, w: float) -> float:
    """Bytes of row values that a rank sends to the owners: alpha w. A node that sums its ranks' rows first sends them
    once: alpha is then the fraction of the rows that any of its ranks touches."""
    return alpha * w


def node_messages(owners: int, ranks: int) -> int:
    """Messages in which a node of so many compute ranks pushes its rows after it has summed them; without that, there
    are owners times ranks. The ranks divide the owners evenly, so some owners hear from two or more."""
    return owners + ranks - math.gcd(owners, ranks)


def aggregate(alpha: float, w: int, rows: int) -> float:
    """Bytes that a rank lays out in its node's memory, for the node's sum: its rows, and 16 a row of numbers."""
    return alpha * w + alpha * rows * 16


def pulled_together(wanted: float, pulled: float, row_bytes: int) -> float:
    """Bytes that a node's ranks lay out in its memory to pull together: the numbers of the rows that each has `wanted`
    of other nodes, added up, and the rows that were `pulled`, with theirs."""
    return wanted * ID_BYTES + pulled * (ID_BYTES + row_bytes)


def row_ids(alpha: float, rows: int) -> float:
    """Bytes of row numbers beside the values, for a push, or for a pull by messages: 8 a row."""
    return alpha * rows * ID_BYTES


class Sizes(NamedTuple):
    """Bytes between a rank and an owner by category, and how many messages they take, one after another."""

    control: int
    ids: int
    rows: int
    messages: int


def push(tables: Sequence[tuple[int, int]], slot_bytes: int) -> Sizes:
    """Return what a rank pushes to one owner in a step: `tables`: (rows, bytes of a row) of each. Exact.

    Tables without rows have no piece; a message without rows still has its header. What exceeds a slot goes in rounds.
    """
    left = [rows for rows, _ in tables]
    control = messages = 0
    while True:
        room, pieces = slot_bytes - HEADER_BYTES, 0
        for table, (_, row_bytes) in enumerate(tables):
            rows = min(left[table], (room - PIECE_BYTES - 8) // (ID_BYTES + row_bytes))
            if rows > 0:
                room -= PIECE_BYTES + rows * ID_BYTES + -(-rows * row_bytes // 8) * 8
                left[table] -= rows
                pieces += 1
        control, messages = control + HEADER_BYTES + PIECE_BYTES * pieces, messages + 1
        if not any(left):
            break
    rows = sum(rows for rows, _ in tables)
    return Sizes(control, rows * ID_BYTES, sum(rows * size for rows, size in tables), messages)


def pull(tables: Sequence[tuple[int, int]], request_slot: int, reply_slot: int) -> Sizes:
    """Return what pulling from one owner by messages moves, both ways together: `tables`: (rows, bytes of a row) of
    each that is asked for at once. Exact. What exceeds a slot goes in rounds."""
    left = [rows for rows, _ in tables]
    control = messages = 0
    while any(left):
        request, reply = request_slot - REQUEST_HEAD, reply_slot - REPLY_HEAD
        for table, (_, row_bytes) in enumerate(tables):
            # Room is kept as for rows with versions, which take some of it to ask and to answer.
            rows = min(left[table], (request - PIECE_HEAD - 8) // (ID_BYTES + 4), (reply - 16) // (row_bytes + 1))
            if rows > 0:
                request -= PIECE_HEAD + rows * ID_BYTES
                reply -= -(-rows * row_bytes // 8) * 8
                left[table] -= rows
                control += PIECE_HEAD
        control, messages = control + REQUEST_HEAD + REPLY_HEAD, messages + 1
    rows = sum(rows for rows, _ in tables)
    return Sizes(control, rows * ID_BYTES, sum(rows * size for rows, size in tables), messages)
