"""A call at work: its body runs with values that stand for numbers, and what it does is noted.

A body that calls another function goes on at once, with values that stand for the results: so no call ever waits for
another on Python's stack, and depth costs memory only.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from hybridmpi.autograd import Tensor
from hybridmpi.autograd.tracing import body as at_work
from hybridmpi.dynamic.recursion.entries import REFERENCE, Entry, Value, of_frame
from hybridmpi.dynamic.recursion.recipes import Call, Recipe
from hybridmpi.dynamic.recursion.vertices import Location, Vertex
from hybridmpi.errors import HybridMPIError, UsageError

_NONE: frozenset[int] = frozenset()

SHOWN_CALLS = 12
"""So many calls of a path are named in an error."""

DEEPEST = 100_000
"""Calls within calls: more are taken for a recursion without end."""


class SignatureUnknownError(BaseException):
    """A body cannot go on before it is known what a function returns: it begins anew once some call of it has ended."""

    def __init__(self, function: Any) -> None:
        self.function = function


class Given(NamedTuple):
    """Stands for a tensor among the arguments of a call."""

    entry: Entry


class RootRow(NamedTuple):
    """Stands for a root's row of an input of the pass."""

    source: Any
    width: int


class Packed(NamedTuple):
    """A tuple or list among the arguments of a call that has tensors in it."""

    kind: type
    items: list[Any]


def pack(argument: Any, give: Callable[[Any], Given]) -> Any:
    """Return an argument with `give(tensor)` in place of each row in it, a value or a parameter; tuples and lists are
    looked into. Local."""
    kind = type(argument)
    if kind is Value:
        return give(argument)
    if kind is tuple or kind is list:
        items = [pack(item, give) for item in argument]
        if any(type(item) in (Given, Packed) for item in items):
            return Packed(kind, items)
    elif isinstance(argument, Tensor) and is_row(argument.shape):
        return give(argument)
    return argument


def is_row(shape: tuple[int, ...]) -> bool:
    """Return whether a parameter of such a shape can stand for a row. Local."""
    return len(shape) == 1 or (len(shape) == 2 and shape[0] == 1)


