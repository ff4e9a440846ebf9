"""What messages are made of: numbers of things, messages of others, the name that somebody may have meant."""

from __future__ import annotations

import re
from collections.abc import Iterable
from difflib import get_close_matches

CAUSES = re.compile(
    r"error|fail|cannot|can't|could ?n[o']t|unable|not (found|permitted|available|supported|allowed|enough|built)|"
    r"no (such|longer|space)|refused|denied|invalid|unsupported|detected|unknown|missing|undefined|mismatch",
    re.IGNORECASE,
)
"""Words of lines that say why something went wrong."""
SPEAKER = r"\[[\w.-]+:\d+\]\s+"
"""Begins lines of Open MPI: the host and the process that says it."""
STACK = rf"{SPEAKER}(\[|\*\*\*)"
"""Begins the lines of the stack that Open MPI prints for a rank that crashed."""


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


def telling(said: str, lines: int = 3, length: int = 400) -> str:
    """Return what tells most of what a failing program has said, as one line: Python's last error, else the first lines
    that name a cause, else the first ones; without rules, banners and stacks. Local."""
    told = [one_line(re.sub(rf"^{SPEAKER}(?!\[|\*\*\*)", "", line.strip())) for line in said.splitlines()]
    told = [line for line in told if any(letter.isalpha() for letter in line) and not re.match(STACK, line)]
    told = list(dict.fromkeys(told))
    if python := [line for line in told if re.match(r"[\w.]*(Error|Exception)\b", line)]:
        told = python[-1:]
    elif causes := [line for line in told if CAUSES.search(line)]:
        told = causes
    text = " / ".join(told[:lines])
    return text if len(text) <= length else f"{text[:length]} ..."
