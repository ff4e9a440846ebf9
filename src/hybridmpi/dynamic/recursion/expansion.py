"""Calls become vertices: bodies run, what they did is divided, and who gathers from whom is noted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hybridmpi.dynamic.recursion.entries import Book, Entry, Value
from hybridmpi.dynamic.recursion.frames import Frame, with_path
from hybridmpi.dynamic.recursion.recipes import Recipe, Stretch
from hybridmpi.dynamic.recursion.types import PieceTypes
from hybridmpi.dynamic.recursion.vertices import Vertices
from hybridmpi.errors import UsageError


@dataclass(frozen=True, slots=True)
class Signature:
    """What a function returns: tensors of these widths, in a tuple or list, alone, or none."""

    kind: type | None
    widths: tuple[int, ...]

    def arranged(self, values: list[Any]) -> Any:
        """Return values as the function returns them. Local."""
        if self.kind is None:
            return None
        return values[0] if self.kind is Value else self.kind(values)

    def __str__(self) -> str:
        if self.kind is None:
            return "nothing"
        widths = ", ".join(map(str, self.widths))
        return f"a tensor of width {widths}" if self.kind is Value else f"a {self.kind.__name__} of widths {widths}"


class Context:
    """What is known of the recursive functions that are reached from one of them, from one pass to the next."""

    def __init__(self) -> None:
        self.book = Book()
        self.types = PieceTypes()
        self.signatures: dict[Any, Signature] = {}
        self.sources: dict[Any, int] = {}
        self._recipes: dict[Any, Recipe] = {}

    def source(self, source: Any) -> int:
        """Return the number of a table, or of an input of the pass. Local."""
        return self.sources.setdefault(source, len(self.sources))

    def first_recipe(self, function: Any, given: int) -> Recipe:
        """Return the recipe of calls of a function with so many tensors that have not done anything. Local."""
        key = (function.key, given)
        if key not in self._recipes:
            self._recipes[key] = Recipe(stages=[0] * given)
        return self._recipes[key]


class Expansion:
    """Runs calls until none can go on, callees in the order of their calls. parked: those that wait for values, with
    where these come from and their width. begun_anew: whether calls had to wait for what a function returns."""

    def __init__(self, context: Context) -> None:
        self.context, self.vertices = context, Vertices()
        self.parked: list[tuple[Frame, tuple[Frame, Entry | int], int]] = []
        self.begun_anew = False
        self.roots: list[Frame] = []
        self.put_out: set[int] = set()
        self._begun: list[Frame] = []
        self._stack: list[Frame] = []
        self._unknown: dict[Any, list[Frame]] = {}

    def begin(self, frame: Frame) -> None:
        """Let a call run. Local."""
        self._stack.append(frame)
        self._begun.append(frame)

    def resume(self, frame: Frame) -> None:
        """Let a call go on. Local."""
        self._stack.append(frame)

    def run(self) -> None:
        """Run what can run. Local."""
        stack = self._stack
        while stack:
            frame, count = stack.pop(), len(stack)
            state, what = frame.go()
            stack[count:] = stack[: count - 1 : -1] if count else stack[::-1]
            if state == "returns":
                self._end(frame, what)
            elif state == "awaits":
                entry = self.context.book.entry_of(frame, what)
                self._cut(frame, Stretch(tuple(frame.stretch), entry))
                self.parked.append((frame, frame.producer(entry), entry.width))
            else:
                self.begun_anew = True
                self._unknown.setdefault(what.key, []).append(frame)

    def forget(self) -> None:
        """Let go of calls that have all ended. Local."""
        for frame in self._begun:
            frame.made, frame.references, frame.given = [], [], []  # they hold each other
        self._begun.clear()

    def close(self) -> None:
        """Let go of all calls and vertices: so they are freed at once. Local."""
        self.forget()
        for vertex in self.vertices.all:
            vertex.gathered, vertex.chunk = [], None
        self.vertices.all.clear()
        self.roots.clear()

    def in_order(self) -> list[Frame]:
        """Return all calls of which none was forgotten, each after its caller, in the order of the calls. Local."""
        order, stack = [], self.roots[::-1]
        while stack:
            frame = stack.pop()
            order.append(frame)
            stack += frame.made[::-1]
        return order

    def stop_unknown(self) -> None:
        """Let calls that wait for what a function returns become vertices as far as they are: others, that wait for
        values, may need them. Local."""
        for frames in self._unknown.values():
            for frame in frames:
                if frame.calls not in frame.stops:
                    self._cut(frame, Stretch(tuple(frame.stretch)))
                    frame.stops |= {frame.calls}

    def _end(self, frame: Frame, result: Any) -> None:
        try:
            kind, values = _arranged(result)
            returned = tuple(frame.vector(value, "returns as number", number) for number, value in enumerate(values))
            widths = tuple([entry.width for entry in returned])
            known = self.context.signatures.get(frame.function.key)
            if known is None:
                self.context.signatures[frame.function.key] = Signature(kind, widths)
            elif (known.kind, known.widths) != (kind, widths):
                signature = Signature(kind, widths)
                raise UsageError(f"returns {signature}, and an earlier call of it {known}: expected always the same")
        except UsageError as error:
            raise with_path(error, frame.path()) from None
        self._cut(frame, Stretch(tuple(frame.stretch), None, returned, tuple(frame.pushed), tuple(frame.labels)))
        recipe, vertices = frame.recipe, frame.vertices
        frame.results = [(vertices[piece], number) for piece, number in recipe.results]
        if frame.waiting:
            self._settle(frame)
        if frame.labels:
            self._label(frame)
        self._stack += self._unknown.pop(frame.function.key, ())
        frame.body = None

    def _label(self, frame: Frame) -> None:
        if not frame.pushed:
            raise with_path(
                UsageError(f"pushes {', '.join(frame.labels)} without a tensor: data go with the rows of a push"),
                frame.path(),
            )
        frame.vertices[frame.recipe.pushing].labels = frame.labels

    def _cut(self, frame: Frame, stretch: Stretch) -> None:
        """Turn what a call has done since it last waited into vertices."""
        recipe = frame.recipe.next(stretch, frame.function, self.context.types)
        frame.recipe, vertices = recipe, self.vertices
        for piece in recipe.pieces:
            rows = [frame.rows[number][1] for number in piece.rows] if piece.rows else ()
            vertex = vertices.add(piece.type, frame.root, rows)
            frame.vertices.append(vertex)
            for slot, source in enumerate(piece.sources):
                if type(source) is int:
                    producer, what = frame.references[source]
                    location = producer.location(what)
                else:
                    location = frame.vertices[source[0]], source[1]
                if location is None:
                    producer.waiting.append((vertex, slot, what))
                else:
                    vertices.connect(vertex, slot, location)
        if frame.waiting:
            self._settle(frame)

    def _settle(self, frame: Frame) -> None:
        """Tell those who wait for values of a call where they are."""
        still = []
        for vertex, slot, what in frame.waiting:
            location = frame.location(what)
            if location is None:
                still.append((vertex, slot, what))
            else:
                self.vertices.connect(vertex, slot, location)
        frame.waiting = still


def _arranged(result: Any) -> tuple[Any, Sequence[Any]]:
    if result is None:
        return None, ()
    if type(result) in (tuple, list):
        return type(result), result
    return Value, (result,)
