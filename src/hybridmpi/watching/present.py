"""What can be said of a run now: how fast, how far, how long yet, whether anybody still writes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from hybridmpi.watching.history import History, column

# Numbers of "now" are over so many of the latest steps, and a trend compares them with as many before.
WINDOW = 100
# A run without a line for so long is worth a word: so many seconds and so many of its steps.
QUIET_SECONDS, QUIET_STEPS = 15.0, 20.0

WAYS = {
    "sums of dense gradients": ("allreduce",),
    "rows pulled": ("pull_ids", "pull_rows"),
    "rows pushed": ("push_ids", "push_rows"),
    "rows gathered": ("gather_ids", "gather_rows"),
    "rows laid out for the node": ("aggregate",),
    "rows moved": ("moved",),
    "control": ("control",),
}
"""What the categories of bytes in metrics (traffic.py) are for."""


def by_way(categories: dict[str, Any]) -> dict[str, Any]:
    """Return bytes by way, of bytes by category, numbers or arrays; new categories keep their names. Local."""
    known = {category for members in WAYS.values() for category in members}
    there = {way: [c for c in members if c in categories] for way, members in WAYS.items()}
    found = {way: sum(categories[c] for c in members) for way, members in there.items() if members}
    return {**found, **{c: count for c, count in categories.items() if c not in known}}


@dataclass(frozen=True)
class Present:
    """The latest steps of a run. `loss`: the last one; `mean`: over WINDOW steps, `change` of it from as many before,
    None where there are too few or noise is as large; `rate`: examples/s, and `seconds` of a step, `phases` in seconds,
    with "other", and `bytes` by way are medians; `hidden`: mean seconds; `rows`: of a step, with prefetch or a cache;
    `left`: seconds to the end, NaN if nobody knows."""

    loss: float
    mean: float
    change: float | None
    rate: float
    seconds: float
    hidden: float
    phases: dict[str, float]
    bytes: dict[str, float]
    rows: dict[str, float]
    left: float


def present(history: History) -> Present | None:
    """Return what is known of the latest steps; None before the first. Local."""
    lines = list(history.recent)[-WINDOW:]
    if not lines:
        return None
    losses = column(list(history.recent), "loss")
    seconds = column(lines, "seconds")
    phases = _medians(lines, "phases")
    if phases:
        spent = [line["seconds"] - sum(line.get("phases", {}).values()) for line in lines]
        phases["other"] = max(0.0, float(np.median(spent)))
    mean, change = _trend(losses)
    typical = float(np.nanmedian(seconds)) if np.isfinite(seconds).any() else math.nan
    with np.errstate(divide="ignore", invalid="ignore"):
        rates = column(lines, "examples") / seconds
    return Present(
        loss=float(losses[-1]),
        mean=mean,
        change=change,
        rate=float(np.nanmedian(rates)) if np.isfinite(rates).any() else math.nan,
        seconds=typical,
        hidden=float(np.nan_to_num(column(lines, "hidden")).mean()),
        phases=phases,
        bytes=by_way(_medians(lines, "bytes")),
        rows=_medians(lines, "rows"),
        left=_left(history, lines, typical),
    )


def quiet(history: History, age: float, seconds: float) -> bool:
    """Return whether nothing has been written for longer than the run's steps and evaluations explain. Local."""
    usual = QUIET_STEPS * seconds if math.isfinite(seconds) else 0.0
    if history.evaluations and evaluation_is_due(history):
        usual = max(usual, 2 * history.evaluations[-1].values.get("seconds", 0.0))
    if history.checkpoint is not None:
        usual = max(usual, 2 * history.checkpoint.get("seconds", 0.0))
    return history.end is None and age > max(QUIET_SECONDS, usual)


def evaluation_is_due(history: History) -> bool:
    """Return whether the job evaluates after the latest step, and has not said what it found. Local."""
    done = history.evaluations[-1].step if history.evaluations else -1
    return history.step in _evaluations(history) and done < history.step


def _evaluations(history: History) -> set[int] | range:
    """Return the steps after which the job evaluates."""
    evaluate, steps = history.job.get("training", {}).get("evaluate", 0), history.steps
    if evaluate == "quarters":
        return {math.ceil(steps * quarter / 4) for quarter in (1, 2, 3, 4)}
    return range(evaluate, steps + 1, evaluate) if isinstance(evaluate, int) and evaluate > 0 else range(0)


def _left(history: History, lines: list[dict[str, Any]], seconds: float) -> float:
    """Return the seconds to the end: steps as fast as the latest, evaluations as long as the last one."""
    if not history.steps or history.end is not None:
        return math.nan
    times = np.diff(column(lines, "time"))
    if len(times) and np.isfinite(times).any():
        seconds = max(seconds, float(np.nanmedian(times)))  # reading batches is not part of steps
    evaluations = sum(step > history.step for step in _evaluations(history)) + evaluation_is_due(history)
    each = history.evaluations[-1].values.get("seconds", 0.0) if history.evaluations else 0.0
    return max(0, history.steps - history.step) * seconds + evaluations * each


def _trend(losses: np.ndarray) -> tuple[float, float | None]:
    now, before = losses[-WINDOW:], losses[:-WINDOW]
    now, before = now[np.isfinite(now)], before[np.isfinite(before)]
    if not len(now):
        return math.nan, None
    mean = float(now.mean())
    if len(before) < WINDOW // 2 or len(now) < WINDOW // 2:
        return mean, None
    noise = math.sqrt(now.var() / len(now) + before.var() / len(before))
    change = mean - float(before.mean())
    return mean, change if abs(change) > 2 * noise else 0.0


def _medians(lines: list[dict[str, Any]], section: str) -> dict[str, float]:
    names = dict.fromkeys(name for line in lines for name in line.get(section, {}))
    return {name: float(np.median([line.get(section, {}).get(name, 0) for line in lines])) for name in names}
