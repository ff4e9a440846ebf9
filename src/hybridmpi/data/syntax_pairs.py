"""A parallel text that every machine has: statements of Python source and their syntax trees, written as words.

`x = f(1)` becomes `<Assign> <Name> x </> <Call> <Name> f <Constant> 1 </> </>`: the node's type, then its fields in the
order of Python's grammar, lists closed by `</>`, what is absent as `<none>`. To translate one must learn precedence,
brackets and what each name and number is there for.
"""

from __future__ import annotations

import ast

from hybridmpi.data import python_source
from hybridmpi.data.syntax import is_text, parse

Pair = tuple[list[str], list[str]]

ABSENT, CLOSED = "<none>", "</>"
LEFT_OUT = {"ctx", "kind", "type_comment"}
"""Fields that say nothing the source says: how a name is used follows from where it stands."""


def pairs(text: str, longest: int) -> list[Pair]:
    """Return (source words, syntax words) of the simple statements in Python source, in its order. Local.

    Left out are those longer than `longest` words on either side, docstrings, and statements with f-strings, which are
    one word to a reader of tokens. Raises NotPythonError.
    """
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    tree = parse(text)
    lines = text.encode().split(b"\n")
    found = []
    for node in ast.walk(tree):
        if not isinstance(node, ast.stmt) or hasattr(node, "body") or hasattr(node, "cases") or is_text(node):
            continue
        source = python_source.tokens(_segment(lines, node))[:-1]
        if len(source) > longest:
            continue
        syntax = _words(node)
        if len(syntax) <= longest and "<JoinedStr>" not in syntax:
            found.append((node.lineno, node.col_offset, source, syntax))
    found.sort(key=lambda entry: entry[:2])  # walk goes by levels
    return [(source, syntax) for _, _, source, syntax in found]


def _segment(lines: list[bytes], node: ast.stmt) -> str:
    """Return the source of a statement; columns of the syntax tree count bytes."""
    part = lines[node.lineno - 1 : node.end_lineno]
    part[-1] = part[-1][: node.end_col_offset]
    part[0] = part[0][node.col_offset :]
    return b"\n".join(part).decode()


def _words(node: ast.AST) -> list[str]:
    """Return a syntax tree as words, the node before what is below it."""
    words, stack = [], [node]
    while stack:
        part = stack.pop()
        if isinstance(part, ast.Constant):
            words += ["<Constant>", repr(part.value)]
        elif isinstance(part, ast.AST):
            words.append(f"<{type(part).__name__}>")
            stack += [value for name, value in reversed(list(ast.iter_fields(part))) if name not in LEFT_OUT]
        elif isinstance(part, list):
            stack += [CLOSED, *reversed(part)]
        else:
            words.append(ABSENT if part is None else str(part))
    return words
