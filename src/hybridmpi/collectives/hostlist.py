"""Host lists as Slurm writes them: "node[01-04,7],gpu1" names node01, node02, node03, node04, node7 and gpu1."""

from __future__ import annotations

import itertools
import re
from typing import NoReturn

from hybridmpi.errors import UsageError

# Larger than any machine: a list that names more hosts has a typing error in a range.
MOST_HOSTS = 100_000
# Longer numbers name no hosts; they would only take time to read.
MOST_DIGITS = 18

_TOKEN = re.compile(r"(?P<name>[A-Za-z0-9._-]+)|\[(?P<ranges>[^\[\]]*)\]|(?P<comma>\s*,\s*)")
_RANGE = re.compile(r"([0-9]+)(?:-([0-9]+))?")


def expand(text: str) -> list[str]:
    """Return the host names of a host list, in its order. Local.

    Names stand between commas. Brackets hold numbers and ranges, may stand anywhere in a name, several times (all
    combinations, the last varying fastest), and keep the padding of a range's first number. Raises UsageError, which
    names the list, the position (from 1) and what was expected, for anything else and for more than MOST_HOSTS hosts.
    """
    hosts: list[str] = []
    pieces: list[list[str]] = []  # of the name being read: the choices for each of its parts
    count = 1  # how many names these make
    position, end = len(text) - len(text.lstrip()), len(text.rstrip())
    while position < end:
        token = _TOKEN.match(text, position, end)
        if token is None:
            _refuse(text, position, _why_no_token(text[position]))
        if token["comma"] is not None:
            hosts += _combine(text, position, pieces)
            pieces, count = [], 1
        else:
            pieces.append(_numbers(text, *token.span("ranges")) if token["name"] is None else [token["name"]])
            count *= len(pieces[-1])
            if len(hosts) + count > MOST_HOSTS:
                _refuse(text, position, f"up to here it names more than {MOST_HOSTS:,} hosts")
        position = token.end()
    return hosts + _combine(text, position, pieces)


def _combine(text: str, position: int, pieces: list[list[str]]) -> list[str]:
    """Return the names that `pieces` make, of the item that ends at `position`."""
    if not pieces:
        _refuse(text, position, "there is no host name here")
    return list(map("".join, itertools.product(*pieces)))


def _numbers(text: str, start: int, stop: int) -> list[str]:
    """Return the numbers of the ranges text[start:stop], as the brackets hold them."""
    numbers: list[str] = []
    for part in text[start:stop].split(","):
        found = _RANGE.fullmatch(part)
        if found is None:
            _refuse(text, start, f"'{part}' is neither a number nor a range of two")
        low, high = found[1], found[2] or found[1]
        if max(len(low), len(high)) > MOST_DIGITS:
            _refuse(text, start, f"'{part}' has too many digits")
        if int(high) < int(low):
            _refuse(text, start, f"the range '{part}' runs backwards")
        if high[0] == "0" and len(high) != len(low):
            _refuse(text, start, f"the numbers of '{part}' are padded differently")
        if len(numbers) + int(high) - int(low) >= MOST_HOSTS:
            _refuse(text, start, f"up to '{part}' the brackets hold more than {MOST_HOSTS:,} numbers")
        numbers += [str(number).zfill(len(low)) for number in range(int(low), int(high) + 1)]
        start += len(part) + 1
    return numbers


def _why_no_token(character: str) -> str:
    if character in "[]":
        return "'[' has no ']' of its own" if character == "[" else "']' has no '[' before it"
    return f"'{character}' cannot be in a host name"


def _refuse(text: str, position: int, why: str) -> NoReturn:
    raise UsageError(
        f'host list "{text}", position {position + 1}: {why}; expected names and ranges such as node[01-16,20],gpu1'
    )
