"""`hybridmpi plot`: what is drawn is what was measured; runs that lack this or that are drawn too."""

import math
import sys
import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest
from watched_runs import BYTES, PHASES, Run

from hybridmpi.cli.main import main
from hybridmpi.watching.compare import labels
from hybridmpi.watching.plot import picture
from hybridmpi.watching.reading import read_metrics
from hybridmpi.watching.series import series, smoothed


def made(path, steps=40, first=0, append=False, evaluate=True, start=1000.0, **about):
    path.mkdir(exist_ok=True)
    run = Run(path / "metrics.jsonl", steps, append, first, start=start, **about)
    run.steps(steps - first)
    if evaluate:
        run.evaluate(loss=0.5, accuracy=0.75)
    run.end()
    return path


def picture_of(paths, axis="step", log=False):
    figure = picture([read_metrics(path) for path in paths], [str(path) for path in paths], axis, log)
    return figure, {axes.get_title(loc="left") or axes.get_title(): axes for axes in figure.axes}


def test_one_run(tmp_path):
    made(tmp_path / "a")
    made(tmp_path / "a", 60, first=30, append=True, start=2000.0)
    figure, panels = picture_of([tmp_path / "a"])
    assert list(panels) == [
        "Loss of a step",
        "Held out: accuracy",
        "Words a second",
        "Time of a step",
        "Bytes of a step, rank 0",
    ]
    raw, smooth = panels["Loss of a step"].lines[:2]
    assert raw.get_xydata() == pytest.approx(np.array([(n, 10 / n) for n in range(1, 61)]))
    assert smooth.get_ydata() == pytest.approx(smoothed(raw.get_ydata()))
    # Of two evaluations one was of steps that were done again; a line marks where.
    assert panels["Held out: accuracy"].lines[0].get_xydata().tolist() == [[60, 0.75]]
    for name in panels:
        assert [line.get_xdata() for line in panels[name].lines if line.get_linestyle() == ":"] == [[30, 30]]
    assert panels["Words a second"].lines[0].get_ydata() == pytest.approx([1000.0] * 60)
    layers = {layer.get_label(): layer for layer in panels["Time of a step"].collections}
    assert list(layers) == ["forward", "backward", "pull", "wait", "other"]
    top = max(path.vertices[:, 1].max() for path in layers["other"].get_paths())
    assert top == pytest.approx(0.1)  # all of a step, with what belongs to no phase
    legend = [text.get_text() for text in panels["Bytes of a step, rank 0"].get_legend().get_texts()]
    assert legend == ["sums of dense gradients", "rows pulled", "rows pushed"]
    assert figure._suptitle.get_text().endswith("a · lm · 2 compute ranks · 1 server · 1 node")


def test_runs_beside_each_other(tmp_path):
    paths = [made(tmp_path / str(n), evaluate=False, world={"servers": n}) for n in (1, 2)]
    figure, panels = picture_of(paths, axis="time", log=True)
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["servers=1", "servers=2"]
    bars = panels["Time of a step, median"].containers
    assert {bar.get_label(): [patch.get_width() for patch in bar] for bar in bars} == {
        name: pytest.approx([seconds] * 2)
        for name, seconds in [*((n, PHASES[n]) for n in ("forward", "backward", "pull", "wait")), ("other", 0.03)]
    }
    widths = [patch.get_width() for bar in panels["Bytes of a step, rank 0, median"].containers for patch in bar]
    assert sum(widths) / 2 == sum(BYTES.values()) - BYTES["control"]
    assert panels["Loss of a step"].get_yscale() == "log"
    assert panels["Loss of a step"].lines[0].get_xdata()[-1] == pytest.approx(4.0)
    assert panels["Loss of a step"].get_xlabel() == "seconds of training"


