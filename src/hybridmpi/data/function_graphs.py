"""A function of Python source as a graph: its syntax tree, with one vertex for each of its variables."""

from __future__ import annotations

import ast

import numpy as np

from hybridmpi.data.syntax import LEFT_OUT, constant_word, is_text, parse
from hybridmpi.data.vocabulary import Numbers

NODE, VARIABLE = "node", "variable"
Function = tuple[bytes, ...]
"""A graph as int32 [vertices]: kinds, words (-1: none), whether it is a variable, numbers of children; and its children
int32 [edges], numbered within the graph. Children come before their parents, variables first."""
_OPERATORS = (ast.operator, ast.unaryop, ast.boolop, ast.cmpop)


def functions(text: str, longest: int, words: Numbers, kinds: Numbers) -> list[Function]:
    """Return the functions of Python source that are in no other function. Local. Raises NotPythonError.

    Left out are those of more than `longest` vertices, and those without variables. Takes new words and kinds into
    `words` and `kinds`.
    """
    found, stack = [], [parse(text)]
    while stack:
        node = stack.pop()
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            if (graph := _graph(node, longest, words, kinds)) is not None:
                found.append(graph)
        elif not isinstance(node, ast.expr):
            stack += reversed(list(ast.iter_child_nodes(node)))
    return found


def _variables(function: ast.AST) -> set[str]:
    """Return the names that a function binds as arguments, by assignment or for an exception."""
    bound, outside = set(), set()
    for node in ast.walk(function):
        if isinstance(node, ast.arg):
            bound.add(node.arg)
        elif isinstance(node, ast.Name):
            if isinstance(node.ctx, ast.Store):
                bound.add(node.id)
        elif isinstance(node, ast.ExceptHandler):
            bound.add(node.name)
        elif isinstance(node, ast.Global):
            outside.update(node.names)
    return bound - outside - {None}


def _graph(function: ast.AST, longest: int, words: Numbers, kinds: Numbers) -> Function | None:
    """Return the graph of a function; None for one that is too long or has no variables.

    Nodes are visited from the root, each before its children from last to first, and numbered the other way round.
    """
    variables = _variables(function)
    seen: dict[str, int] = {}
    nodes: list[tuple[str, str | None]] = []  # kind and word, in the order of the visit
    edges: list[tuple[int, int, int]] = []  # parent, place among its children, child; a variable as -1 less its number
    stack = [(function, "", -1, 0)]
    while stack:
        if len(nodes) + len(stack) + len(seen) > longest:
            return None
        node, role, parent, place = stack.pop()
        number = len(nodes)
        if parent >= 0:
            edges.append((parent, place, number))
        word, below = _parts(node)
        if isinstance(node, (ast.Name, ast.arg, ast.ExceptHandler)) and word in variables:
            edges.append((number, len(below), -1 - seen.setdefault(word, len(seen))))
            word = None
        nodes.append((f"{role}{type(node).__name__}", word))
        stack += [(child, f"{field}:", number, k) for k, (field, child) in enumerate(below)]
    if not seen or len(nodes) + len(seen) > longest:
        return None
    last = len(nodes) + len(seen) - 1
    ends = np.array(edges, np.int32)
    parent, place, child = last - ends[:, 0], ends[:, 1], np.where(ends[:, 2] < 0, -1 - ends[:, 2], last - ends[:, 2])
    children = child[np.lexsort((place, parent))]
    kind = [kinds[VARIABLE]] * len(seen) + [kinds[kind] for kind, _ in reversed(nodes)]
    word = [words[name] for name in seen] + [-1 if word is None else words[word] for _, word in reversed(nodes)]
    is_variable = np.arange(last + 1) < len(seen)
    columns = kind, word, is_variable, np.bincount(parent, minlength=last + 1), children
    return tuple(np.array(column, np.int32).tobytes() for column in columns)


def _parts(node: ast.AST) -> tuple[str | None, list[tuple[str, ast.AST]]]:
    """Return (the word of a node, its children with the names of their fields), as Python's grammar orders them.

    The word is the first name in its fields, the kind of a constant, or the first operator.
    """
    if isinstance(node, ast.Constant):
        return constant_word(node), []
    word, below = None, []
    for name in node._fields:
        if name in LEFT_OUT:
            continue
        value = getattr(node, name, None)
        for part in value if isinstance(value, list) else [value]:
            if isinstance(part, _OPERATORS):
                word = word or f"<{type(part).__name__}>"
            elif isinstance(part, str):
                word = word or part
            elif isinstance(part, ast.AST) and not is_text(part):
                below.append((name, part))
    return word, below
