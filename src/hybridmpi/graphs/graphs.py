"""A batch, or a whole data set, of instance graphs as a few arrays, whose vertices are numbered through.

What one vertex function runs over (Cavs, arXiv 1712.04048, section 3): the graph of a sample is data, not program.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from hybridmpi import inputs
from hybridmpi.errors import DataError, UsageError
from hybridmpi.graphs import structure

_SHOWN = 8
"""So many vertices of a cycle are named in an error."""


class Graphs:
    """Instance graphs as arrays; the vertices of all graphs are numbered through, graph by graph. Not to be changed.

    starts        int64 [graphs + 1]: first vertex of each graph; a graph may be empty
    types         int32 [V]: type of each vertex, index into `type_names`
    child_starts  int64 [V + 1]: the children of v are children[child_starts[v] : child_starts[v + 1]]
    children      int64 [E]: vertex numbers, numbered through, of the same graph
    slots         int32 [E]: which child it is: >= 0, ascending and distinct within a vertex; gaps are allowed
    heights       int32 [V]: longest path down to a vertex without children, the round in which a vertex runs
    data          arrays [V, ...] by name: what the user keeps for each vertex, such as word ids or labels

    A vertex may be the child of several, and twice the child of one, in two slots. Raises DataError for a cycle, a
    child that does not exist or belongs to another graph, a wrong slot or type; UsageError for arrays of the wrong
    kind or length. Local.
    """

    __slots__ = ("child_starts", "children", "data", "heights", "slots", "starts", "type_names", "types")

    starts: np.ndarray
    types: np.ndarray
    child_starts: np.ndarray
    children: np.ndarray
    slots: np.ndarray
    heights: np.ndarray
    type_names: tuple[str, ...]
    data: dict[str, np.ndarray]

    def __init__(
        self,
        starts: Any,
        types: Any,
        child_starts: Any,
        children: Any,
        slots: Any,
        type_names: Sequence[str],
        data: Mapping[str, Any] | None = None,
    ) -> None:
        self.starts = _integers("starts", starts, np.int64)
        self.types = _integers("types", types, np.int32)
        self.child_starts = _integers("child_starts", child_starts, np.int64)
        self.children = _integers("children", children, np.int64)
        self.slots = _integers("slots", slots, np.int32)
        self.type_names = _names(type_names)
        _require_starts("starts", self.starts, len(self.types), "graph", "vertices")
        _require_starts("child_starts", self.child_starts, len(self.children), "vertex", "children")
        if len(self.child_starts) != len(self.types) + 1:
            raise UsageError(
                f"child_starts of length {len(self.child_starts)} for {len(self.types)} vertices: expected one more "
                "than vertices, the number of children as the last"
            )
        if len(self.slots) != len(self.children):
            raise UsageError(f"{len(self.slots)} slots for {len(self.children)} children: expected one for each")
        self._require_right()
        parents = structure.turned_round(self.child_starts, self.children)
        self.heights = structure.heights_of(self.child_starts, *parents)
        self._require_no_cycle()
        self.data = self._fitting(data or {})

    @classmethod
    def _checked(cls, type_names: tuple[str, ...], data: dict[str, np.ndarray], **arrays: np.ndarray) -> Graphs:
        """Return the graphs of arrays that are known to be right, heights among them."""
        graphs = cls.__new__(cls)
        graphs.type_names, graphs.data = type_names, data
        for name, array in arrays.items():
            setattr(graphs, name, array)
        return graphs

    def __len__(self) -> int:
        return len(self.starts) - 1

    def __repr__(self) -> str:
        return (
            f"Graphs({len(self)} graphs, {self.vertices} vertices, {self.edges} edges; "
            f"types: {', '.join(self.type_names)}; data: {', '.join(self.data) or 'none'})"
        )

    @property
    def vertices(self) -> int:
        """The number of vertices of all graphs."""
        return len(self.types)

    @property
    def edges(self) -> int:
        """The number of edges of all graphs."""
        return len(self.children)

    @property
    def sizes(self) -> np.ndarray:
        """The number of vertices of each graph, int64 [graphs]."""
        return np.diff(self.starts)

    def locate(self, vertex: int) -> tuple[int, int]:
        """Return (graph, vertex within that graph) of a vertex number. Local. Raises UsageError where there is none."""
        if not 0 <= vertex < self.vertices:
            raise UsageError(f"vertex {vertex} of {self!r}: expected a number from 0 to {self.vertices - 1}")
        graph = int(np.searchsorted(self.starts, vertex, side="right")) - 1
        return graph, int(vertex - self.starts[graph])

    def select(self, numbers: Any) -> Graphs:
        """Return graphs `numbers` int [n] in that order, repeats allowed, with their data. Local.

        Raises UsageError for a number that is no graph.
        """
        numbers = _integers("numbers of graphs", numbers, np.int64)
        if len(numbers) and (numbers.min() < 0 or numbers.max() >= len(self)):
            place = int(np.argmax((numbers < 0) | (numbers >= len(self))))
            raise UsageError(
                f"select: number {numbers[place]} at position {place} is none of {len(self)} graphs: "
                f"expected 0 to {len(self) - 1}"
            )
        starts, types, child_starts, children, slots, heights, vertices = structure.some(
            numbers, self.starts, self.types, self.child_starts, self.children, self.slots, self.heights
        )
        return Graphs._checked(
            self.type_names,
            {name: array.take(vertices, axis=0) for name, array in self.data.items()},
            starts=starts,
            types=types,
            child_starts=child_starts,
            children=children,
            slots=slots,
            heights=heights,
        )

    @staticmethod
    def join(parts: Sequence[Graphs]) -> Graphs:
        """Return the graphs of all parts, one part after the other. Local.

        Raises UsageError for no parts, and where type names, data names or shapes of data differ.
        """
        parts = list(parts)
        if not parts:
            raise UsageError("join of no Graphs: their types would be unknown; expected one or more")
        first = parts[0]
        for place, part in enumerate(parts):
            _require_alike(place, part, first)
        vertices = np.cumsum([0, *(part.vertices for part in parts)])
        edges = np.cumsum([0, *(part.edges for part in parts)])
        return Graphs._checked(
            first.type_names,
            {name: np.concatenate([part.data[name] for part in parts]) for name in first.data},
            starts=_running([part.starts for part in parts], vertices),
            types=np.concatenate([part.types for part in parts]),
            child_starts=_running([part.child_starts for part in parts], edges),
            children=np.concatenate([part.children + start for part, start in zip(parts, vertices, strict=False)]),
            slots=np.concatenate([part.slots for part in parts]),
            heights=np.concatenate([part.heights for part in parts]),
        )

    def roots(self) -> np.ndarray:
        """Return the vertices that are nobody's child, int64, ascending. Local."""
        is_root = np.ones(self.vertices, bool)
        is_root[self.children] = False
        return np.flatnonzero(is_root)

    def reversed(self) -> Graphs:
        """Return the graphs with every edge turned round: parents become children, in slots 0, 1, ... in the order of
        their numbers. Types and data are as they were. Local."""
        parent_starts, parents = structure.turned_round(self.child_starts, self.children)
        return Graphs._checked(
            self.type_names,
            self.data,
            starts=self.starts,
            types=self.types,
            child_starts=parent_starts,
            children=parents,
            slots=(np.arange(self.edges) - np.repeat(parent_starts[:-1], np.diff(parent_starts))).astype(np.int32),
            heights=structure.heights_of(parent_starts, self.child_starts, self.children),
        )

    def with_data(self, **arrays: Any) -> Graphs:
        """Return the same graphs with these arrays [V, ...] beside or in place of what they carry. Local.

        Raises UsageError for an array of the wrong length.
        """
        structural = {name: getattr(self, name) for name in self.__slots__ if name not in ("data", "type_names")}
        return Graphs._checked(self.type_names, self.data | self._fitting(arrays), **structural)

    def _fitting(self, arrays: Mapping[str, Any]) -> dict[str, np.ndarray]:
        plain = {name: inputs.plain_array(array, f"data '{name}'") for name, array in arrays.items()}
        fitting = {name: np.ascontiguousarray(array) for name, array in plain.items()}
        for name, given in plain.items():
            if np.ndim(given) == 0 or len(fitting[name]) != self.vertices:
                raise UsageError(
                    f"data '{name}' of shape {np.shape(given)} for {self.vertices} vertices: expected one entry for "
                    "each vertex of all graphs"
                )
        return fitting

    def _require_right(self) -> None:
        fault, graph, vertex, edge = structure.first_fault(
            self.starts, self.types, self.child_starts, self.children, self.slots, len(self.type_names)
        )
        if fault == structure.RIGHT:
            return
        start, end = self.starts[graph], self.starts[graph + 1]
        where = f"graph {graph}, vertex {vertex - start}"
        if fault == structure.UNKNOWN_TYPE:
            raise DataError(
                f"{where}: type {self.types[vertex]} is none of {len(self.type_names)} "
                f"({', '.join(self.type_names)}): expected 0 to {len(self.type_names) - 1}"
            )
        child, slot = self.children[edge], self.slots[edge]
        where += f", slot {slot}"
        if fault == structure.DANGLING:
            raise DataError(
                f"{where}: child {child} does not exist: there are {self.vertices} vertices, numbered through over all "
                f"graphs, and those of this graph are {_span(start, end)}"
            )
        if fault == structure.FOREIGN:
            raise DataError(
                f"{where}: child {child} belongs to graph {self.locate(child)[0]}: expected a vertex of the same "
                f"graph, {_span(start, end)} (vertices are numbered through over all graphs)"
            )
        if fault == structure.NEGATIVE_SLOT:
            raise DataError(f"{where}: a slot is negative: expected 0 for the first child")
        if fault == structure.REPEATED_SLOT:
            raise DataError(f"{where}: two children in one slot: give each child of a vertex a slot of its own")
        raise DataError(f"{where}: comes after slot {self.slots[edge - 1]}: list the children of a vertex by slot")

    def _require_no_cycle(self) -> None:
        cycle = structure.a_cycle(self.child_starts, self.children, self.heights)
        if not len(cycle):
            return
        graph, vertex = self.locate(int(cycle[0]))
        within = [str(number - self.starts[graph]) for number in cycle]
        path = within[:_SHOWN] + ["..."] * (len(within) > _SHOWN) + within[:1]
        edge = self.child_starts[cycle[0]] + np.flatnonzero(
            self.children[self.child_starts[cycle[0]] : self.child_starts[cycle[0] + 1]] == cycle[1 % len(cycle)]
        )
        raise DataError(
            f"graph {graph}, vertex {vertex}, slot {self.slots[edge[0]]}: a cycle of {len(cycle)} "
            f"{'vertex' if len(cycle) == 1 else 'vertices'}, each the parent of the next: {' -> '.join(path)}; a "
            "vertex runs after its children, so remove one of these edges"
        )


