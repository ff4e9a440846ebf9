"""How many bytes a step moves, by formula (Parallax, arXiv 1808.02621, table 2; exact, not asymptotic).

`w` is a parameter's bytes, `alpha` the fraction of a table's rows that a rank touches in a step, `p` the ranks of an
all-reduce. The byte counters of a run equal these exactly; tests hold them against each other.
"""

from __future__ import annotations

import math


def allreduce(w: int, p: int) -> float:
    """Bytes that a rank sends for a dense parameter of `w` bytes: 2 w (p - 1) / p, on average over the ranks.

    The ring's, halving-doubling's, and what crosses between ranks in shared memory.
    """
    return 2 * w * (p - 1) / p


def pull_rows(alpha: float, w: int) -> float:
    """Bytes of row values that a rank receives from the owners: alpha w."""
    return alpha * w


def push_rows(alpha: float, w: int) -> float:
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


def row_ids(alpha: float, rows: int) -> float:
    """Bytes of row numbers beside the values, for a push, or for a pull by messages: 8 a row."""
    return alpha * rows * 8
