"""Trees whose children have an order, from Python objects: nested tuples and syntax trees.

A tree is the numbers of children of its vertices in postorder, which say all of its structure: so children are numbered
before their parents, and no walk recurses.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from hybridmpi.errors import DataError
from hybridmpi.graphs.builders import INNER, LEAF, TREE_TYPES
from hybridmpi.graphs.graphs import Graphs
from hybridmpi.kernels.cpu import cpu_kernel

Numbering = dict[Any, int] | Callable[[Any], int]
"""What gives a word, label or kind its number: a function, or a dict. A dict takes in what is new, with the next
number, or does what its `__missing__` says."""


def from_nested(trees: Iterable[Any], words: Numbering | None = None) -> Graphs:
    """Return a tree for each entry, tuples and lists of any arity within each other; all else is a leaf's value.

    `(("the", "cat"), "sleeps")` has five vertices. Types are "leaf" and "inner"; data "word" int32: the number of a
    leaf's value, the value itself without `words`; -1 at inner vertices. Raises DataError for a tuple without entries
    and a value that is no number. Local.
    """
    numbers = (lambda value: value) if words is None else numbering(words)
    starts, nodes, arities = _postorder(trees, lambda node: node if isinstance(node, (tuple, list)) else ())
    word = []
    for place, (node, arity) in enumerate(zip(nodes, arities, strict=True)):
        if isinstance(node, (tuple, list)):
            if not arity:
                raise DataError(f"{_place(starts, place)}: {node!r} has no entries: expected one or more, or a value")
            word.append(-1)
        else:
            word.append(_integer(numbers(node), lambda: f"{_place(starts, place)}: the word of leaf {node!r}"))  # noqa: B023
    return of_arities(starts, arities, {"word": np.array(word, np.int32)})


def from_ast(trees: Iterable[ast.AST], kinds: Numbering, **data: Callable[[ast.AST], int]) -> Graphs:
    """Return a tree for each syntax tree: a vertex for each node, its children in the order of its fields. Local.

    Data "kind" int32: the number of the node's class name. `data`: functions of a node, whose integers are kept under
    their names, int32. Types are "leaf" and "inner". Contexts (Load, Store, Del) are left out: what a name is used for
    follows from where it stands, and `data` can ask the node.
    """
    starts, nodes, arities = _postorder(trees, _below)
    number = numbering(kinds)
    arrays = {"kind": np.fromiter((number(type(node).__name__) for node in nodes), np.int32, len(nodes))}
    arrays |= {name: np.fromiter(map(function, nodes), np.int32, len(nodes)) for name, function in data.items()}
    return of_arities(starts, arities, arrays)


def numbering(given: Numbering) -> Callable[[Any], int]:
    """Return the function that numbers words, labels or kinds. Local."""
    if not isinstance(given, dict):
        return given
    if hasattr(type(given), "__missing__"):
        return given.__getitem__
    return lambda entry: given.setdefault(entry, len(given))


def of_arities(starts: Sequence[int], arities: Sequence[int], data: dict[str, np.ndarray]) -> Graphs:
    """Return trees in postorder, given by the number of children of each vertex; slots 0, 1, ...; types TREE_TYPES.

    starts [graphs + 1]; arities [V], right: every tree ends with its root. Local.
    """
    counts = np.asarray(arities, np.int64)
    child_starts = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)])
    children = _children(counts, child_starts)
    slots = np.arange(len(children)) - np.repeat(child_starts[:-1], counts)
    return Graphs(starts, np.where(counts > 0, INNER, LEAF), child_starts, children, slots, TREE_TYPES, data)


@cpu_kernel
def _children(arities, child_starts):
    """The children of a vertex are the last vertices that have no parent yet: the top of a stack."""
    children = np.empty(child_starts[-1], np.int64)
    stack = np.empty(arities.shape[0], np.int64)
    height = 0
    for vertex in range(arities.shape[0]):
        height -= arities[vertex]
        for place in range(arities[vertex]):
            children[child_starts[vertex] + place] = stack[height + place]
        stack[height] = vertex
        height += 1
    return children


def _postorder(roots: Iterable[Any], below: Callable[[Any], Sequence[Any]]) -> tuple[list[int], list[Any], list[int]]:
    """Return where each tree starts, its nodes in postorder, and the number of children of each.

    Postorder is the reverse of the preorder that visits the last child first.
    """
    starts, nodes, arities = [0], [], []
    for root in roots:
        visited, numbers, stack = [], [], [root]
        while stack:
            node = stack.pop()
            children = below(node)
            visited.append(node)
            numbers.append(len(children))
            stack += children
        visited.reverse()
        numbers.reverse()
        nodes += visited
        arities += numbers
        starts.append(len(nodes))
    return starts, nodes, arities


def _below(node: ast.AST) -> list[ast.AST]:
    found: list[ast.AST] = []
    for name in node._fields:
        value = getattr(node, name, None)
        if isinstance(value, list):
            found += [entry for entry in value if isinstance(entry, ast.AST)]
        elif isinstance(value, ast.AST) and not isinstance(value, ast.expr_context):
            found.append(value)
    return found


def _integer(value: Any, what: Callable[[], str]) -> int:
    if isinstance(value, (int, np.integer)) and not isinstance(value, bool) and -(1 << 31) <= value < 1 << 31:
        return int(value)
    raise DataError(f"{what()} is {value!r}: expected an int32; give `words` a dict that numbers them")


def _place(starts: list[int], vertex: int) -> str:
    graph = int(np.searchsorted(starts, vertex, side="right")) - 1
    return f"graph {graph}, vertex {vertex - starts[graph]}"
