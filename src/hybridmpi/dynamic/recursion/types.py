"""Types of vertices that calls become: what such a vertex gathers, pulls, computes and puts out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from hybridmpi.autograd import Tensor
from hybridmpi.dynamic.nodes import INPUT, VERTEX, Trace
from hybridmpi.dynamic.recursion.entries import REFERENCE, ROW, Entry, write
from hybridmpi.dynamic.symbols import Symbol
from hybridmpi.errors import UsageError

MOST_TYPES = 1000


class Sinks(NamedTuple):
    """What a vertex is for: what others gather of it, what goes outside by name, and names of the data beside it."""

    outputs: tuple[Entry, ...] = ()
    pushes: tuple[tuple[str, Entry], ...] = ()
    labels: tuple[str, ...] = ()


class PieceType:
    """What vertices of one type compute.

    references: what is gathered, by slot. rows: (source, number within the type, entry) of what is pulled. order: the
    operations. outputs, pushes, labels: see `Sinks`. places: of the outputs, (width, number among those of that width).
    """

    def __init__(
        self,
        number: int,
        name: str,
        sinks: Sinks,
        order: Sequence[Entry],
        cut: frozenset[Entry],
    ) -> None:
        """cut: what of `order` is gathered although it is no source, since another piece has computed it."""
        self.number, self.name = number, name
        self.outputs, self.pushes, self.labels = sinks
        gathered = [entry for entry in order if entry.operation == REFERENCE or entry in cut]
        self.references = tuple(gathered)
        self.rows: list[tuple[Any, int, Entry]] = []
        seen: dict[Any, int] = {}
        for entry in order:
            if entry.operation == ROW and entry not in cut:
                source = entry.arguments[2]
                self.rows.append((source, seen.setdefault(source, 0), entry))
                seen[source] += 1
        self.order = [entry for entry in order if entry not in cut and entry.operation not in (REFERENCE, ROW)]
        self.counts: dict[int, int] = {}
        self.places: list[tuple[int, int]] = []
        for entry in self.outputs:
            self.places.append((entry.width, self.counts.get(entry.width, 0)))
            self.counts[entry.width] = self.counts.get(entry.width, 0) + 1

    @property
    def tensors(self) -> list[Tensor]:
        """The parameters that are used."""
        return [part for entry in self.order for part in entry.arguments if isinstance(part, Tensor)]

    def write_down(self, inputs: Mapping[Any, str], by_row: bool) -> Trace:
        """Return the operation list. Local. inputs: the name of each (source, number) as an input of the pass. by_row:
        whether what depends on a row of an input alone is computed once for it."""
        trace, written = Trace(), {}
        for slot, entry in enumerate(self.references):
            shape = (entry.width,)
            node = trace.add("gather", (), (slot, shape), space=VERTEX, shape=shape, follows=True)
            written[entry] = Symbol(trace, trace.reshape(node, entry.node.shape))
        for source, number, entry in self.rows:
            name = inputs[source, number]
            space = INPUT + name if by_row else VERTEX
            node = trace.add("pull", (), (name,), space=space, shape=entry.node.shape, follows=True)
            written[entry] = Symbol(trace, node)
        for entry in self.order:
            written[entry] = write(entry, trace, written)
        sinks = [("scatter", place, entry) for place, entry in zip(self.places, self.outputs, strict=True)]
        sinks += [("push", name, entry) for name, entry in self.pushes]
        for operation, name, entry in sinks:
            node = written[entry].node
            node = trace.computed(trace.reshape(node, (node.width,)), VERTEX)
            trace.add(operation, (node,), (name,))
        return trace


class PieceTypes:
    """The types of a context, each once."""

    def __init__(self) -> None:
        self.all: list[PieceType] = []
        self._known: dict[Any, PieceType] = {}

    def find(self, name: str, sinks: Sinks, order: Sequence[Entry], cut: frozenset[Entry]) -> PieceType:
        """Return the type of such vertices. Local."""
        key = (sinks, cut)
        found = self._known.get(key)
        if found is None:
            if len(self.all) == MOST_TYPES:
                raise UsageError(
                    f"{name}: calls of more than {MOST_TYPES} kinds: there is nothing to batch if each computes "
                    "something else. What differs from call to call must be rows of a table, or arguments, not numbers "
                    "or tensors that the function makes"
                )
            number = len(self.all)
            found = self._known[key] = PieceType(number, f"{name}.{number}", sinks, order, cut)
            self.all.append(found)
        return found
