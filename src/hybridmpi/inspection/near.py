"""`--near WORD`: the rows of a table that point the way of a word's row, by cosine."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from hybridmpi.checkpoint.layout import Progression
from hybridmpi.errors import UsageError
from hybridmpi.inspection.contents import Contents, nearest, one_table
from hybridmpi.inspection.stored import StoredArray
from hybridmpi.inspection.text import columns, printable
from hybridmpi.wording import plural

# What is read and multiplied at once.
SLAB = 1 << 20


def near(contents: Contents, word: str, table: str | None, top: int) -> dict[str, Any]:
    """Return the `top` rows nearest to that of `word` by cosine, in every table that has it, as plain data. Local.

    `table`: in that one only. A number is a row, where no word is written like that. Rows that are zero or not finite
    have no direction and are left out; so is the row itself. Raises UsageError for an unknown word or table, naming
    those most alike, and for a row without a direction: where another table has one, "why" tells of it.
    """
    if top < 1:
        raise UsageError(f"--top {top}: expected 1 or more rows")
    if table is not None:
        targets = [one_table(contents, table)]
    else:
        targets = [array for array in contents.arrays.values() if array.kind == "table" and array.width > 1]
        worded = [array for array in targets if contents.words_of(array.name) is not None]
        targets = worded or targets
        if len(targets) > 1 and not worded:
            raise UsageError(
                f"{contents.directory}: no table has a vocabulary; say which one by --table: "
                f"{', '.join(array.name for array in targets)}"
            )
    if not targets:
        raise UsageError(f"{contents.directory} holds no table with more than one column: nothing to compare")
    rows = {array.name: _row(contents, array, word) for array in targets}
    if all(row is None for row in rows.values()):
        raise _unknown(contents, targets, word)
    tables = [_in_table(contents, array, rows[array.name], top) for array in targets if rows[array.name] is not None]
    if all(found["why"] for found in tables):
        raise UsageError("\n".join(found["why"] for found in tables))
    return {"path": str(contents.directory), "step": contents.checkpoint.step, "tables": tables}


def _row(contents: Contents, array: StoredArray, word: str) -> int | None:
    """Return the row that `word` means, a word before a number."""
    words = contents.words_of(array.name)
    if words is not None and word in words:
        return words.index(word)
    if word.isascii() and word.isdigit() and int(word) < array.rows:
        return int(word)
    return None


def _unknown(contents: Contents, tables: list[StoredArray], word: str) -> UsageError:
    words = {word: None for array in tables for word in contents.words_of(array.name) or ()}
    names = ", ".join(array.name for array in tables)
    if not words:
        rows = max(array.rows for array in tables)
        expected = f"no vocabulary; expected a row from 0 to {rows - 1}" if rows else "no rows"
        return UsageError(f"'{word}': {names} has {expected}")
    lower = [known for known in words if known.lower() == word.lower()]
    said = f"did you mean '{lower[0]}'?" if lower else nearest(word, words)
    return UsageError(f"'{word}' is not in the vocabulary of {names}: {said}")


def _in_table(contents: Contents, array: StoredArray, row: int, top: int) -> dict[str, Any]:
    words = contents.words_of(array.name)
    target = array.read(row, 1)[0].astype(np.float64)
    length = float(np.linalg.norm(target))
    shown = f"row {row}" + (f", {words[row]!r}," if words else "")
    why, found = "", []
    if length and math.isfinite(length):
        found = nearest_rows(array, (target / length).astype(np.float32), row, top)
    else:
        what = "is zero" if not length else "is not finite"
        why = f"{array.name}: {shown} {what}: it points nowhere, so that nothing is near it"
    return {
        "table": array.name,
        "row": row,
        "word": words[row] if words else None,
        "why": why,
        "near": [{"row": other, "word": words[other] if words else None, "cosine": cosine} for cosine, other in found],
    }


def nearest_rows(array: StoredArray, target: np.ndarray, without: int, top: int) -> list[tuple[float, int]]:
    """Return up to `top` (cosine, row) of a table, greatest first, equal ones by row; `target` has length 1. Local."""
    best_cosines, best_rows = np.empty(0, np.float32), np.empty(0, np.int64)
    for rows, slab in array.slabs(array.rows_of(SLAB)):
        cosines = _cosines(slab, target)
        numbers = np.arange(rows.first, rows.last + 1, rows.stride)
        _leave_out(cosines, rows, without)
        better = cosines >= (best_cosines[-1] if len(best_cosines) == top else -2)  # -inf never is
        cosines, numbers = np.concatenate([best_cosines, cosines[better]]), np.concatenate([best_rows, numbers[better]])
        order = np.lexsort((numbers, -cosines))[:top]
        best_cosines, best_rows = cosines[order], numbers[order]
    return [(float(cosine), int(row)) for cosine, row in zip(best_cosines, best_rows, strict=True)]


def _cosines(slab: np.ndarray, target: np.ndarray) -> np.ndarray:
    """Return the cosine of each row with `target`; -inf for rows without a direction."""
    wide = slab.astype(np.float32, copy=False) if slab.dtype.itemsize <= 4 else slab.astype(np.float64)
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        lengths = np.sqrt(np.einsum("ij,ij->i", wide, wide))
        cosines = wide @ target / lengths
        hard = ~((lengths > 1e-15) & (lengths < 1e18))
        if hard.any():  # squares may be too small or too large for float32
            some = wide[hard].astype(np.float64)
            lengths = np.linalg.norm(some, axis=1)
            cosines[hard] = np.where(np.isfinite(lengths) & (lengths > 0), some @ target / lengths, -np.inf)
    return np.clip(cosines, -np.inf, 1)


def _leave_out(cosines: np.ndarray, rows: Progression, row: int) -> None:
    position, rest = divmod(row - rows.first, rows.stride)
    if not rest and 0 <= position < rows.count:
        cosines[position] = -np.inf


def render(found: dict[str, Any]) -> str:
    """Return what `near` found as text. Local."""
    lines = []
    for table in found["tables"]:
        word = f", {printable(table['word'])}" if table["word"] is not None else ""
        if lines:
            lines.append("")
        if table["why"]:
            lines.append(table["why"])
            continue
        lines.append(f"{table['table']}: {plural(len(table['near']), 'row')} nearest to row {table['row']}{word}")
        rows = [("cosine", "row", "word" if word else "")]
        for other in table["near"]:
            shown = printable(other["word"]) if other["word"] is not None else ""
            rows.append((f"{other['cosine']:.4f}", str(other["row"]), shown))
        lines += columns(rows, right=(0, 1))
    return "\n".join(lines)
