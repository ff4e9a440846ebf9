"""Vertices as objects: graphs as a recursive function walks them."""

from __future__ import annotations

from typing import Any

from hybridmpi.graphs.graphs import Graphs


class _Lists:
    """The arrays of graphs as lists, which are faster to read one by one."""

    def __init__(self, graphs: Graphs) -> None:
        self.starts, self.children, self.slots = (
            array.tolist() for array in (graphs.child_starts, graphs.children, graphs.slots)
        )
        self.types, self.type_names = graphs.types.tolist(), graphs.type_names
        self.data = {name: array.tolist() for name, array in graphs.data.items()}


class Node:
    """A vertex of graphs. What graphs keep for each vertex is an attribute, as a plain number: `node.word`."""

    __slots__ = ("_lists", "number")

    def __init__(self, lists: _Lists, number: int) -> None:
        self._lists, self.number = lists, number

    @property
    def type(self) -> str:
        """The name of its type."""
        return self._lists.type_names[self._lists.types[self.number]]

    @property
    def children(self) -> list[Node]:
        """Its children in the order of their slots."""
        lists = self._lists
        return [
            Node(lists, child) for child in lists.children[lists.starts[self.number] : lists.starts[self.number + 1]]
        ]

    def child(self, slot: int) -> Node | None:
        """Return the child in a slot; None if there is none. Local."""
        lists = self._lists
        for edge in range(lists.starts[self.number], lists.starts[self.number + 1]):
            if lists.slots[edge] == slot:
                return Node(lists, lists.children[edge])
        return None

    def __getattr__(self, name: str) -> Any:
        data = self._lists.data
        if name not in data:
            raise AttributeError(f"a vertex has no '{name}'; the graphs keep {', '.join(data) or 'nothing'}")
        return data[name][self.number]

    def __repr__(self) -> str:
        return f"Node({self.number}, {self.type})"


def root_nodes(graphs: Graphs) -> list[Node]:
    """Return the roots of graphs as nodes, in the order of the vertices. Local."""
    lists = _Lists(graphs)
    return [Node(lists, number) for number in graphs.roots().tolist()]
