"""The panels of a picture of runs. Needs matplotlib."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import EngFormatter, FuncFormatter, LogLocator, MaxNLocator, NullFormatter

from hybridmpi.watching.evaluations import held_out_loss, score
from hybridmpi.watching.history import History
from hybridmpi.watching.series import AREA_POINTS, LINE_POINTS, Axis, series, smoothed, typical

# Okabe and Ito's colours, which people tell apart however they see colours.
RUNS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
# Computing in blues, sums in warm colours, rows in greens, waiting in grays.
PHASES = {
    "forward": "#7DB8E0",
    "backward": "#0072B2",
    "update": "#003F66",
    "overlap": "#F0E442",
    "allreduce": "#E69F00",
    "tables": "#D55E00",
    "pull": "#8FD0B5",
    "push": "#009E73",
    "wait": "#9A9A9A",
    "other": "#DDDDDD",
}
WAYS = {
    "sums of dense gradients": "#E69F00",
    "rows pulled": "#8FD0B5",
    "rows pushed": "#009E73",
    "rows gathered": "#D55E00",
    "rows laid out for the node": "#56B4E9",
    "rows moved": "#CC79A7",
    "control": "#9A9A9A",
}
UNKNOWN = "#444444"
# Parts of less than this share of the whole are not worth a colour.
SMALL = 0.01
TIMES = ((2 * 86400, 86400, "days"), (2 * 3600, 3600, "hours"), (180, 60, "minutes"), (0, 1, "seconds"))


@dataclass(frozen=True)
class Drawn:
    """A run in a picture: its name and its colour beside others."""

    run: History
    name: str
    color: str


def loss(axes: Axes, runs: Sequence[Drawn], axis: Axis, log: bool) -> None:
    """Draw losses, as they are and smoothed, and held-out losses where evaluations say them."""
    finite, held_out = [], False
    for one in runs:
        curve = series(one.run, axis, LINE_POINTS)
        axes.plot(curve.x, curve.loss, color=one.color, alpha=0.25, linewidth=0.8)
        axes.plot(
            curve.x,
            smoothed(curve.loss),
            color=one.color,
            linewidth=1.8,
            label=one.name if len(runs) > 1 else "mean of near steps",
        )
        finite.append(curve.loss[np.isfinite(curve.loss)])
        points = [(_place(found, axis), held_out_loss(found.values)) for found in one.run.evaluations]
        points = [(x, y) for x, y in points if np.isfinite(y)]
        if points:
            held_out = True
            finite.append(np.array([y for _, y in points]))
            # Above all lines, in white, so that a dot is seen on a curve of its own colour.
            style = {"marker": "o", "markersize": 5, "markerfacecolor": "white", "linestyle": "none", "zorder": 4}
            axes.plot(*zip(*points, strict=True), color=one.color, markeredgewidth=1.5, **style)
    values = np.concatenate(finite)
    if log:
        if (values > 0).any():
            axes.set_yscale("log")
            axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
            axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
            axes.yaxis.set_minor_formatter(NullFormatter())
    elif len(values):
        _limit(axes, values)
    if held_out:
        axes.plot([], [], color="gray", marker="o", markerfacecolor="white", linestyle="none", label="held out")
    axes.set_title("Loss of a step")
    if len(runs) == 1 and len(values):
        axes.legend(frameon=False, loc="upper right")


def scores(axes: Axes, runs: Sequence[Drawn], axis: Axis) -> None:
    """Draw the first score of evaluations: accuracy, AUC, BLEU."""
    names = []
    for one in runs:
        found = [(_place(evaluation, axis), score(evaluation.values)) for evaluation in one.run.evaluations]
        points = [(x, what[1]) for x, what in found if what is not None]
        names += [what[0] for _, what in found if what is not None]
        axes.plot(*zip(*points, strict=True) if points else ([], []), color=one.color, marker="o", markersize=4)
    axes.set_title("Held out: " + " or ".join(dict.fromkeys(names)))


def rate(axes: Axes, runs: Sequence[Drawn], axis: Axis) -> None:
    """Draw how many examples a second."""
    most = []
    for one in runs:
        curve = series(one.run, axis, LINE_POINTS)
        smooth = smoothed(curve.rate, np.median)  # the first steps and looks at sparsity take long
        axes.plot(curve.x, curve.rate, color=one.color, alpha=0.2, linewidth=0.6)
        axes.plot(curve.x, smooth, color=one.color, linewidth=1.8)
        most.append(np.nanmax(smooth, initial=0.0))
    units = list(dict.fromkeys(one.run.unit for one in runs))
    what = " or ".join(units)
    axes.set_title(f"{what[:1].upper()}{what[1:]} a second")
    axes.yaxis.set_major_formatter(EngFormatter(sep=" "))
    axes.set_ylim(0, 1.15 * max(most) or 1)


def phases(axes: Axes, runs: Sequence[Drawn], axis: Axis) -> None:
    """Draw the time of a step by phase: of one run along it, of several as bars."""
    axes.set_title("Time of a step" + ("" if len(runs) == 1 else ", median"))
    _parts(axes, runs, axis, "phases", PHASES, EngFormatter("s", sep=" "))


def ways(axes: Axes, runs: Sequence[Drawn], axis: Axis) -> None:
    """Draw the bytes of a step by way, in the same manner."""
    axes.set_title("Bytes of a step, rank 0" + ("" if len(runs) == 1 else ", median"))
    _parts(axes, runs, axis, "bytes", WAYS, EngFormatter("B", sep=" "))


def restarts(axes: Axes, runs: Sequence[Drawn], axis: Axis) -> None:
    """Mark where runs were started again."""
    for one in runs:
        for start in one.run.starts[1:]:
            x = start.line["step"] if axis == "step" else start.clock
            color = one.color if len(runs) > 1 else "black"
            axes.axvline(x, color=color, linestyle=":", linewidth=1, zorder=0.5 if len(runs) > 1 else 3)


def along(axes: Axes, runs: Sequence[Drawn], axis: Axis) -> None:
    """Label the axis that runs go along: steps, or time in a unit that suits them."""
    longest = max(one.run.step if axis == "step" else one.run.clock for one in runs)
    axes.set_xlim(0, 1.02 * longest or 1)
    if axis == "step":
        axes.set_xlabel("step")
        axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda step, _: f"{step:,.0f}"))
        return
    _, seconds, unit = next(found for found in TIMES if longest >= found[0])
    axes.set_xlabel(f"{unit} of training")
    if seconds > 1:
        step = next(s for s in (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000) if longest / seconds / s <= 8)
        axes.set_xticks(np.arange(0, longest * 1.02, step * seconds))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda time, _: f"{time / seconds:g}"))


def _parts(axes: Axes, runs: Sequence[Drawn], axis: Axis, what: str, colors: dict[str, str], form: Any) -> None:
    curves = [series(one.run, axis, AREA_POINTS) for one in runs]
    parts = [getattr(curve, what) for curve in curves]
    medians = [{name: typical(values) for name, values in found.items()} for found in parts]
    names = [*colors, *dict.fromkeys(n for found in medians for n in found if n not in colors)]
    worth = [n for n in names if any(m.get(n, 0.0) > SMALL * sum(m.values()) for m in medians)]
    if not worth:
        axes.text(0.5, 0.5, "nothing recorded", transform=axes.transAxes, ha="center", color="gray")
        return
    if len(runs) == 1:
        layers = [np.nan_to_num(parts[0][name]) for name in worth]
        shown = [colors.get(name, UNKNOWN) for name in worth]
        axes.stackplot(curves[0].x, layers, colors=shown, labels=worth, linewidth=0.3, edgecolor="white")
        total = np.sum(layers, axis=0)
        axes.set_ylim(0, min(1.1 * total.max(), 1.6 * np.quantile(total, 0.9)) or 1)
        axes.yaxis.set_major_formatter(form)
    else:
        left = np.zeros(len(runs))
        for name in worth:
            values = np.array([found.get(name, 0.0) for found in medians])
            color = colors.get(name, UNKNOWN)
            style = {"label": name, "color": color, "edgecolor": "white", "linewidth": 0.4, "height": 0.5}
            axes.barh(range(len(runs)), values, left=left, **style)
            left += values
        # Names above their bars: beside them they would take half of the panel.
        axes.set_yticks([])
        for place, one in enumerate(runs):
            axes.text(0, place - 0.32, f" {one.name}", color=one.color, va="bottom", fontsize="small")
        room = 0.6 + max(0, 3 - len(runs)) / 2
        axes.set_ylim(len(runs) - 1 + room, -room)
        axes.grid(visible=False, axis="y")
        axes.xaxis.set_major_locator(MaxNLocator(5, steps=(1, 2, 5, 10)))
        axes.xaxis.set_major_formatter(form)
    handles, known = axes.get_legend_handles_labels()
    style = {"frameon": False, "fontsize": "small", "handlelength": 1, "columnspacing": 1.2, "borderaxespad": 0}
    below = -0.2 if len(runs) == 1 else -0.12
    axes.legend(handles, known, loc="upper left", bbox_to_anchor=(0.0, below), ncols=4, **style)


def _limit(axes: Axes, values: np.ndarray) -> None:
    """Let a peak, as at the start, leave room for the rest."""
    low, usual, top = values.min(), np.quantile(values, 0.95), values.max()
    high = top if top - low < 2.5 * (usual - low) else usual + 0.5 * (usual - low)
    margin = 0.05 * (high - low) or 0.05 * abs(high) or 1.0
    axes.set_ylim(low - margin, high + margin)


def _place(evaluation: Any, axis: Axis) -> float:
    return evaluation.step if axis == "step" else evaluation.clock