def _integers(name: str, given: Any, dtype: type) -> np.ndarray:
    """Return a row of integers as a contiguous array of `dtype`; none of them is changed by that."""
    limits = np.iinfo(dtype)
    array = inputs.integers(given, name, limits.min, limits.max + (dtype != np.int64))
    if array.ndim != 1:
        raise UsageError(f"{name} of shape {array.shape}: expected one row of integers")
    return array.astype(dtype, copy=False)


def _names(given: Sequence[str]) -> tuple[str, ...]:
    names = (given,) if isinstance(given, str) else tuple(given)
    if isinstance(given, str) or not all(isinstance(name, str) for name in names) or len(set(names)) < len(names):
        raise UsageError(f"type names {given!r}: expected distinct strings, such as ('leaf', 'inner')")
    return names


def _require_starts(name: str, starts: np.ndarray, total: int, of: str, what: str) -> None:
    if not len(starts):
        raise UsageError(f"{name} is empty: expected 0, and where each {of} ends")
    if starts[0] or starts[-1] != total:
        raise UsageError(f"{name} runs from {starts[0]} to {starts[-1]}: expected 0 to {total}, the number of {what}")
    if (falls := np.flatnonzero(np.diff(starts) < 0)).size:
        number = falls[0]
        raise UsageError(
            f"{name}: {of} {number} begins at {starts[number]} and ends at {starts[number + 1]}: expected no falling"
        )


def _require_alike(place: int, part: Graphs, first: Graphs) -> None:
    for what, mine, expected in (
        ("type names", part.type_names, first.type_names),
        ("data", sorted(part.data), sorted(first.data)),
    ):
        if mine != expected:
            raise UsageError(f"join: part {place} has {what} {mine}, part 0 {expected}: expected the same")
    for name, array in part.data.items():
        if array.shape[1:] != first.data[name].shape[1:]:
            raise UsageError(
                f"join: data '{name}' of part {place} has {array.shape[1:]} for each vertex, that of part 0 "
                f"{first.data[name].shape[1:]}: expected the same"
            )


def _running(parts: list[np.ndarray], totals: np.ndarray) -> np.ndarray:
    """Return starts [sum of n + 1] of parts [n + 1] that are laid end to end; `totals`: where each part begins."""
    moved = [part[:-1] + start for part, start in zip(parts, totals, strict=False)]
    return np.concatenate([*moved, totals[-1:]])


def _span(start: int, end: int) -> str:
    return f"{start} to {end - 1}" if end > start else "none"
