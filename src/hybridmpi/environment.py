"""Environment variables: the one place that reads them, and what a value that is no number, or none, is taken for.

A variable that is set to nothing is not set. A number that something is decided by is checked, and refused by name; a
number that is only a hint is taken where it is one.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from hybridmpi.errors import UsageError

MOST = 2**31 - 1
"""Of ranks, nodes, threads; a larger number is a mistake."""


def inherited() -> dict[str, str]:
    """Return a copy of the environment of this process, to be read or handed to a child. Local."""
    return dict(os.environ)


def text(name: str, environment: Mapping[str, str] | None = None) -> str:
    """Return the value of a variable, "" where it is not set. Local."""
    return (os.environ if environment is None else environment).get(name, "")


def number(name: str, environment: Mapping[str, str] | None = None, least: int = 0) -> int | None:
    """Return the whole number that a variable holds, None where it is not set. Local.

    Raises UsageError for another value, and for numbers below `least` or above MOST.
    """
    value = text(name, environment)
    if not value.strip():
        return None
    found = hint(name, environment)
    if found is None or found < least:
        raise UsageError(
            f"the environment variable {name} is {value!r}: expected a whole number from {least} to {MOST}. Set it to "
            f"one, or leave it out: unset {name}"
        )
    return found


def hint(name: str, environment: Mapping[str, str] | None = None) -> int | None:
    """Return the whole number from 0 to MOST that a variable holds, None for any other value. Local."""
    value = text(name, environment).strip()
    if not (value.isascii() and value.isdigit()) or len(value) > 20:
        return None
    return found if (found := int(value)) <= MOST else None


@contextmanager
def defaults(wanted: Mapping[str, str]) -> Iterator[None]:
    """Set variables of this process that are not set, until the block ends: children do not inherit them. Local."""
    missing = {name: value for name, value in wanted.items() if name not in os.environ}
    os.environ.update(missing)
    try:
        yield
    finally:
        for name in missing:
            os.environ.pop(name, None)
