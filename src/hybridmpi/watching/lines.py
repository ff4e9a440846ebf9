"""Lines of a metrics file into values: those of steps many at a time, since there may be millions."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain, groupby
from typing import Any

import numpy as np

COLUMNS = ("time", "step", "loss", "examples", "seconds", "hidden", "skipped")
"""What is read of every step; "time" is NaN where a line has none."""

# Of the last so many lines of steps, everything is read: what a view of the present needs.
RECENT = 200

# The line of a step that was not skipped, as Metrics writes it. A regular expression takes a quarter of the time of
# JSON; whatever does not look like this is read as JSON.
_STEP = '{"kind": "step", '
_NUMBERS = re.compile(
    r'\{"kind": "step", "time": ([^,]+), "step": ([^,]+), "loss": ([^,]+), "examples": ([^,]+), "skipped": false, '
    r'"\w+": [^,]+, "seconds": ([^,]+), "hidden": ([^,]+), '
)


@dataclass(frozen=True)
class Steps:
    """Steps that follow each other: `numbers` float64 [steps, COLUMNS]; `whole`: (row, the line's object) of the last
    ones, of a sample of the others and of all that were followed by a change."""

    numbers: np.ndarray
    whole: list[tuple[int, dict[str, Any]]]


def parse(text: str, stride: int) -> Iterator[Steps | dict[str, Any]]:
    """Yield what whole lines say, in their order: the object of a line, or many Steps. Local.

    `stride`: of every so manieth step everything is read. Lines that are no JSON objects of metrics are left out: a job
    that is killed leaves a torn one.
    """
    for is_step, group in groupby(text.split("\n"), lambda line: line.startswith(_STEP)):
        lines = list(group)
        if not is_step:
            yield from filter(None, map(_object, lines))
        elif (steps := _many(lines, stride) or _one_by_one(lines)) is not None:
            yield steps


def _many(lines: list[str], stride: int) -> Steps | None:
    """Return the steps of lines that all look as expected, or None."""
    text = "\n".join(lines)
    found = _NUMBERS.findall(text)
    if len(found) != len(lines):
        return None
    try:
        flat = np.fromiter(map(float, chain.from_iterable(found)), np.float64, 6 * len(found))
    except ValueError:
        return None
    numbers = np.zeros((len(found), len(COLUMNS)))
    numbers[:, :6] = flat.reshape(-1, 6)
    chosen = {*range(0, len(lines), stride), *range(max(0, len(lines) - RECENT), len(lines))}
    if '"notes": ' in text:
        chosen.update(row for row, line in enumerate(lines) if '"notes": ' in line)
    whole = [(row, _object(lines[row])) for row in sorted(chosen)]
    return None if any(content is None for _, content in whole) else Steps(numbers, whole)


def _one_by_one(lines: list[str]) -> Steps | None:
    """Return the steps of those lines that can be read."""
    whole = [content for content in map(_object, lines) if content is not None]
    numbers = [[_number(content.get(name)) for name in COLUMNS] for content in whole]
    return Steps(np.array(numbers, np.float64), list(enumerate(whole))) if whole else None


def _object(line: str) -> dict[str, Any] | None:
    """Return the object of a line, or None."""
    try:
        content = json.loads(line)
    except ValueError:
        return None
    if not isinstance(content, dict) or not isinstance(content.get("kind"), str):
        return None
    about = content["kind"] in ("step", "run", "end", "evaluation", "note")
    return None if about and not isinstance(content.get("step"), int) else content


def _number(value: Any) -> float:
    return float(value) if isinstance(value, (int, float)) else np.nan
