"""Complete binary trees, all alike: what Tree-FC is measured on."""

from __future__ import annotations

import numpy as np

from hybridmpi.errors import UsageError
from hybridmpi.graphs import Graphs

WORDS = 1000
"""Rows of the table that leaves draw from."""


def complete_trees(count: int, leaves: int) -> Graphs:
    """Return so many trees of types "leaf", "low" (just above leaves), "inner" and "root". Local.

    Raises UsageError unless `leaves` is a power of two, and at least 4.

    Data: "word", below WORDS, -1 but at leaves; "label", 0 at roots, else -1.
    Words are those of benchmarks/peers/tree_fc_model.py, left to right.
    """
    if leaves < 4 or leaves & (leaves - 1):
        raise UsageError(f"complete trees of {leaves} leaves: expected a power of two, at least 4")
    # Level by level: the inner vertex number leaves + k has the vertices 2 k and 2 k + 1 below it.
    size, inner = 2 * leaves - 1, leaves - 1
    starts = np.arange(count + 1) * size
    below = np.concatenate([np.zeros(leaves, np.int64), np.full(inner, 2)])
    types = np.repeat([0, 1, 2, 3], [leaves, leaves // 2, leaves // 2 - 2, 1])
    word, label = np.full((count, size), -1), np.full((count, size), -1)
    word[:, :leaves] = np.random.default_rng(2).integers(0, WORDS, (count, leaves))
    label[:, -1] = 0
    return Graphs(
        starts,
        np.tile(types, count),
        np.concatenate([[0], np.cumsum(np.tile(below, count))]),
        (starts[:-1, None] + np.arange(2 * inner)).reshape(-1),
        np.tile(np.arange(2 * inner) % 2, count),
        ("leaf", "low", "inner", "root"),
        {"word": word.reshape(-1), "label": label.reshape(-1)},
    )
