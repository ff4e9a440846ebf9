"""When each vertex of a batch runs and where its rows lie: O(vertices + edges), no look at any operation.

Round r has every vertex whose longest path down has r edges, of all graphs together (Cavs, arXiv 1712.04048, section
3.2). Vertices are numbered by type and, within a type, by round: so the vertices of a type are one block of rows, and
those of one round a slice of it.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from hybridmpi.errors import UsageError
from hybridmpi.graphs import Graphs
from hybridmpi.kernels.cpu import cpu_kernel


class Batch(NamedTuple):
    """Vertices of one type in one round: rows `first` to `last` of the type, and their children likewise."""

    type: int
    first: int
    last: int
    first_child: int
    last_child: int


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the function of a type asks of its children: slots by number, and whether all of them."""

    slots: frozenset[int]
    children: bool


class Schedule:
    """The rounds of a batch of graphs.

    vertices int64 [V]: the vertex of each row; offsets: the first row of each type, and V; edge_offsets: likewise of
    children; table int64 [batches, 5]: the fields of each `Batch`, of those that run together, in order. `missing` is
    the row that stands for a child that is not there.
    """

    def __init__(self, graphs: Graphs, wanted: Sequence[Wanted]) -> None:
        """wanted: for each type of the graphs. Raises UsageError for a child that its parent's function never sees."""
        types = len(graphs.type_names)
        rounds = int(graphs.heights.max(initial=-1)) + 1
        self.rounds, self.missing = rounds, graphs.vertices
        self.vertices, rows, starts = _number(graphs.types, graphs.heights, types, rounds)
        self.offsets = [int(first) for first in starts[::rounds][:types]] if rounds else [0] * types
        self.offsets.append(graphs.vertices)
        slots = max((max(want.slots, default=-1) for want in wanted), default=-1) + 1
        seen = np.zeros((types, slots + 1), bool)
        for number, want in enumerate(wanted):
            seen[number, sorted(want.slots)] = True
            seen[number, :] |= want.children
            seen[number, slots] = want.children
        self._slot_rows, edge_starts, fault = _children(
            self.vertices, rows, graphs.types, graphs.child_starts, graphs.children, graphs.slots, seen
        )
        if fault >= 0:
            _refuse(graphs, wanted, fault)
        self._all = any(want.children for want in wanted)
        self.edge_offsets = [int(edge_starts[row]) for row in self.offsets]
        if self._all:
            self._child_rows, self._parents = _edges(
                self.vertices, rows, graphs.child_starts, graphs.children, np.array(self.offsets), types
            )
        self.table = _batches(starts, edge_starts, np.array(self.offsets), np.array(self.edge_offsets), rounds)

    @property
    def batches(self) -> list[Batch]:
        """What runs together, in order."""
        return list(itertools.starmap(Batch, self.table.tolist()))

    def index(self, number: int, key: tuple[Any, ...]) -> np.ndarray:
        """Return an array of row numbers of a type: ("slot", k), ("child",), ("parent",). Local."""
        if key[0] == "slot":
            return self._slot_rows[key[1], self.offsets[number] : self.offsets[number + 1]]
        array = self._child_rows if key[0] == "child" else self._parents
        return array[self.edge_offsets[number] : self.edge_offsets[number + 1]]


def _refuse(graphs: Graphs, wanted: Sequence[Wanted], vertex: int) -> None:
    graph, place = graphs.locate(vertex)
    number = graphs.types[vertex]
    name, want = graphs.type_names[number], wanted[number]
    slots = graphs.slots[graphs.child_starts[vertex] : graphs.child_starts[vertex + 1]]
    unseen = next(int(slot) for slot in slots if slot not in want.slots)
    gathers = f"slots {', '.join(map(str, sorted(want.slots)))}" if want.slots else "nothing"
    raise UsageError(
        f"graph {graph}, vertex {place}: a child in slot {unseen}, but type '{name}' gathers {gathers}: its state "
        "would be lost; gather it, gather_all(), or give such vertices another type"
    )


@cpu_kernel
def _number(types, heights, type_count, rounds):
    """Return the vertex of each row, the row of each vertex, and where each (type, round) begins: a counting sort."""
    starts = np.zeros(type_count * rounds + 1, np.int64)
    for vertex in range(types.shape[0]):
        starts[types[vertex] * rounds + heights[vertex] + 1] += 1
    for number in range(type_count * rounds):
        starts[number + 1] += starts[number]
    free = starts[:-1].copy()
    vertices, rows = np.empty(types.shape[0], np.int64), np.empty(types.shape[0], np.int64)
    for vertex in range(types.shape[0]):
        number = types[vertex] * rounds + heights[vertex]
        row = free[number]
        free[number] += 1
        rows[vertex] = row
        vertices[row] = vertex
    return vertices, rows, starts


@cpu_kernel
def _children(vertices, rows, types, child_starts, children, slots, seen):
    """Return the row of the child in each slot, [slots, V], V where there is none; the children before each row; and a
    vertex with a child that its function does not see, -1 without any."""
    count, slot_count = vertices.shape[0], seen.shape[1] - 1
    slot_rows = np.full((slot_count, count), count, np.int64)
    edge_starts = np.zeros(count + 1, np.int64)
    fault = -1
    for row in range(count):
        vertex = vertices[row]
        edge_starts[row + 1] = edge_starts[row] + child_starts[vertex + 1] - child_starts[vertex]
        for edge in range(child_starts[vertex], child_starts[vertex + 1]):
            slot = min(slots[edge], slot_count)
            if slot < slot_count:
                slot_rows[slot, row] = rows[children[edge]]
            if not seen[types[vertex], slot] and fault < 0:
                fault = vertex
    return slot_rows, edge_starts, fault


@cpu_kernel
def _edges(vertices, rows, child_starts, children, offsets, type_count):
    """Return for all children, in the order of their parents' rows, their row and their parent's within its type."""
    child_rows, parents = np.empty(children.shape[0], np.int64), np.empty(children.shape[0], np.int64)
    place = 0
    for number in range(type_count):
        for row in range(offsets[number], offsets[number + 1]):
            vertex = vertices[row]
            for edge in range(child_starts[vertex], child_starts[vertex + 1]):
                child_rows[place] = rows[children[edge]]
                parents[place] = row - offsets[number]
                place += 1
    return child_rows, parents


@cpu_kernel
def _batches(starts, edge_starts, offsets, edge_offsets, rounds):
    """Return the batches [*, 5] in order: by round, then by type."""
    types = offsets.shape[0] - 1
    found, count = np.empty((types * rounds, 5), np.int64), 0
    for height in range(rounds):
        for number in range(types):
            first, last = starts[number * rounds + height], starts[number * rounds + height + 1]
            if first < last:
                found[count, 0] = number
                found[count, 1], found[count, 2] = first - offsets[number], last - offsets[number]
                found[count, 3] = edge_starts[first] - edge_offsets[number]
                found[count, 4] = edge_starts[last] - edge_offsets[number]
                count += 1
    return found[:count]