class Frame:
    """A call of a recursive function.

    references: where its arguments, and then the results of its calls, come from: (call, entry that it computes, or
    number of a result). vertices: those that its pieces have become. results: where what it returns is. waiting: who
    gathers of it what has no place yet: (vertex, slot, entry or number of a result); or (call, width, ..) that awaits.
    """

    __slots__ = (
        *("answers", "arguments", "body", "book", "expansion", "function", "given", "labels", "made", "parent"),
        *("calls", "depth", "place", "pushed", "recipe", "references", "results", "root", "rows", "stops", "stretch"),
        *("unknown", "vertices", "waiting"),
    )

    def __init__(
        self,
        expansion: Any,
        function: Any,
        arguments: list[Any],
        given: list[tuple[Frame, Entry | int]],
        parent: Frame | None,
        place: int,
    ) -> None:
        """arguments: packed. given: where each `Given` of them comes from. place: which call of its parent this is, or
        which root."""
        self.expansion, self.book = expansion, expansion.context.book
        self.function, self.arguments, self.given = function, arguments, given
        self.parent, self.place = parent, place
        self.root: int = place if parent is None else parent.root
        self.depth: int = 0 if parent is None else parent.depth + 1
        self.recipe: Recipe = expansion.context.first_recipe(function, len(given))
        self.answers: list[Any] = []
        self.made: list[Frame] = []
        self.stops: frozenset[int] = _NONE
        self.vertices: list[Vertex] = []
        self.waiting: list[tuple[Vertex | Frame, int, Entry | int]] = []
        self.results: list[Location] | None = None
        self.body: Any = None

    def path(self) -> str:
        """Return the path of calls that leads here. Local."""
        parts, frame = [], self
        while frame is not None:
            parts.append(f"{frame.function.name}[{frame.place}]")
            frame = frame.parent
        parts.reverse()
        if len(parts) > SHOWN_CALLS:
            parts = [*parts[:4], f"... {len(parts) - 8} calls ...", *parts[-4:]]
        return " > ".join(parts)

    def go(self) -> tuple[str, Any]:
        """Run the body until it waits or ends: ("awaits", value), ("returns", result), ("unknown", function). Local.

        Awaits that have their `answers` do not stop it, so that it can begin anew. Errors name the path of calls.
        """
        token = at_work.set(self)
        self.unknown = None
        try:
            if self.body is not None:
                self.stretch = []
                state = self._send(self.answers[-1])
            else:
                state = self._begin()
            if self.unknown is None:
                return state
            raise self.unknown  # which the body has caught, as a bare `except` does
        except SignatureUnknownError as unknown:
            self.body = None
            return "unknown", unknown.function
        except Exception as error:
            told = with_path(error, self.path())
            if told is error:
                raise
            raise told from error
        finally:
            at_work.reset(token)

    def _begin(self) -> tuple[str, Any]:
        self.references = list(self.given)
        self.rows: list[tuple[int, int]] = []
        self.pushed: list[tuple[str, Entry]] = []
        self.labels: dict[str, Any] = {}
        self.stretch: list[Call] = []
        self.calls = 0
        result = self.function.run([self._unpacked(argument) for argument in self.arguments])
        if not inspect.iscoroutine(result):
            return "returns", result
        self.body = result
        state = self._send(None)
        for answer in self.answers:
            if state[0] == "returns":
                break
            self.stretch = []
            state = self._send(answer)
        return state

    def _send(self, answer: Any) -> tuple[str, Any]:
        try:
            value = self.body.send(answer)
        except StopIteration as end:
            return "returns", end.value
        if type(value) is not Value or value.frame is not self:
            raise UsageError(
                f"awaits {value!r}: expected a tensor of this call; calls of recursive functions return at once, with "
                "tensors, and are not awaited themselves"
            )
        return "awaits", value

    def _unpacked(self, argument: Any) -> Any:
        if type(argument) is Given:
            return Value(self, argument.entry)
        if type(argument) is RootRow:
            return self.row_of(argument.source, self.root, argument.width)
        if type(argument) is Packed:
            return argument.kind([self._unpacked(item) for item in argument.items])
        return argument

    def note(self, operation: str, arguments: tuple[Any, ...], options: dict[str, Any]) -> Value:
        """Write down an operation. Local."""
        return Value(self, self.book.entry(self, operation, arguments, options))

    def note_module(self, module: Any, arguments: tuple[Any, ...], options: dict[str, Any]) -> Any:
        """Write down what a module does. Local. It runs only the first time, if it does no more than operations."""
        results, key = self.book.module(self, module, arguments, options)
        if results is not None:
            return of_frame(self, results)
        before = self._deeds()
        results = module.forward(*arguments, **options)
        if key is not None and self._deeds() == before:
            self.book.keep_module(key, results)
        return results

    def _deeds(self) -> tuple[int, ...]:
        return self.calls, len(self.rows), len(self.pushed), len(self.labels)

    def row(self, table: Any, number: Any) -> Value:
        """Return the value of a row of a table. Local."""
        if isinstance(number, bool) or not isinstance(number, (int, np.integer)):
            raise UsageError(
                f"a row of a table in a recursive function: {number!r}: expected one whole number (look several up one "
                "after the other)"
            )
        if not 0 <= number < table.rows:
            table.check(np.array([number]))
        return self.row_of(table, int(number), table.dim)

    def row_of(self, source: Any, number: int, width: int) -> Value:
        """Return the value of a row of a table or of an input of the pass. Local."""
        self.rows.append((source, number))
        return Value(self, self.book.row(len(self.rows) - 1, width, source))

    def push(self, rows: Mapping[str, Any], data: Mapping[str, Any]) -> None:
        """Note what goes outside. Local."""
        for name, value in rows.items():
            if any(name == known for known, _ in self.pushed):
                raise UsageError(f"pushes '{name}' twice")
            self.pushed.append((name, self.vector(value, "pushes", name)))
        for name in data:
            if name in self.labels:
                raise UsageError(f"pushes '{name}' twice")
        self.labels.update(data)

    def vector(self, value: Any, *what: Any) -> Entry:
        """Return the entry of a vector of this call. Local. Raises UsageError, which begins with `what`, for others."""
        if type(value) is Value:
            entry = value.entry if value.frame is self else self.book.entry_of(self, value)
        elif isinstance(value, Tensor) and is_row(value.shape):
            entry = self.book.constant(value)
        else:
            raise UsageError(f"{' '.join(map(str, what))}: {value!r}: expected a tensor [1, width]")
        if len(entry.node.shape) != 1:
            raise UsageError(
                f"{' '.join(map(str, what))}: rows of shape {entry.node.shape}: expected vectors (reshape makes them)"
            )
        return entry

    def call(self, function: Any, arguments: tuple[Any, ...]) -> Any:
        """Return what stands for the results of a call of another function, or this one. Local."""
        if self.unknown is not None:
            raise self.unknown  # once more: the body has caught it
        place, given = self.calls, []

        def give(value: Tensor) -> Given:
            entry = self.vector(value, "calls a function with a tensor")
            given.append(entry)
            return Given(self.book.reference(len(given) - 1, entry.width))

        packed = [pack(argument, give) for argument in arguments]
        if place == len(self.made):
            if self.depth == DEEPEST:
                raise UsageError(f"calls within calls, {DEEPEST} deep: does every branch of it end?")
            producers = [self.producer(entry) for entry in given]
            child = Frame(self.expansion, function, packed, producers, self, place)
            self.made.append(child)
            self.expansion.begin(child)
        else:
            child = self.made[place]
            if child.function.key != function.key or child.given != [self.producer(entry) for entry in given]:
                raise UsageError(
                    f"calls {function.name} where it called {child.function.name} when it first ran: a body begins "
                    "anew when a function that it calls runs for the first time, and has to do the same again; what it "
                    "draws must follow from its arguments"
                )
        signature = self.expansion.context.signatures.get(function.key)
        if signature is None:
            # What the call was given may be needed before this body goes on.
            self.stretch.append(Call(tuple(given), ()))
            self.unknown = SignatureUnknownError(function)
            raise self.unknown
        self.calls += 1
        if place in self.stops:
            self.stretch = [Call((), signature.widths)]
        else:
            self.stretch.append(Call(tuple(given), signature.widths))
        first = len(self.references)
        self.references += [(child, number) for number in range(len(signature.widths))]
        entries = [self.book.reference(first + number, width) for number, width in enumerate(signature.widths)]
        return signature.arranged([Value(self, entry) for entry in entries])

    def producer(self, entry: Entry) -> tuple[Frame, Entry | int]:
        """Return where a value of this call comes from. Local."""
        return self.references[entry.arguments[0]] if entry.operation == REFERENCE else (self, entry)

    def location(self, what: Entry | int) -> Location | None:
        """Return where a result or an entry is; None while it is nowhere. Local."""
        if type(what) is int:
            return None if self.results is None else self.results[what]
        found = self.recipe.outputs.get(what)
        return None if found is None else (self.vertices[found[0]], found[1])


def with_path(error: Exception, path: str) -> Exception:
    """Return an error that says in which call it was raised: one of hybridmpi's own in its text. Local."""
    if isinstance(error, HybridMPIError):
        return type(error)(f"in the call {path}: {error}")
    error.add_note(f"in the call {path}")
    return error
