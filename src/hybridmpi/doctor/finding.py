"""What a probe says: ok, warn or fail, of what, what was found, and what to do about it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from hybridmpi.wording import one_line

OK, WARN, FAIL = "ok", "warn", "fail"
MARK = "hybridmpi-doctor:"
"""Begins each line of a rank that is meant for its supervisor; other lines are what MPI prints."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report.

    `remedy`: a command or a setting, "" for what is ok. `number`: the quantity that `found` states, more being better;
    of several hosts where all is well only the worst is shown. `where`: the hosts it holds for, empty: everywhere.
    """

    status: str
    what: str
    found: str
    remedy: str = ""
    number: float | None = None
    where: tuple[str, ...] = ()


def ok(what: str, found: str, number: float | None = None) -> Finding:
    """Return a finding that all is well. Local."""
    return Finding(OK, what, found, number=number)


def warn(what: str, found: str, remedy: str) -> Finding:
    """Return a finding of something that costs speed or may fail later. Local."""
    return Finding(WARN, what, found, remedy)


def fail(what: str, found: str, remedy: str) -> Finding:
    """Return a finding of something that a job fails, hangs or goes wrong by. Local."""
    return Finding(FAIL, what, found, remedy)


def guarded(what: str, probe: Callable[..., list[Finding]], *arguments: Any) -> list[Finding]:
    """Return what `probe(*arguments)` finds; a `fail` of its name where it raises. Local."""
    try:
        return probe(*arguments)
    except Exception as error:
        text = f"this check itself failed: {type(error).__name__}: {one_line(error)}"
        return [fail(what, text, "if you can run jobs all the same, report this line; otherwise mend what it names")]


def size_text(size: float) -> str:
    """Return bytes as people read them, in binary units: 1.5 GiB. Local."""
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "bytes" or size >= 10 else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"


def seconds_text(seconds: float) -> str:
    """Return a duration with two digits, in the unit that suits it. Local."""
    for factor, unit in ((1, "s"), (1e3, "ms")):
        if seconds * factor >= 1:
            return f"{seconds * factor:.2g} {unit}" if seconds * factor < 100 else f"{seconds * factor:.0f} {unit}"
    return f"{seconds * 1e6:.0f} us"


def merge(found_by: Sequence[Sequence[Finding]], places: Sequence[str]) -> list[Finding]:
    """Return the findings of several ranks or hosts as one list, each distinct line once. Local, pure.

    `found_by[i]` was found at `places[i]`. Lines stand in the order in which their subjects were first met. A line
    that does not hold everywhere says where; where all is well, only the worst of a quantity is shown, with its place.
    """
    groups: dict[str, dict[Finding, list[str]]] = {}
    for findings, place in zip(found_by, places, strict=True):
        for finding in findings:
            held_by = groups.setdefault(finding.what, {}).setdefault(finding, [])
            if place not in held_by:
                held_by.append(place)
    everywhere = list(dict.fromkeys(places))
    merged: list[Finding] = []
    for lines in groups.values():
        well = [line for line in lines if line.status == OK and line.number is not None]
        least = min(well, key=lambda line: line.number, default=None)
        for line, held_by in lines.items():
            if line in well and line is not least:
                continue
            if line is least and len(well) > 1:
                of = sum(len(lines[each]) for each in well)
                merged.append(replace(line, found=f"{line.found} (the worst of {of} hosts: {held_by[0]})"))
            else:
                merged.append(replace(line, where=() if held_by == everywhere else tuple(held_by)))
    return merged
