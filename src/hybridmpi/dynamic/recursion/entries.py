"""What calls compute with: values that are written down, the same for all calls that do the same.

An `Entry` is an operation on other entries. All calls of a context share them: a call that does what another did before
finds its entries, and so two calls that compute the same are known by comparing a few of these.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from hybridmpi.autograd import Tensor
from hybridmpi.dynamic.nodes import VERTEX, Node, Trace
from hybridmpi.dynamic.symbols import OPERATIONS, Symbol, node_of
from hybridmpi.errors import UsageError

REFERENCE, ROW, CONSTANT = "reference", "row", "constant"
"""Sources of a call's values: an argument or the result of a call, by number; a row of a table or of an input of the
pass, by number; a parameter."""


class Entry:
    """One operation. arguments: entries, tensors, numbers and tuples of them. references: numbers of those among its
    sources. width: the elements of a row. Numbers of entries rise from what is used to what uses it."""

    __slots__ = ("arguments", "node", "number", "operation", "options", "references", "width")

    def __init__(
        self, number: int, operation: str, arguments: tuple[Any, ...], options: tuple[tuple[str, Any], ...], node: Node
    ) -> None:
        self.number, self.operation, self.node = number, operation, node
        self.arguments, self.options = arguments, options
        self.width = node.width
        if operation == REFERENCE:
            self.references = frozenset((arguments[0],))
        else:
            self.references = frozenset().union(*(operand.references for operand in self.operands()))

    def operands(self) -> Iterator[Entry]:
        """Yield the entries it is computed from. Local."""
        return _entries_in((*self.arguments, *(value for _, value in self.options)))

    def __repr__(self) -> str:
        return f"{self.operation} {self.node.shape}"


def _entries_in(arguments: Any) -> Iterator[Entry]:
    for argument in arguments:
        if type(argument) is Entry:
            yield argument
        elif type(argument) is tuple:
            yield from _entries_in(argument)


class Value(Symbol):
    """Stands for a row, [1, *shape], within one call."""

    __slots__ = ("entry", "frame")

    def __init__(self, frame: Any, entry: Entry) -> None:
        self.frame, self.entry = frame, entry  # all else is asked for seldom

    @property
    def trace(self) -> Trace:  # type: ignore[override]
        """Where the shapes of values are known."""
        return self.frame.book.trace

    @property
    def node(self) -> Node:  # type: ignore[override]
        """What has the shape."""
        return self.entry.node

    @property
    def requires_grad(self) -> bool:  # type: ignore[override]
        """Whether a gradient can flow."""
        return self.entry.node.follows

    def note(self, operation: str, arguments: tuple[Any, ...], options: dict[str, Any]) -> Value:
        """Write down an operation on this value. Local."""
        return self.frame.note(operation, arguments, options)

    def note_module(self, module: Any, arguments: tuple[Any, ...], options: dict[str, Any]) -> Any:
        """Write down what a module does with this value: run it only the first time. Local."""
        return self.frame.note_module(module, arguments, options)

    @property
    def data(self) -> Any:
        """Raises UsageError: there are no values yet."""
        raise UsageError(
            "a recursive function read the values of a tensor, which are not there yet: to decide by them it has to be "
            "an `async def`, and to write `await tensor`; operations that can stand in it are "
            f"{', '.join(sorted(OPERATIONS))}, and layers made of them"
        )

    @data.setter
    def data(self, values: Any) -> None:
        pass

    def __repr__(self) -> str:
        return f"Value({self.entry!r})"


class Book:
    """The entries of a context. `trace` knows their shapes."""

    def __init__(self) -> None:
        self.trace = Trace()
        self._entries: dict[Any, Entry] = {}
        self._modules: dict[Any, Any] = {}

    def reference(self, number: int, width: int) -> Entry:
        """Return the entry of an argument or of the result of a call. Local."""
        return self._source(REFERENCE, number, width)

    def row(self, number: int, width: int, source: Any) -> Entry:
        """Return the entry of a call's row of that number, from a source. Local."""
        return self._source(ROW, number, width, source)

    def _source(self, operation: str, *what: Any) -> Entry:
        key = (operation, *what)
        entry = self._entries.get(key)
        if entry is None:
            node = self.trace.add(operation, (), what, space=VERTEX, shape=(what[1],), follows=True)
            entry = self._entries[key] = Entry(len(self._entries), operation, what, (), node)
        return entry

    def constant(self, tensor: Tensor) -> Entry:
        """Return the entry of a parameter that is used as a row. Local. Raises UsageError if it is none."""
        key = (CONSTANT, tensor)
        entry = self._entries.get(key)
        if entry is None:
            node = node_of(self.trace, tensor)
            node = self.trace.reshape(node, (node.width,))
            entry = self._entries[key] = Entry(len(self._entries), CONSTANT, (tensor,), (), node)
        return entry

    def entry(self, frame: Any, operation: str, arguments: tuple[Any, ...], options: dict[str, Any]) -> Entry:
        """Return the entry of an operation on values of a frame. Local."""
        key = (operation, tuple([self._key(frame, a) for a in arguments]), self._options(frame, options))
        try:
            entry = self._entries.get(key)
        except TypeError as error:
            raise UsageError(f"{operation} in a recursive function: {error}: expected tensors and numbers") from None
        if entry is None:
            node = OPERATIONS[operation](self.trace, *arguments, **options)
            entry = self._entries[key] = Entry(len(self._entries), *key, node)
        return entry

    def module(self, frame: Any, module: Any, arguments: tuple[Any, ...], options: dict[str, Any]) -> tuple[Any, Any]:
        """Return what is known of the results of a module with such arguments, and the key to make it known. Local."""
        keys = [a.entry if type(a) is Value and a.frame is frame else self._key(frame, a) for a in arguments]
        key = (module, module.training, *keys, self._options(frame, options))
        try:
            return self._modules.get(key), key
        except TypeError:
            return None, None

    def keep_module(self, key: Any, results: Any) -> None:
        """Let the results of a module be known, if they are values, or tuples and lists of them. Local."""
        entries = _entries_of(results)
        if entries is not None:
            self._modules[key] = entries

    def entry_of(self, frame: Any, value: Value) -> Entry:
        """Return the entry of a value of a frame. Local. Raises UsageError for one of another."""
        return self._key(frame, value)

    def _options(self, frame: Any, options: dict[str, Any]) -> tuple[tuple[str, Any], ...]:
        return tuple([(name, self._key(frame, options[name])) for name in sorted(options)]) if options else ()

    def _key(self, frame: Any, argument: Any) -> Any:
        kind = type(argument)
        if kind is Value:
            if argument.frame is not frame:
                raise UsageError(
                    "a tensor of another call is used: what a call computes with reaches it as an argument, and what "
                    "it has computed leaves it as a result"
                )
            return argument.entry
        if kind is tuple or kind is list:
            return tuple([self._key(frame, item) for item in argument])
        if kind is slice:
            return slice, argument.start, argument.stop, argument.step
        return argument


