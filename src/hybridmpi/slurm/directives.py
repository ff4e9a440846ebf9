"""Directives: what is asked of sbatch, collected, checked, sorted."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from difflib import get_close_matches

from hybridmpi.errors import UsageError
from hybridmpi.slurm.known import OPTIONS, OURS
from hybridmpi.slurm.values import check_value, directive

APART = (
    ("mem", "mem-per-cpu", "mem-per-gpu"),
    ("gres", "gpus-per-node"),
    ("exclusive", "oversubscribe"),
)
"""Options of which sbatch takes one."""


def parse_directives(texts: Iterable[str], option: str = "--directive") -> dict[str, str | None]:
    """Return the options of texts such as "exclusive" and "mail-type=END,FAIL", with or without dashes. Local.

    Raises UsageError for an option that sbatch does not have, naming the nearest or all, for one that the script sets
    itself, and for a value that cannot be.
    """
    found: dict[str, str | None] = {}
    for text in texts:
        name, equals, value = text.strip().removeprefix("#SBATCH").strip().removeprefix("--").partition("=")
        place = f"{option} {text}"
        if name not in OPTIONS:
            raise UsageError(f"{place}: sbatch has no option --{name}; {_suggest(name)}")
        if name in OURS:
            raise UsageError(f"{place}: the script sets --{name} itself; it comes from {OURS[name]}")
        if name in found:
            raise UsageError(f"{place}: --{name} is given twice")
        check_value(name, value if equals else None, place)
        found[name] = value if equals else None
    return found


def lines(options: Mapping[str, str | None]) -> list[str]:
    """Return one #SBATCH line for each option, sorted by name. Local. Raises UsageError for options that exclude each
    other."""
    for group in APART:
        if len(both := [f"--{name}" for name in group if name in options]) > 1:
            raise UsageError(f"{' and '.join(both)}: sbatch takes one of {', '.join(f'--{name}' for name in group)}")
    return [directive(name, options[name]) for name in sorted(options)]


def _suggest(name: str) -> str:
    """Return the option that is meant by `name`, or all there are."""
    if len(name) == 1:
        return "give the long name, such as partition for -p"
    if close := get_close_matches(name, OPTIONS, n=1, cutoff=0.6):
        return f"did you mean '{close[0]}'?"
    return f"it has {', '.join(sorted(set(OPTIONS) - set(OURS)))}"
