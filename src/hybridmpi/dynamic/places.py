"""Where the rows of each node lie: one buffer for all vertices of a type, of which a round is a slice.

Sources, slices and repeated rows have no memory of their own: they are read where they are, through an array of row
numbers if need be. What is computed is written where it is wanted: into the state that parents gather from, into a
column of rows joined to longer ones, else into a buffer of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from hybridmpi.dynamic.layout import Layout
from hybridmpi.dynamic.nodes import CONSTANT, EDGE, INPUT, VERTEX, Node


@dataclass(frozen=True, eq=False, slots=True)
class Buffer:
    """Rows of `width` elements. `kind` and `key` say of what, see `Places`; `space`: what there is a row for. Those of
    one type are made by `Places.buffer`, no two alike: they are looked up too often to be compared field by field."""

    kind: str
    key: Any
    space: str
    width: int


@dataclass(frozen=True, slots=True)
class Place:
    """Columns of a buffer: row r of a node is its row r or, with `index`, row index[r]; of a constant row 0 for all."""

    buffer: Buffer
    column: int
    index: tuple[str, ...] | None = None

    def at(self, column: int) -> Place:
        """Return the place that begins so many elements further on."""
        return replace(self, column=self.column + column) if column else self


class Places:
    """The places of the nodes of one vertex type.

    Kinds of buffers: "state" and "state gradient" of a key of the layout, of all types; "own state" and "own state
    gradient", the same from the type's first row on, with all that a vertex scatters in one row; "input" and "input
    gradient", by row of the external input; "rows", the rows of an input that the type uses; "output" and "output
    gradient"; "constant", one row; "matrix" and "gradient", of a parameter as it lies; "own", of a node.
    Kinds of indices, an array each: ("slot", k), the row of state of each vertex' child; ("child",), of each of the
    children; ("parent",), the vertex of each child; ("row", input) and ("edge row", input), the place of a vertex' (its
    child's) row among those that the type uses, or in the input; ("used", input), these rows in the input;
    ("output", name), where a vertex' row goes.
    """

    def __init__(self, layout: Layout, inputs: Mapping[str, int]) -> None:
        """layout: of state. inputs: their widths."""
        self._layout, self._inputs = layout, inputs
        self._places: dict[Node, Place] = {}
        self._buffers: dict[tuple[Any, ...], Buffer] = {}

    def buffer(self, kind: str, key: Any, space: str, width: int) -> Buffer:
        """Return the buffer of these. Local."""
        return self._buffers.setdefault((kind, key, space, width), Buffer(kind, key, space, width))

    def of(self, node: Node) -> Place:
        """Return where to read a node. Local."""
        place = self._places.get(node)
        if place is None:
            place = self._places[node] = self._source(node)
        return place

    def give(self, node: Node, place: Place | None = None) -> Place:
        """Let a node be computed into `place`, or a buffer of its own. Local."""
        place = place or Place(self.buffer("own", node.number, node.space, node.width), 0)
        return self._places.setdefault(node, place)

    def own_state(self, kind: str, name: Any) -> Place:
        """Return the place of what a vertex scatters under a name, in a kind of state. Local."""
        key, width, column = self._layout.own(name)
        return Place(self.buffer(kind, key, VERTEX, width), column)

    def state(self, kind: str, name: Any, index: tuple[Any, ...]) -> Place:
        """Return the place of what others have scattered under a name, in a kind of state. Local."""
        key, width, column = self._layout.read(name)
        return Place(self.buffer(kind, key, VERTEX, width), column, index)

    def input(self, kind: str, name: str, index: tuple[str, ...] | None = None) -> Place:
        """Return the place of an external input's rows. Local."""
        return Place(self.buffer(kind, name, INPUT + name, self._inputs[name]), 0, index)

    def output(self, kind: str, name: str, width: int) -> Place:
        """Return the place of an external output's rows. Local."""
        return Place(self.buffer(kind, name, VERTEX, width), 0, ("output", name))

    def _source(self, node: Node) -> Place:
        name = node.name
        if name == "gather":
            return self.state("state", node.attributes[1], ("slot", node.attributes[0]))
        if name == "child":
            return self.state("state", node.attributes[0], ("child",))
        if name == "inflow":
            return self.own_state("own state gradient", node.attributes[0])
        if name == "pushed_gradient":
            return self.output("output gradient", node.attributes[0], node.width)
        if name == "pull":
            (key,) = node.attributes
            return self.input("input", key, ("row", key)) if node.space == VERTEX else self.input("rows", key)
        if name == "slice":
            return self.of(node.inputs[0]).at(node.attributes[0])
        if node.space == CONSTANT:
            return Place(self.buffer("constant", node, CONSTANT, node.width), 0)
        if name == "reshape":
            return self.of(node.inputs[0])
        if name == "expand":
            return replace(self.of(node.inputs[0]), index=_repetition(node.inputs[0].space, node.space))
        raise AssertionError(f"{node} is used before it is computed")


def _repetition(narrow: str, wide: str) -> tuple[str, ...]:
    """Return the index that repeats rows of a narrow space for a wide one."""
    if narrow == VERTEX:
        return ("parent",)
    name = narrow.removeprefix(INPUT)
    return ("edge row", name) if wide == EDGE else ("row", name)