def _entries_of(results: Any) -> Any:
    """Return values, or tuples and lists of them, as entries; None for anything else."""
    if type(results) is Value:
        return results.entry
    if type(results) in (tuple, list):
        entries = [_entries_of(result) for result in results]
        return None if None in entries else type(results)(entries)
    return None


def of_frame(frame: Any, results: Any) -> Any:
    """Return entries, or tuples and lists of them, as values of a frame. Local."""
    kind = type(results)
    if kind is Entry:
        return Value(frame, results)
    return kind([of_frame(frame, result) for result in results])


def write(entry: Entry, trace: Trace, written: dict[Entry, Symbol]) -> Symbol:
    """Write an operation down in a trace, on what is written there. Local."""
    if entry.operation == CONSTANT:
        node = node_of(trace, entry.arguments[0])
        return Symbol(trace, trace.reshape(node, (node.width,)))

    def found(argument: Any) -> Any:
        if type(argument) is Entry:
            return written[argument]
        if type(argument) is tuple:
            return slice(*argument[1:]) if argument and argument[0] is slice else tuple(map(found, argument))
        return argument

    operation: Callable[..., Node] = OPERATIONS[entry.operation]
    options = {name: found(value) for name, value in entry.options}
    return Symbol(trace, operation(trace, *map(found, entry.arguments), **options))
