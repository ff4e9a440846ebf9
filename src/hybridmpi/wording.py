"""What messages are made of: numbers of things, messages of others, the name that somebody may have meant."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


def plural(count: int, what: str) -> str:
    """Return '1 row', '2,000 rows'. Local."""
    return f"{count:,} {what}" + ("" if count == 1 else "s")


def one_line(message: object) -> str:
    """Return a message without its line breaks, which HDF5 and compilers put into theirs. Local."""
    return " ".join(str(message).split())


def nearest(name: str, known: Iterable[str]) -> str:
    """Return "did you mean 'x'?", or the list of what is known where nothing is like `name`. Local."""
    known = list(known)
    if close := get_close_matches(name, known, n=1, cutoff=0.6):
        return f"did you mean '{close[0]}'?"
    return f"expected one of {', '.join(known)}"
