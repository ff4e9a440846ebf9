"""How many bytes a step moves, by formula (Parallax, arXiv 1808.02621, table 2; exact, not asymptotic).

`w` is a parameter's bytes, `alpha` the fraction of a table's rows that a rank touches in a step, `p` the ranks of an
all-reduce. The byte counters of a run equal these exactly; tests hold them against each other.
"""

from __future__ import annotations

import numpy as np


def allreduce(w: int, p: int) -> float:
    """Bytes that a rank sends for a dense parameter of `w` bytes: 2 w (p - 1) / p, on average over the ranks.

    The ring's, halving-doubling's, and what crosses between ranks in shared memory.
    """
    return 2 * w * (p - 1) / p


def on_wire(w: float, dtype: np.dtype, wire: str, far: float = 1.0) -> float:
    """Bytes that `w` bytes of rows of `dtype` take on the way, of which the fraction `far` goes to another node: the
    `w` of the formulas for rows. A wire of 16 bits halves float32 there."""
    return w * (1 - far / 2) if wire != "float32" and dtype == np.float32 else w


def pull_rows(alpha: float, w: float) -> float:
    """Bytes of row values that a rank receives from the owners: alpha w."""
    return alpha * w


def push_rows(alpha: float, w: float) -> float:
    """Bytes of row values that a rank sends to the owners: alpha w."""
    return alpha * w


def row_ids(alpha: float, rows: int) -> float:
    """Bytes of row numbers beside the values, for a push, or for a pull by messages: 8 a row."""
    return alpha * rows * 8
