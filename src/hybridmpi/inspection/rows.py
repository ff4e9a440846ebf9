"""`--show`: rows of one array, chosen as in Python, beside the words they stand for."""

from __future__ import annotations

import math
import re
import shutil
import sys
from typing import Any

import numpy as np

from hybridmpi.errors import UsageError
from hybridmpi.inspection.contents import Contents
from hybridmpi.inspection.stored import StoredArray
from hybridmpi.inspection.text import columns, printable, shape_text

# Without --rows: so many at the beginning, so many at the end.
AT_EACH_END = 5
# More rows than anybody reads; a program wants --export.
MOST_ROWS = 10_000
# What is read at once for rows that follow each other.
GAP_BYTES = 64 << 10
LONGEST_WORD = 24
_PART = re.compile(r"\s*(?:(-?\d+)|(-?\d*):(-?\d*)(?::(-?\d*))?)\s*")


def chosen(text: str | None, rows: int) -> list[int]:
    """Return the row numbers that `text` means: '7', '-1', '10:20', '-5:', '::100', '5,17,100', or several. Local.

    Slices are Python's: clipped to the `rows` there are. None: the first and last few. Raises UsageError for a row
    outside, for what is no row, and for too many of them.
    """
    if text is None:
        if rows <= 2 * AT_EACH_END:
            return list(range(rows))
        return [*range(AT_EACH_END), *range(rows - AT_EACH_END, rows)]
    found: list[int] = []
    for part in text.split(","):
        match = _PART.fullmatch(part)
        if match is None:
            raise UsageError(f"--rows '{text}': '{part}' is no row: expected such as 17, 10:20, -5:, ::100 or 5,17,100")
        single, *bounds = match.groups()
        if single is not None:
            row = int(single) + (rows if single.startswith("-") else 0)
            if not 0 <= row < rows:
                raise UsageError(f"--rows '{text}': there is no row {single}; rows go from 0 to {rows - 1}")
            found.append(row)
            continue
        begin, end, step = (int(bound) if bound else None for bound in bounds)
        if step == 0:
            raise UsageError(f"--rows '{text}': a step of 0 leads nowhere; leave it out, or give 2, 10, -1")
        some = range(rows)[begin:end:step]
        if len(found) + len(some) > MOST_ROWS:
            raise UsageError(
                f"--rows '{text}' means more than {MOST_ROWS:,} rows: choose fewer, such as ::{-(-rows // 100)}, or "
                "write them to a file by --export"
            )
        found.extend(some)
    return found


def read_rows(array: StoredArray, rows: list[int]) -> np.ndarray:
    """Return the rows of `array` in the order asked for, [n, width]; memory is the result. Local."""
    out = np.empty((len(rows), array.width), array.dtype)
    gap, most = array.rows_of(GAP_BYTES), array.rows_of(1 << 20)
    order = sorted(range(len(rows)), key=rows.__getitem__)
    begin = 0
    while begin < len(order):  # neighbours are read together
        end, first = begin + 1, rows[order[begin]]
        while end < len(order) and rows[order[end]] <= min(rows[order[end - 1]] + gap, first + most - 1):
            end += 1
        some = order[begin:end]
        values = array.read(first, rows[some[-1]] - first + 1)
        out[some] = values[[rows[position] - first for position in some]]
        begin = end
    return out


def show(contents: Contents, name: str, slot: str | None, rows: str | None) -> dict[str, Any]:
    """Return the rows of a parameter, or of a slot of its state, as plain data; NaN and infinities as text. Local.

    Raises UsageError for an unknown name or slot (naming the nearest) and for rows that are not there.
    """
    array = contents.array(name, slot)
    numbers = chosen(rows, array.rows)
    words = contents.words_of(name)
    values = read_rows(array, numbers)
    return {
        "name": name,
        "slot": slot,
        "kind": array.kind,
        "shape": list(array.shape),
        "dtype": array.dtype.name,
        "rows": numbers,
        "words": None if words is None else [words[row] for row in numbers],
        "values": [[_plain(value) for value in row] for row in values.tolist()],
    }


def render(found: dict[str, Any], width: int | None = None) -> str:
    """Return what `show` found as text, as many columns as fit into `width` characters. Local.

    By default that is the terminal's width; into a file or a pipe go all columns.
    """
    if width is None and sys.stdout.isatty():
        width = shutil.get_terminal_size().columns
    slot = f"/{found['slot']}" if found["slot"] else ""
    title = f"{found['name']}{slot}: {found['kind']}, {shape_text(found['shape'])}, {found['dtype']}"
    if not found["shape"]:
        return f"{title}\n{_cell(found['values'][0][0])}"
    if not found["rows"]:
        return f"{title}\nno rows"
    labels = columns([(str(row),) for row in found["rows"]], right=(0,))
    if found["words"] is not None:
        shown = [printable(word) for word in found["words"]]
        shown = [word if len(word) <= LONGEST_WORD else word[: LONGEST_WORD - 3] + "..." for word in shown]
        labels = columns(list(zip(labels, shown, strict=True)))
    margin = max(map(len, labels))
    labels = [label.ljust(margin) for label in labels]
    count = math.prod(found["shape"][1:])
    fitting = count
    if width is not None:  # a number takes at most 10 characters and two spaces
        fitting = max(1, min(count, (width - margin - 5) // 12))
    head = [str(column) for column in range(fitting)] if len(found["shape"]) > 1 else [""]
    cells = columns([head, *([_cell(v) for v in row[:fitting]] for row in found["values"])], right=range(fitting))
    more = "  ..." if fitting < count else ""
    lines = [title, *([f"{' ' * margin}  {cells[0]}{more}"] if len(found["shape"]) > 1 else [])]
    for position, (label, cell) in enumerate(zip(labels, cells[1:], strict=True)):
        if _is_cut(found, position):
            lines.append("...")
        lines.append(f"{label}  {cell}{more}")
    if fitting < count:
        lines.append(
            f"columns 0 to {fitting - 1} of {count:,}; a wider terminal shows more, a pipe (| less -S) and --json all"
        )
    return "\n".join(lines)


def _is_cut(found: dict[str, Any], position: int) -> bool:
    """Return whether rows were left out here because nobody asked for any."""
    rows = found["rows"]
    return len(rows) == 2 * AT_EACH_END == 2 * position and rows[position] - rows[position - 1] > 1


def _plain(value: Any) -> Any:
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _cell(value: Any) -> str:
    return f"{value:.5g}" if isinstance(value, float) else str(value)
