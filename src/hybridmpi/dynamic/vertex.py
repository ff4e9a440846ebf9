"""Vertex functions: what every vertex of a type computes, in ordinary layer code and four words of its own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from hybridmpi.autograd import Tensor
from hybridmpi.dynamic.nodes import CONSTANT, EDGE, INPUT, VERTEX, Trace
from hybridmpi.dynamic.symbols import Symbol, node_of
from hybridmpi.errors import UsageError
from hybridmpi.nn import Module


class Vertex(Protocol):
    """What a vertex function is given: its vertex, to which it speaks of others (Cavs, arXiv 1712.04048, section 3).

    All tensors are [rows, width]: how many rows there are is not the function's business.
    """

    def gather(self, slot: int) -> Any:
        """Return what the child in a slot has scattered, a tensor for each name: zeros where there is no such child."""

    def gather_all(self) -> Any:
        """Return what all children have scattered, a tensor for each name with a row for each child. What is computed
        from it has a row for each child too; values of the vertex used with it are repeated for its children."""

    def total(self, rows: Tensor) -> Tensor:
        """Return the sum over each vertex' children of what has a row for each child; zeros without children."""

    def pull(self, name: str = "input") -> Tensor:
        """Return this vertex' row of an external input of the pass."""

    def scatter(self, **state: Tensor) -> None:
        """Publish this vertex' state to its parents, by name; once."""

    def push(self, **rows: Tensor) -> None:
        """Give this vertex' row of external outputs, by name."""


class VertexFunction(Module):
    """Base of vertex functions: a subclass has `vertex(v)`, which says what a vertex of its type computes.

    It is written down once, with symbols, and then runs for all vertices of a round at once. So it must do the same
    whatever the values; what depends on the kind of vertex is a function of another type.
    """

    def vertex(self, v: Vertex) -> None:
        """Compute one vertex: see `Vertex`."""
        raise NotImplementedError


class StateUnknownError(Exception):
    """A function gathers a name whose width is not known yet: some other type has to be written down before."""


class _Gathered:
    """What `gather` returns: a symbol for each name."""

    def __init__(self, find: Any) -> None:
        self._find = find

    def __getattr__(self, name: str) -> Symbol:
        if name.startswith("_"):
            raise AttributeError(name)
        return self._find(name)


class TracedVertex:
    """The vertex that a function is written down with."""

    def __init__(
        self,
        trace: Trace,
        type_name: str,
        state: Mapping[str, int],
        inputs: Mapping[str, int],
        follow: frozenset[str],
        gathered: frozenset[str],
    ) -> None:
        """state, inputs: the widths of what is scattered and of the external inputs. follow: the inputs that gradients
        flow to; gathered: the names of state that they flow to."""
        self._trace, self._type, self._state, self._inputs = trace, type_name, state, inputs
        self._follow, self._to_children = follow, gathered
        self.scattered: dict[str, int] = {}
        self.pushed: dict[str, int] = {}

    def gather(self, slot: int) -> _Gathered:
        """Return the symbols of the child in a slot."""
        if isinstance(slot, bool) or not isinstance(slot, int) or slot < 0:
            raise UsageError(f"type '{self._type}': gather({slot!r}): expected the number of a slot, 0 or above")
        return _Gathered(lambda name: self._gathered("gather", (slot, name), VERTEX))

    def gather_all(self) -> _Gathered:
        """Return the symbols of all children."""
        return _Gathered(lambda name: self._gathered("child", (name,), EDGE))

    def _gathered(self, operation: str, attributes: tuple[Any, ...], space: str) -> Symbol:
        name = attributes[-1]
        if name not in self._state:
            raise StateUnknownError(name)
        follows = name in self._to_children
        node = self._trace.add(operation, (), attributes, space=space, shape=(self._state[name],), follows=follows)
        return Symbol(self._trace, node)

    def total(self, rows: Symbol) -> Symbol:
        """Return the symbol of sums over children."""
        node = node_of(self._trace, rows)
        if node.space == CONSTANT:
            raise UsageError(f"type '{self._type}': the total of a constant: expected what has a row for each child")
        return Symbol(self._trace, self._trace.total(node))

    def pull(self, name: str = "input") -> Symbol:
        """Return the symbol of this vertex' row of an input."""
        if name not in self._inputs:
            raise UsageError(
                f"type '{self._type}' pulls '{name}', which the pass was not given: it has "
                f"{', '.join(self._inputs) or 'no inputs'}"
            )
        shape, follows = (self._inputs[name],), name in self._follow
        node = self._trace.add("pull", (), (name,), space=INPUT + name, shape=shape, follows=follows)
        return Symbol(self._trace, node)

    def scatter(self, **state: Any) -> None:
        """Note what the vertex publishes."""
        self._put("scatter", self.scattered, state)

    def push(self, **rows: Any) -> None:
        """Note what the vertex gives to the outside."""
        self._put("push", self.pushed, rows)

    def _put(self, operation: str, known: dict[str, int], values: Mapping[str, Any]) -> None:
        for name, value in values.items():
            node = node_of(self._trace, value)
            if name in known:
                raise UsageError(f"type '{self._type}' {operation}s '{name}' twice")
            if node.space == EDGE or len(node.shape) != 1:
                raise UsageError(
                    f"type '{self._type}' {operation}s '{name}', which has {node.space} rows of shape {node.shape}: "
                    "expected a vector for each vertex (total(...) sums over children, reshape makes vectors)"
                )
            if (operation, name) == ("push", "vertices"):
                raise UsageError(f"type '{self._type}' pushes 'vertices': the outputs of a pass have that already")
            if node.name == "number":
                raise UsageError(f"type '{self._type}' {operation}s the plain number '{name}'")
            self._trace.add(operation, (self._trace.computed(node, VERTEX),), (name,))
            known[name] = node.width
