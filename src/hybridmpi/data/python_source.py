"""Python's own standard library as text: its files and their tokens.

The tokens are those of the `tokenize` module of Python 3.11: names, operators, numbers and strings as they are written,
the line structure as `<newline>`, `<indent>` and `<dedent>`. Comments and blank lines are left out, and an f-string is
one token on every Python. One compiled expression finds them six times faster than `tokenize`, which the tests hold
it against.
"""

from __future__ import annotations

import os
import re
import sysconfig
import tokenize
from dataclasses import dataclass
from hashlib import blake2b
from io import BytesIO
from pathlib import Path

NEWLINE, INDENT, DEDENT = "<newline>", "<indent>", "<dedent>"


@dataclass(frozen=True, slots=True)
class SourceFile:
    """One file: absolute `path`, `name` relative to the library with `/`, size in bytes, modification time in ns."""

    path: str
    name: str
    size: int
    modified: int


class NotPythonError(ValueError):
    """A file that is not Python source: undecodable, an unknown character, an open string, brackets or indents."""


def standard_library() -> list[SourceFile]:
    """Return the .py files of this Python's standard library, sorted by name; site-packages is left out. Local."""
    root = sysconfig.get_paths()["stdlib"]
    return sorted(_walk(root, ""), key=lambda file: file.name)


def _walk(folder: str, prefix: str) -> list[SourceFile]:
    found = []
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                if entry.name not in ("site-packages", "dist-packages", "__pycache__"):
                    found += _walk(entry.path, f"{prefix}{entry.name}/")
            elif entry.name.endswith(".py") and entry.is_file():
                status = entry.stat()
                found.append(SourceFile(entry.path, prefix + entry.name, status.st_size, status.st_mtime_ns))
    return found


def split(files: list[SourceFile], held_out: float) -> tuple[list[SourceFile], list[SourceFile]]:
    """Return (training files, held-out files), both sorted by name: whole files, about `held_out` of all bytes. Local.

    Files are taken in the order of a hash of their name while they fit, at least one where `held_out` > 0.
    """
    room = held_out * sum(file.size for file in files)
    chosen: set[str] = set()
    for file in sorted(files, key=lambda file: blake2b(file.name.encode()).digest()):
        if file.size <= room or (held_out > 0 and not chosen):
            chosen.add(file.name)
            room -= file.size
    return [f for f in files if f.name not in chosen], [f for f in files if f.name in chosen]


def read(path: str | Path) -> list[str]:
    """Return the tokens of a source file. Local. Raises NotPythonError; OSError where it cannot be read."""
    try:
        return tokens(read_text(path))
    except NotPythonError as error:
        raise NotPythonError(f"{path}: {error}") from error


def read_text(path: str | Path) -> str:
    """Return the text of a source file, in the encoding that it names. Local. Raises NotPythonError; OSError."""
    data = Path(path).read_bytes()
    try:
        encoding, _ = tokenize.detect_encoding(BytesIO(data).readline)
        return data.decode(encoding)
    except (SyntaxError, UnicodeDecodeError, LookupError) as error:
        raise NotPythonError(str(error)) from error


def _expression() -> re.Pattern[str]:
    """Return the expression of one token and of the blanks and line continuations before it.

    A newline takes with it the comment before it, the blank and comment lines after it, and the indentation of the next
    line of code. Possessive quantifiers keep everything linear, and keep the prefix of `rb'...'` from being taken for
    a name. The last alternative is any character that is no token.
    """
    names = r"[^\W\d]\w*+(?!['\"])"
    newline = r"(?:#[^\n]*+)?\n(?:[ \f\t]*+(?:#[^\n]*+)?\n)*+[ \f\t]*+"
    digits = r"[0-9](?:_?[0-9])*+"
    exponent = rf"[eE][-+]?{digits}"
    numbers = (
        rf"0[xX](?:_?[0-9a-fA-F])++|0[bB](?:_?[01])++|0[oO](?:_?[0-7])++"
        rf"|(?:{digits}\.(?:{digits})?|\.{digits})(?:{exponent})?[jJ]?|{digits}{exponent}[jJ]?|{digits}[jJ]"
        r"|0(?:_?0)*+|[1-9](?:_?[0-9])*+"
    )
    prefix = r"(?i:br|rb|fr|rf|b|r|f|u)?+"
    strings = "|".join(
        rf"{prefix}{q}{q}{q}[^{q}\\]*+(?:(?:\\.|{q}(?!{q}{q}))[^{q}\\]*+)*+{q}{q}{q}"
        rf"|{prefix}{q}(?!{q}{q})[^{q}\\\n]*+(?:\\.[^{q}\\\n]*+)*+{q}"
        for q in "'\""
    )
    operators = "|".join(map(re.escape, sorted(OPERATORS, key=len, reverse=True)))
    blanks = r"[ \f\t]*+(?:\\\n[ \f\t]*+)*+"
    token = "|".join((names, newline, r"[()\[\],]|[:=](?!=)", strings, numbers, operators, r"\w++", r"\S"))
    return re.compile(f"{blanks}({token})", re.DOTALL)


OPERATORS = frozenset(tokenize.EXACT_TOKEN_TYPES) - {"!"}
TOKEN = _expression()


def tokens(text: str) -> list[str]:
    """Return the tokens of Python source text. Local. Raises NotPythonError with the reason."""
    if "\0" in text:
        raise NotPythonError("a zero byte")
    if "\r" in text:
        text = text.replace("\r\n", "\n").replace("\r", "\n")
    found = TOKEN.findall(f"\n{text}\n")
    for token in set(found):
        if len(token) == 1 and not (token in OPERATORS or token.isalnum() or token in "_\n"):
            raise NotPythonError(f"{token!r} begins no token: an open string or an unknown character")
    result: list[str] = []
    indents, depth = [0], 0
    for token in found:
        first = token[0]
        if first in "\n#":
            if depth:
                continue
            if result:
                result.append(NEWLINE)
            column = _column(token[token.rindex("\n") + 1 :])
            if column != indents[-1]:
                _indent(result, indents, column)
            continue
        if first in "([{":
            depth += 1
        elif first in ")]}":
            depth -= 1
            if depth < 0:
                break
        result.append(token)
    if depth:
        raise NotPythonError("brackets do not match")
    return result


def _column(blanks: str) -> int:
    """Return the column that indentation reaches: a tab goes to the next multiple of 8, a form feed back to 0."""
    if "\f" in blanks:
        blanks = blanks[blanks.rindex("\f") + 1 :]
    return len(blanks.expandtabs(8))


def _indent(result: list[str], indents: list[int], column: int) -> None:
    """Append the indent or the dedents that lead to `column` and keep the stack of open indents."""
    if column > indents[-1]:
        indents.append(column)
        result.append(INDENT)
    while column < indents[-1]:
        indents.pop()
        result.append(DEDENT)
    if column != indents[-1]:
        raise NotPythonError(f"a dedent to column {column} matches no indent")
