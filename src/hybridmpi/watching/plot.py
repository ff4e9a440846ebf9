"""The picture of runs: loss, scores, speed, time by phase, bytes by way. Needs matplotlib: the extra `plot`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from hybridmpi.errors import UsageError
from hybridmpi.pictures import save
from hybridmpi.watching.compare import labels
from hybridmpi.watching.evaluations import score
from hybridmpi.watching.history import History
from hybridmpi.watching.series import Axis

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from hybridmpi.watching.panels import Drawn

STYLE = {
    "font.size": 9,
    "axes.titlesize": 10,
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#E6E6E6",
    "text.parse_math": False,  # a name with $ in it is no formula
    "svg.hashsalt": "hybridmpi",
    "svg.fonttype": "none",  # text that can be searched, in a file a third as large
    "font.family": ["DejaVu Sans", "sans-serif"],
}


def draw(file: Path, runs: Sequence[History], paths: Sequence[str], axis: Axis, log: bool) -> None:
    """Draw runs, read from `paths`, into `file`. Local.

    `log`: losses on a logarithmic axis. Raises UsageError if none has a step yet, or the file cannot be written.
    """
    from matplotlib import rc_context

    with rc_context(STYLE):
        figure = picture(runs, paths, axis, log)
        save(figure, file, "-o", dpi=150)


def picture(runs: Sequence[History], paths: Sequence[str], axis: Axis, log: bool) -> Figure:
    """Return the figure of runs, read from `paths`; see `draw`. Local."""
    from matplotlib.figure import Figure

    from hybridmpi.watching import panels

    if not any(run.step for run in runs):
        raise UsageError(f"{', '.join(paths)}: no step has been written yet; 'hybridmpi watch' shows when there is")
    drawn = [
        panels.Drawn(run, name, panels.RUNS[number % len(panels.RUNS)])
        for number, (run, name) in enumerate(zip(runs, labels(runs, paths), strict=True))
        if run.step
    ]
    scored = any(score(found.values) for one in drawn for found in one.run.evaluations)
    layout = [["loss", "rate"], ["phases", "bytes"]]
    if scored:
        layout = [["loss", "loss", "score", "score", "rate", "rate"], ["phases"] * 3 + ["bytes"] * 3]
    figure = Figure(figsize=(12 if scored else 10, 6.5), layout="constrained")
    axes = figure.subplot_mosaic(layout)
    panels.loss(axes["loss"], drawn, axis, log)
    panels.rate(axes["rate"], drawn, axis)
    panels.phases(axes["phases"], drawn, axis)
    panels.ways(axes["bytes"], drawn, axis)
    if scored:
        panels.scores(axes["score"], drawn, axis)
    for name, one in axes.items():
        if len(drawn) == 1 or name not in ("phases", "bytes"):
            panels.along(one, drawn, axis)
            panels.restarts(one, drawn, axis)
    if len(drawn) == 1:
        figure.suptitle(_title(drawn[0]), fontsize=11)
    else:
        handles, names = axes["loss"].get_legend_handles_labels()
        columns = max(1, min(len(names), 130 // (8 + max(map(len, names)))))
        figure.legend(handles, names, loc="outside upper center", ncols=columns, frameon=False)
    return figure


def _title(drawn: Drawn) -> str:
    said, run = [drawn.name], drawn.run
    if run.starts:
        said.append(run.job.get("model", {}).get("kind", ""))
        for what in ("compute rank", "server", "node"):
            count = run.starts[-1].line.get(f"{what.replace(' ', '_')}s", 0)
            said.append(f"{count} {what}{'s' * (count != 1)}")
    return " · ".join(filter(None, said))
