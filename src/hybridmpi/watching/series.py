"""Curves of a run as a picture needs them: along steps or time, few points, smooth."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np

from hybridmpi.watching.history import History
from hybridmpi.watching.present import by_way

Axis = Literal["step", "time"]

# Points of a line, and of the edges of an area, which needs fewer to be read.
LINE_POINTS, AREA_POINTS = 600, 150
# What a smooth curve is averaged over, of the curve's length.
SMOOTH = 0.04


@dataclass(frozen=True)
class Series:
    """A run along `axis`, float64 [points] each, NaN where there is nothing: `x` is steps or seconds of training;
    `loss`, `rate` (examples/s); `seconds` of a step, and by phase in `phases` with "other"; `bytes` by way."""

    x: np.ndarray
    loss: np.ndarray
    rate: np.ndarray
    seconds: np.ndarray
    phases: dict[str, np.ndarray]
    bytes: dict[str, np.ndarray]


def series(run: History, axis: Axis, points: int) -> Series:
    """Return a run's curves in at most so many points, each the mean of equal stretches. Local."""
    curves = run.curves
    there = curves.count("step") > 0
    names = curves.names()
    stretches = min(points, int(there.sum()))

    def mean(name: str) -> np.ndarray:
        return _stretched(curves.mean(name)[there], stretches)

    seconds = mean("seconds")
    phases = {name.removeprefix("phases."): mean(name) for name in names if name.startswith("phases.")}
    if phases:
        phases["other"] = np.fmax(0.0, seconds - np.nansum(list(phases.values()), axis=0))
    moved = {name.removeprefix("bytes."): mean(name) for name in names if name.startswith("bytes.")}
    with np.errstate(divide="ignore", invalid="ignore"):
        rate = mean("examples") / seconds
    x = mean("step" if axis == "step" else "clock")
    return Series(x, mean("loss"), rate, seconds, phases, by_way(moved) if moved else {})


def smoothed(values: np.ndarray, middle: Callable[[np.ndarray], float] = np.mean) -> np.ndarray:
    """Return a curve of means, or of another `middle`, over what is near and finite; NaN where nothing is. Local.

    At the start as many are taken before as after, since there a loss falls fast.
    """
    reach = max(1, round(SMOOTH * len(values) / 2))
    near = [values[max(0, n - reach) : n + min(reach, n) + 1] for n in range(len(values))]
    finite = [part[np.isfinite(part)] for part in near]
    return np.array([middle(part) if len(part) else np.nan for part in finite], np.float64)


def typical(values: np.ndarray) -> float:
    """Return the median of what is finite; 0 without any. Local."""
    finite = values[np.isfinite(values)]
    return float(np.median(finite)) if len(finite) else 0.0


def _stretched(values: np.ndarray, stretches: int) -> np.ndarray:
    if stretches >= len(values):
        return values
    edges = np.linspace(0, len(values), stretches + 1).astype(int)[:-1]
    finite = np.isfinite(values)
    with np.errstate(invalid="ignore"):
        return np.add.reduceat(np.where(finite, values, 0.0), edges) / np.add.reduceat(finite.astype(float), edges)
