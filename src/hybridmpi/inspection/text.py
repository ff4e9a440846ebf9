"""How numbers, sizes, times and tables look in a terminal."""

from __future__ import annotations

import math
import sys
import unicodedata
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from hybridmpi.wording import plural

# Where words stand in a table, the end of longer ones is left out.
LONGEST_WORD = 24
BLOCKS, ASCII_BLOCKS = " ▁▂▃▄▅▆▇█", " .:-=+*%#"


def human_size(count: int) -> str:
    """Return a number of bytes in binary units: 1536 -> '1.5 KiB'. Local."""
    size = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.0f} B" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"


def number(value: float | str | None) -> str:
    """Return a value with four digits, '-' for None; 'nan' and the like, as JSON has them, stay. Local."""
    return "-" if value is None else value if isinstance(value, str) else f"{value:.4g}"


def counted(count: int, of: int) -> str:
    """Return a number and the share that it is, '-' for none. Local."""
    if not count:
        return "-"
    share = count / of
    percent = "100 %" if count == of else f"{100 * share:.2g} %" if 0.0005 < share < 0.995 else ""
    return f"{count:,}" + (f" ({percent})" if percent else "")


def shape_text(shape: Sequence[int]) -> str:
    """Return '50,000 x 128', or 'scalar'. Local."""
    return " x ".join(f"{length:,}" for length in shape) or "scalar"


def shorten(value: Any, width: int = 80) -> str:
    """Return a value on one line of at most `width` characters. Local."""
    text = value if isinstance(value, str) else repr(value)
    return clipped(tame(" ".join(text.split())), width)


def clipped(text: str, width: int) -> str:
    """Return a text, its end left out where it is longer than `width`. Local."""
    return text if len(text) <= width else text[: width - 3] + "..."


def tame(text: str) -> str:
    """Return a text with what does not print, such as what steers terminals, written as escapes. Local."""
    return text if text.isprintable() else "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def shown_width(text: str) -> int:
    """Return the columns that a text takes: two for a wide character, none for one that combines. Local."""
    if text.isascii():
        return len(text)
    return sum((unicodedata.east_asian_width(c) in "WF") + (not unicodedata.combining(c)) for c in text)


def filled(text: str, width: int, right: bool = False) -> str:
    """Return a text filled with blanks to `width` columns, on its left if it is to stand to the `right`. Local."""
    blanks = " " * (width - shown_width(text))
    return blanks + text if right else text + blanks


def columns(rows: Sequence[Sequence[str]], right: Sequence[int] = ()) -> list[str]:
    """Return lines with the cells of `rows` aligned; the columns in `right` to the right. Local."""
    rows = [[tame(cell) for cell in row] for row in rows]
    widths = [max(shown_width(row[column]) for row in rows) for column in range(len(rows[0]))]
    return [
        "  ".join(
            filled(cell, width, column in right) for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def when(created: str) -> str:
    """Return a time that is given in ISO 8601 as '2026-11-30 10:12:03 UTC'. Local."""
    return f"{datetime.fromisoformat(created).astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"


def ago(created: str) -> str:
    """Return how long ago a time in ISO 8601 was: 'just now', '5 minutes ago', '3 days ago'. Local."""
    seconds = (datetime.now(UTC) - datetime.fromisoformat(created)).total_seconds()
    if seconds < -60:
        return "in the future, by this machine's clock"
    for unit, length in (("day", 86400), ("hour", 3600), ("minute", 60)):
        if seconds >= 2 * length or (unit == "minute" and seconds >= length):
            return f"{plural(int(seconds // length), unit)} ago"
    return "just now"


def bars(counts: Sequence[int], plain: bool | None = None) -> str:
    """Return a histogram of `counts` on one line, the fullest bin a full block. Local.

    `plain` uses ASCII; by default it is used where the output's encoding has no blocks. A bin that is not empty shows.
    """
    if plain is None:
        plain = not encodes(BLOCKS)
    blocks = ASCII_BLOCKS if plain else BLOCKS
    most = max(counts, default=0)
    return "".join(blocks[math.ceil(count / most * (len(blocks) - 1)) if count else 0] for count in counts)


def encodes(text: str) -> bool:
    """Return whether standard output can show `text`. Local."""
    try:
        text.encode(sys.stdout.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def printable(word: str) -> str:
    """Return a word in quotes, with what does not print or cannot be encoded written as escapes. Local."""
    return repr(word) if encodes(word) else ascii(word)
