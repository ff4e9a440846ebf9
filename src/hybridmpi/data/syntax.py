"""What the graphs made of Python source share: parsing, the fields that count, words for constants."""

from __future__ import annotations

import ast
import warnings

from hybridmpi.data.python_source import NotPythonError

LEFT_OUT = frozenset({"conversion", "ctx", "is_async", "kind", "level", "simple", "type_comment", "type_ignores"})
"""Fields that say nothing, or only how source was written."""


def parse(text: str) -> ast.Module:
    """Return the syntax tree of Python source. Local. Raises NotPythonError."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the compiler's remarks on other people's code
            return ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise NotPythonError(str(error)) from error


def is_text(node: ast.AST) -> bool:
    """Return whether a node is a docstring or another string that stands as a statement. Local."""
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def constant_word(node: ast.Constant) -> str:
    """Return the word of a constant: None, True, False and ... as they are, else its kind, as <int>. Local."""
    value = node.value
    if value is None or isinstance(value, bool):
        return str(value)
    return "..." if value is ... else f"<{type(value).__name__}>"