def test_runs_that_lack_something(tmp_path, capsys):
    """NaN losses, one step, no phases, another unit, no step at all: all in one picture, and each alone."""
    odd = tmp_path / "odd"
    odd.mkdir()
    for name, steps, about in (
        ("nan", 30, {"loss": math.nan, "skipped": True}),
        ("one", 1, {}),
        ("bare", 5, {"phases": {}}),
    ):
        run = Run(odd / f"{name}.jsonl", steps, unit="trees" if name == "one" else "words")
        run.steps(steps, **about)
        run.close()
    Run(odd / "none.jsonl", 5).close()
    everything = [str(path) for path in sorted(odd.iterdir())]
    for axis in ("step", "time"):
        assert main(["plot", *everything, "-o", str(tmp_path / "all.svg"), "--x", axis, "--log"]) == 0
    text = " ".join(ElementTree.parse(tmp_path / "all.svg").getroot().itertext())
    assert "Words or trees a second" in text and "bare.jsonl" in text and "none.jsonl" not in text
    for path in everything:
        if "none" not in path:
            picture_of([path])
    first = (tmp_path / "all.svg").read_bytes()
    assert main(["plot", *everything, "-o", str(tmp_path / "all.svg"), "--x", "time", "--log"]) == 0
    assert (tmp_path / "all.svg").read_bytes() == first  # without a date
    assert main(["plot", everything[2], "-o", str(tmp_path / "x.png")]) == 2
    assert "no step has been written yet" in capsys.readouterr().err


def test_what_cannot_be_drawn(tmp_path, capsys, monkeypatch):
    run = str(made(tmp_path / "a"))
    for file, message in (
        ("x.gif", "-o x.gif: expected a name that ends in .png, .svg, .pdf"),
        (f"{tmp_path}/no/x.png", "there is no folder"),
    ):
        assert main(["plot", run, "-o", file]) == 2 and message in capsys.readouterr().err
    assert main(["plot", str(tmp_path), "-o", f"{tmp_path}/x.png"]) == 2
    assert "metrics.jsonl is not there" in capsys.readouterr().err
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert main(["plot", run, "-o", f"{tmp_path}/x.png"]) == 2
    assert "pip install 'hybridmpi[plot]'" in capsys.readouterr().err


def test_what_runs_are_called(tmp_path):
    def named(*abouts):
        paths = [made(tmp_path / f"run{n}", 2, evaluate=False, **about) for n, about in enumerate(abouts)]
        return labels([read_metrics(path) for path in paths], [str(path) for path in paths])

    assert named({"sparse": {"mode": "ps"}}, {"sparse": {"mode": "hybrid"}}) == ["mode=ps", "mode=hybrid"]
    assert named({}, {}) == ["run0", "run1"]
    assert named({"training": {"seed": 1}}, {"training": {"seed": 2}}, {"training": {"seed": 2}}) == [
        "seed=1",
        "seed=2 (run1)",
        "seed=2 (run2)",
    ]
    assert named({"a": {"wire": 1}, "b": {"wire": True}}, {"a": {"wire": 2}, "b": {"wire": False}}) == [
        "a.wire=1, b.wire=true",
        "a.wire=2, b.wire=false",
    ]
    several = {"a": 1, "b": 2, "c": 3, "d": 4}
    assert named({"model": several}, {"model": {key: 0 for key in several}}) == ["run0", "run1"]
    assert named({"checkpoint": {"directory": "x"}}, {"checkpoint": {"directory": "y"}}) == ["run0", "run1"]
    assert len(labels([read_metrics(tmp_path / "run0")], ["runs/lm"])) == 1


def test_curves_have_few_points(tmp_path):
    history = read_metrics(made(tmp_path / "a", 1500, evaluate=False))
    curve = series(history, "step", 150)
    assert len(curve.x) == len(curve.loss) == 150 and curve.x[0] == 5.5
    assert curve.loss == pytest.approx([np.mean(10 / np.arange(first, first + 10)) for first in range(1, 1501, 10)])
    assert smoothed(np.arange(100.0))[:50] == pytest.approx(np.arange(50.0)) and math.isnan(
        smoothed(np.array([np.nan]))[0]
    )
