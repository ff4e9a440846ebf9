"""The report: aligned lines for people, one object for programs."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from hybridmpi.doctor.finding import FAIL, OK, WARN, Finding

WIDTH = 100
NAMES = 16
COLOURS = {OK: "32", WARN: "33", FAIL: "31;1"}
MOST_PLACES = 4


def render(findings: Sequence[Finding], title: str, seconds: float, colour: bool) -> str:
    """Return the report as text of WIDTH columns; `colour` marks the status for terminals. Local, pure."""
    lines = [title]
    indent = " " * (6 + NAMES)
    for finding in findings:
        status = f"{finding.status:<4}"
        if colour:
            status = f"\033[{COLOURS[finding.status]}m{status}\033[0m"
        text = finding.found + (f" [{_places(finding.where)}]" if finding.where else "")
        found = _wrapped(text, "", indent)
        lines.append(f"{status}  {finding.what:<{NAMES - 1}} {found}")
        if finding.remedy:
            lines.append(f"{indent}{_wrapped(finding.remedy, '-> ', indent + '   ')}")
    return "\n".join([*lines, _summary(findings, seconds)])


def _wrapped(text: str, before: str, indent: str) -> str:
    return textwrap.fill(
        text,
        WIDTH,
        initial_indent=" " * (6 + NAMES) + before,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )[6 + NAMES :]


def _places(places: Sequence[str]) -> str:
    more = f" and {len(places) - MOST_PLACES} more" if len(places) > MOST_PLACES else ""
    return ", ".join(places[:MOST_PLACES]) + more


def _summary(findings: Sequence[Finding], seconds: float) -> str:
    counts = {status: sum(1 for finding in findings if finding.status == status) for status in (FAIL, WARN, OK)}
    if not counts[FAIL] and not counts[WARN]:
        return f"all {counts[OK]} ok, in {seconds:.1f} s"
    told = ", ".join(f"{number} {status}" for status, number in counts.items() if number)
    return f"{told}, in {seconds:.1f} s"


def as_object(findings: Sequence[Finding], ranks: int, hosts: Sequence[str], seconds: float) -> dict[str, Any]:
    """Return the report as an object for JSON: ok, ranks, hosts, seconds, findings. Local, pure."""
    return {
        "ok": all(finding.status != FAIL for finding in findings),
        "ranks": ranks,
        "hosts": list(hosts),
        "seconds": round(seconds, 3),
        "findings": [asdict(finding) for finding in findings],
    }
