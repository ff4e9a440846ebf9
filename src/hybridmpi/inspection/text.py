"""How numbers, sizes, times and tables look in a terminal."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

BLOCKS, ASCII_BLOCKS = " ▁▂▃▄▅▆▇█", " .:-=+*%#"


def human_size(count: int) -> str:
    """Return a number of bytes in binary units: 1536 -> '1.5 KiB'. Local."""
    size = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.0f} B" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"


def plural(count: int, what: str) -> str:
    """Return '1 row', '2,000 rows'. Local."""
    return f"{count:,} {what}" + ("" if count == 1 else "s")


def number(value: float | None) -> str:
    """Return a value with four digits, '-' for None. Local."""
    return "-" if value is None else f"{value:.4g}"


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
    text = " ".join(text.split())
    return text if len(text) <= width else text[: width - 3] + "..."


def columns(rows: Sequence[Sequence[str]], right: Sequence[int] = ()) -> list[str]:
    """Return lines with the cells of `rows` aligned; the columns in `right` to the right. Local."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return [
        "  ".join(
            cell.rjust(width) if column in right else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
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
