"""Trees that every machine has: statements of Python's standard library, of which the leaves are shown and the kinds of
the inner vertices are to be told.

Leaves are words: names, attributes, arguments, and constants by their kind. An inner vertex is a node of the syntax
tree, its label the node's type, which nothing shows: operators, keywords and brackets are left out. So (`x`, `<int>`)
may be `x + 1`, `x == 1`, `x[1]`, `x(1)` or `x = 1`: which of them must be told from what names are used for, and from
what stands below.
"""

from __future__ import annotations

import ast
from functools import cache as once  # not to be taken for data.cache
from pathlib import Path

import numpy as np

from hybridmpi.data.labelled_graphs import LabelledGraphs, kept, of_trees
from hybridmpi.data.library_parts import LibraryParts
from hybridmpi.data.syntax import LEFT_OUT, constant_word, is_text, parse
from hybridmpi.data.vocabulary import Numbers, Provisional
from hybridmpi.errors import DataError, UsageError
from hybridmpi.graphs import Graphs
from hybridmpi.graphs.ordered_trees import of_arities

EMPTY = "<empty>"
"""The word of a node with nothing below it, such as `[]`: a leaf like others."""
_HIDDEN = LEFT_OUT | {"op", "ops"}
_BODY = frozenset({"body", "orelse", "handlers", "finalbody", "cases", "decorator_list", "type_params"})
"""What a statement's head is without."""

Emitted = list[tuple[str | None, str | None, int]]
Tree = tuple[bytes, ...]
"""A tree in post-order: words and labels by first occurrence (-1: none) and numbers of children, int32 [vertices]."""


def load_syntax_trees(
    vocabulary_limit: int,
    longest: int,
    most: int,
    held_out: float,
    two_children: bool = True,
    cache_dir: Path | None = None,
) -> LabelledGraphs:
    """Return syntax trees of the standard library, from the cache where they have been made before. Local.

    Type names are ("leaf", "inner"), data "word" and "label". At most `most` trees of at most `longest` vertices, no
    tree twice; `held_out` of them, in [0, 1), come from files that no training tree comes from. `vocabulary_limit`:
    words kept, `<unk>` among them. With `two_children` the trees are made binary afterwards (see binary_trees); else
    vertices have any number of children. A function of the arguments and of this Python's library.
    Raises UsageError for wrong arguments; DataError where this Python has no source files.
    """
    if not 0 <= held_out < 1:
        raise UsageError(f"a held-out share of {held_out}: expected at least 0 and below 1, such as 0.1")
    if vocabulary_limit < 2 or longest < 2 or most < 1:
        raise UsageError(
            f"a vocabulary of {vocabulary_limit}, trees of at most {longest} vertices, at most {most} trees: expected "
            "at least 2 (<unk> and one word), 2 (a leaf and what it belongs to) and 1"
        )
    library = LibraryParts()
    identity = ["syntax trees", *library.identity(), vocabulary_limit, longest, most, held_out, two_children]
    return kept(identity, cache_dir, lambda: _made(library, vocabulary_limit, longest, most, held_out, two_children))


def _made(
    library: LibraryParts, limit: int, longest: int, most: int, held_out: float, two_children: bool
) -> LabelledGraphs:
    words, labels = Provisional(), Numbers()
    parts = library.read(lambda text: trees(text, longest, words, labels), tuple, most, held_out)
    if not parts[0]:
        raise DataError(f"the standard library's {len(library.files)} files have no trees of up to {longest} vertices")
    whole = [_graphs(part) for part in parts]
    description = {"source": f"syntax trees of the standard library of {library.python}", "files": library.files_read}
    return of_trees(*whole, words, labels, limit, two_children, description)


def trees(text: str, longest: int, words: Numbers, labels: Numbers) -> list[Tree]:
    """Return the trees of Python source, no part of it in two of them. Local. Raises NotPythonError.

    A statement of up to `longest` vertices is a tree with all that is in it. Of a longer one, the head is a tree
    (`if TEST`, `for TARGET in ITERABLE`, `def F(...)`), if it fits, and the statements in it are looked at by
    themselves. Docstrings are left out, and what is one word, such as `pass`. Takes new words and labels into `words`
    and `labels`.
    """
    found, stack = [], _statements(parse(text))
    while stack:
        node = stack.pop()
        root = node.value if isinstance(node, ast.Expr) else node
        tree = _tree(root, longest, head=False)
        if tree is None:
            tree = _tree(root, longest, head=True)
            stack += _statements(node)
        if tree is not None and len(tree) > 1:
            shown, kinds, arities = zip(*tree, strict=True)
            columns = (
                [-1 if word is None else words[word] for word in shown],
                [-1 if kind is None else labels[kind] for kind in kinds],
                arities,
            )
            found.append(tuple(np.array(column, np.int32).tobytes() for column in columns))
    return found


def _tree(root: ast.AST, longest: int, head: bool) -> Emitted | None:
    """Return the vertices of a tree in post-order, (word, label, number of children) each; None for one that is longer.

    Emitted from the root, each vertex before its children from last to first, and then turned round.
    """
    emitted: Emitted = []
    stack: list[ast.AST | str] = [root]
    while stack:
        if len(emitted) + len(stack) > longest:
            return None
        item = stack.pop()
        below = [item] if isinstance(item, str) else _below(item, head and item is root)
        if len(below) == 1 and isinstance(below[0], str):
            emitted.append((below[0], None, 0))
        else:
            emitted.append((None, type(item).__name__, len(below)))
            stack += below
    return emitted[::-1]


def _statements(node: ast.AST) -> list[ast.stmt]:
    """Return the statements in a statement, handlers and cases looked through, the last first."""
    found: list[ast.stmt] = []
    for part in ast.iter_child_nodes(node):
        if isinstance(part, ast.stmt):
            found.append(part)
        elif isinstance(part, (ast.ExceptHandler, ast.match_case)):
            found += _statements(part)[::-1]
    return found[::-1]


def _below(node: ast.AST, head: bool) -> list[ast.AST | str]:
    """Return the nodes and words below a node in the order of Python's grammar; a lone word for what is one."""
    if isinstance(node, ast.Constant):
        return [constant_word(node)]
    if isinstance(node, ast.Dict):
        return [part for pair in zip(node.keys, node.values, strict=True) for part in pair if part is not None] or [
            EMPTY
        ]
    below: list[ast.AST | str] = []
    for name in _fields(type(node), head):
        value = getattr(node, name, None)
        if isinstance(value, list):
            # A statement that is an expression is that expression.
            some = [part for part in value if part is not None and not is_text(part)]
            below += [part.value if isinstance(part, ast.Expr) else part for part in some]
        elif value is not None and not (isinstance(value, ast.arguments) and not any(ast.iter_child_nodes(value))):
            below.append(value)
    return below or [EMPTY]


@once
def _fields(kind: type[ast.AST], head: bool) -> tuple[str, ...]:
    left_out = _HIDDEN | _BODY if head else _HIDDEN
    return tuple(name for name in kind._fields if name not in left_out)


def _graphs(parts: list[Tree]) -> Graphs:
    """Return trees as graphs, words and labels as they are."""
    words, labels, arities = (np.frombuffer(b"".join(part[which] for part in parts), np.int32) for which in range(3))
    sizes = np.array([len(part[0]) // words.itemsize for part in parts], np.int64)
    return of_arities(np.concatenate([[0], np.cumsum(sizes)]), arities, {"word": words, "label": labels})
