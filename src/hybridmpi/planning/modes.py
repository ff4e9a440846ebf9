"""Modes: how the gradient of each parameter travels, from the run's mode and the exceptions by name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from fnmatch import fnmatchcase
from typing import Literal

from hybridmpi.errors import UsageError

Mode = Literal["hybrid", "ps", "allreduce", "allgather"]
Way = Literal["ps", "allreduce", "allgather"]

MODES: tuple[Mode, ...] = ("hybrid", "ps", "allreduce", "allgather")

# What each mode means for a dense parameter and for a table. In `hybrid` tables are where their rows are cheapest:
# they begin at their owners, and what is measured may move them.
DENSE_WAY: dict[Mode, Way] = {"hybrid": "allreduce", "ps": "ps", "allreduce": "allreduce", "allgather": "allreduce"}
TABLE_WAY: dict[Mode, Way] = {"hybrid": "ps", "ps": "ps", "allreduce": "allreduce", "allgather": "allgather"}


def ways_of(
    mode: str, exceptions: Mapping[str, str], dense: Iterable[str], tables: Iterable[str]
) -> tuple[dict[str, Way], set[str]]:
    """Return (the way of every parameter by name, the tables that measurements may move). Local.

    `exceptions` maps name patterns, such as "embedding*", to modes; the first that fits a parameter decides, else
    `mode` does. ps: values lie at owners, gradients are pushed there. allreduce: every compute rank holds the values,
    gradients are summed whole. allgather: every compute rank holds the table, and gets every rank's row gradients.
    Raises UsageError for an unknown mode, a pattern that fits nothing, or slices of a parameter that has no rows.
    """
    dense, tables = list(dense), list(tables)
    for where, given in [("mode", mode), *((f"mode of '{pattern}'", m) for pattern, m in exceptions.items())]:
        if given not in MODES:
            near = get_close_matches(str(given), MODES, n=1)
            hint = f"did you mean '{near[0]}'?" if near else f"expected one of {', '.join(MODES)}"
            raise UsageError(f"{where} = {given!r}: {hint}")
    for pattern, given in exceptions.items():
        fitting = [name for name in [*dense, *tables] if fnmatchcase(name, pattern)]
        if not fitting:
            raise UsageError(
                f"mode of '{pattern}': no parameter has such a name; the model has {', '.join([*dense, *tables])}"
            )
        if given == "allgather" and all(name in dense for name in fitting):
            raise UsageError(
                f"mode of '{pattern}' = 'allgather': {', '.join(fitting)}: dense parameters, "
                "without rows to gather: expected 'allreduce' or 'ps'"
            )

    def mode_of(name: str) -> str:
        return next((given for pattern, given in exceptions.items() if fnmatchcase(name, pattern)), mode)

    ways = {name: DENSE_WAY[mode_of(name)] for name in dense} | {name: TABLE_WAY[mode_of(name)] for name in tables}
    return ways, {name for name in tables if mode_of(name) == "hybrid"}
