"""Counters of the bytes that this rank moves, by category."""

from __future__ import annotations

# What a byte can be. Row ids and row values are apart, so that the counters can be held against the formulas.
# "aggregate": what a rank lays out for its node, whose rows are pushed, and pulled from other nodes, once.
CATEGORIES = (
    "allreduce", "pull_ids", "pull_rows", "push_ids", "push_rows", "aggregate", "gather_ids", "gather_rows", "moved",
    "control",
)  # fmt: skip


class Traffic:
    """Bytes by category, those that stay on the node and those that cross the network apart. Local.

    Every rank counts what it causes: a compute rank the rows it pulls (whoever moves them) and pushes, and what it
    sends in all-reduces; the holder of rows those that it gives to another, with their state ("moved").
    """

    def __init__(self) -> None:
        self.node = dict.fromkeys(CATEGORIES, 0)
        self.network = dict.fromkeys(CATEGORIES, 0)

    def forget(self) -> None:
        """Count from nothing again."""
        for counted in (self.node, self.network):
            counted.update(dict.fromkeys(CATEGORIES, 0))

    def add(self, category: str, count: int, same_node: bool) -> None:
        """Count `count` bytes of `category`."""
        (self.node if same_node else self.network)[category] += count

    def total(self, category: str) -> int:
        """Return the bytes of a category so far."""
        return self.node[category] + self.network[category]

    def snapshot(self) -> dict[str, int]:
        """Return the bytes of all categories so far."""
        return {category: self.total(category) for category in CATEGORIES}
