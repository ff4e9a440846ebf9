"""Lowering: calls whose structure depends on no computed value become graphs, once, for the level scheduler."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from hybridmpi.dynamic.recursion.expansion import Context, Expansion
from hybridmpi.dynamic.recursion.frames import Frame
from hybridmpi.dynamic.recursion.types import Sinks
from hybridmpi.errors import UsageError
from hybridmpi.graphs import Graphs

OUTPUTS = "gathered output"
"""Name of the data of graphs that say, for each slot, which output of its width is gathered: int32 [V, slots]."""


class RootRows(NamedTuple):
    """A source of rows: an argument of the roots, a row for each."""

    number: int


def result_name(number: int) -> str:
    """Return the name under which results of roots are pushed. Local."""
    return f"result {number}"


def rows_name(context: Context, source: Any, number: int) -> str:
    """Return the name of what vertices pull from a source as their `number`th row: as an input of the pass, and of the
    data of graphs that say which rows these are. Local."""
    return f"row {context.source(source)}.{number}"


def put_out(expansion: Expansion, frame: Frame) -> None:
    """Add a vertex that pushes what a root returns, once. Local."""
    if frame.root in expansion.put_out:
        return
    expansion.put_out.add(frame.root)
    context, results = expansion.context, frame.results
    assert results is not None, "the root has not ended"
    if not results:
        return
    widths = context.signatures[frame.function.key].widths
    entries = [context.book.reference(number, width) for number, width in enumerate(widths)]
    sinks = Sinks(pushes=tuple((result_name(number), entry) for number, entry in enumerate(entries)))
    kind = context.types.find(f"{frame.function.name}.results", sinks, entries, frozenset())
    vertex = expansion.vertices.add(kind, frame.root, [])
    for slot, location in enumerate(results):
        expansion.vertices.connect(vertex, slot, location)


def as_graphs(expansion: Expansion, roots: int) -> Graphs:
    """Return the vertices of an expansion as graphs, one for each root. Local."""
    context, vertices = expansion.context, expansion.vertices.all
    owners = np.fromiter((vertex.root for vertex in vertices), np.int64, len(vertices))
    order = np.argsort(owners, kind="stable")
    number_of = np.empty_like(order)
    number_of[order] = np.arange(len(order))
    starts = np.zeros(roots + 1, np.int64)
    np.cumsum(np.bincount(owners, minlength=roots), out=starts[1:])

    gathered = [vertices[number].gathered for number in order.tolist()]
    counts = np.fromiter(map(len, gathered), np.int64, len(gathered))
    flat = [(of.number, output) for locations in gathered for of, output in locations]
    children, gathered_outputs = np.array(flat, np.int64).reshape(-1, 2).T
    child_starts = np.zeros(len(counts) + 1, np.int64)
    np.cumsum(counts, out=child_starts[1:])
    slots = np.arange(len(flat)) - np.repeat(child_starts[:-1], counts)
    outputs = np.zeros((len(counts), int(counts.max(initial=1))), np.int32)
    outputs[np.repeat(np.arange(len(counts)), counts), slots] = gathered_outputs

    data: dict[str, Any] = {OUTPUTS: outputs}
    labels: dict[str, tuple[list[int], list[Any]]] = {}
    for vertex in vertices:
        for (source, number, _), row in zip(vertex.kind.rows, vertex.rows, strict=True):
            if not isinstance(source, RootRows):
                name = rows_name(context, source, number)
                if name not in data:
                    data[name] = np.full(len(counts), -1)
                data[name][number_of[vertex.number]] = row
        for name, value in vertex.labels.items():
            numbers, values = labels.setdefault(name, ([], []))
            numbers.append(vertex.number)
            values.append(value)
    for name, (numbers, values) in labels.items():
        data[name] = _column(name, number_of[numbers], values, len(counts))
    types = np.fromiter((vertex.kind.number for vertex in vertices), np.int32, len(counts))[order]
    names = [kind.name for kind in context.types.all]
    return Graphs(starts, types, child_starts, number_of[children], slots, names, data)


def _column(name: str, vertices: np.ndarray, values: list[Any], count: int) -> np.ndarray:
    """Return data that were pushed as an array for all vertices."""
    given = np.asarray(values)
    if given.ndim != 1 or given.dtype.kind not in "biuf":
        raise UsageError(f"push({name}=...) of {values[0]!r}: expected a tensor, or a number in every call")
    whole = given.dtype.kind != "f"
    column = np.full(count, -1 if whole else np.nan, np.int64 if whole else np.float64)
    column[vertices] = given
    return column
