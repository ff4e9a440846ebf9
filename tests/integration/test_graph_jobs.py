"""Jobs on trees and graphs from end to end: they learn, resume, are the same on other ranks, read the user's trees."""

import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from launching import ROOT
from runs import Run, assert_whole, train

SMALL = (
    "data.most=3000",
    "data.longest=30",
    "data.vocabulary=500",
    "data.graphs=32",
    "data.held_out=0.2",
    "model.width=32",
    "model.hidden=32",
    "training.progress=0",
)
STEPS, HALF = 120, 60


def copied(kind, folder) -> tuple[Path, tuple[str, ...]]:
    """Return the job file of a kind, copied to a folder, and settings that make it small."""
    return Path(shutil.copy(ROOT / "jobs" / f"{kind}.toml", folder)), (*SMALL, f"data.cache={folder}")


@pytest.fixture(scope="module")
def trees(tmp_path_factory):
    return copied("trees", tmp_path_factory.mktemp("trees"))


@pytest.fixture(scope="module")
def whole(trees) -> Run:
    job, small = trees
    return train(job, "whole", 3, *small, f"training.steps={STEPS}")


def test_trees_are_learnt(whole):
    evaluations = whole.of_kind("evaluation")
    assert [line["step"] for line in evaluations] == [30, 60, 90, 120]
    last = evaluations[-1]
    assert last["accuracy"] > last["baselines"]["a table of the children's words"] + 0.05, last
    assert last["root_accuracy"] > last["baselines"]["the most frequent class of roots, at roots"] + 0.15, last
    assert last["roots"] > 500 and last["labels"] > last["roots"] and "polar_accuracy" not in last
    output = whole.outcome.output
    told = f"{last['accuracy']:.1%} of {last['labels']:,} labels right, {last['root_accuracy']:.1%} of "
    assert f"held-out loss {last['loss']:.4f}, {told}{last['roots']:,} at roots  [" in output
    assert re.search(r"^  words +500 x 32 .* sparse ", output, re.MULTILINE)
    assert re.search(r"^step 120 of 120 \(100%\)  loss [\d.]+  [\d,]+ labels/s$", output, re.MULTILINE)
    assert whole.checkpoint().words()[:500] != sorted(whole.checkpoint().words()[:500])  # by falling count
    assert {"Call", "Assign"} < set(whole.checkpoint().words()[500:])


def test_resumed_they_go_on_and_one_process_does_the_same(trees, whole):
    job, small = trees
    half = train(job, "half", 3, *small, f"training.steps={HALF}", "training.evaluate=0")
    assert half.losses == whole.losses[:HALF]
    rest = train(job, "rest", 3, *small, f"training.steps={STEPS}", resume=half.directory)
    assert rest.losses == whole.losses[HALF:]
    assert_whole(rest.directory)
    alone = train(job, "alone", 1, *small, f"training.steps={STEPS}", resume=half.directory)
    np.testing.assert_allclose(alone.losses, whole.losses[HALF:], rtol=1e-3)
    moved = train(job, "moved", 1, *small, "model.cell=sum", resume=half.directory, code=2)
    assert "trained with model.cell = nary, this job has model.cell = sum" in moved.outcome.output


def test_trees_of_the_user(trees):
    """Sentences whose words count: the class of a vertex is 2, more for each `good`, less for each `bad` below it."""
    job, _ = trees
    random = np.random.default_rng(2)

    def tree(leaves):
        if leaves == 1:
            value = int(random.integers(-1, 2))
            return value, ("bad", "so", "good")[value + 1]
        left = int(random.integers(1, leaves))
        below = [tree(left), tree(leaves - left)]
        parts = " ".join(f"({np.clip(2 + value, 0, 4)} {text})" for value, text in below)
        return sum(value for value, _ in below), parts

    for name, count in (("train.txt", 600), ("dev.txt", 100)):
        made = (tree(int(random.integers(2, 9))) for _ in range(count))
        lines = [f"({np.clip(2 + value, 0, 4)} {text})\n" for value, text in made]
        (job.parent / name).write_text("".join(lines))
    files = (f"data.source={job.parent / 'train.txt'}", f"data.dev={job.parent / 'dev.txt'}")
    sizes = ("model.width=8", "model.hidden=16", "data.graphs=20", "optimizer.rate=0.1", "training.progress=0")
    for cell, ranks in (("sum", 2), ("sequence", 1)):
        where = (f"data.cache={job.parent}", f"model.cell={cell}", "world.servers=0", "training.steps=120")
        last = train(job, cell, ranks, *files, *sizes, *where).of_kind("evaluation")[-1]
        assert last["roots"] == 100 and 50 < last["polar_roots"] < 100
        assert last["root_accuracy"] > last["baselines"]["the most frequent class"] + 0.15, last
        assert last["polar_accuracy"] > 0.8, last
        assert (last["labels"] == 100) == (cell == "sequence")


def test_names_of_variables_are_learnt(tmp_path):
    job, small = copied("graphs", tmp_path)
    sizes = ("data.names=30", "data.longest=60", "model.dropout=0", "optimizer.rate=0.1", f"training.steps={STEPS}")
    run = train(job, "graphs", 3, *small, *sizes)
    first, *_, last = run.of_kind("evaluation")
    assert last["loss"] < first["loss"] and last["labels"] > 100 and "roots" not in last, (first, last)
    assert np.mean(run.losses[-20:]) < 0.8 * np.mean(run.losses[:5]), run.losses
    assert last["accuracy"] > last["baselines"]["the most frequent name"], last
    assert {name for name in run.checkpoint().tables} == {"words", "kinds"}


def test_trees_are_grown(tmp_path):
    job, small = copied("top-down", tmp_path)
    sizes = [setting for setting in small if not setting.startswith("data.vocabulary=")]
    sizes += ["data.most=1000", "optimizer.rate=0.1", f"training.steps={HALF}"]
    run = train(job, "whole", 3, *sizes, "training.evaluate=30")
    first, last = run.of_kind("evaluation")
    (frequencies,) = last["baselines"].values()
    assert last["loss"] < first["loss"] and last["loss"] < frequencies - 0.2, (first, last)
    assert last["perplexity"] == pytest.approx(np.exp(last["loss"])) and last["vertices"] > 1000
    kinds = run.checkpoint().words()
    assert kinds[-1] == "_" and set(re.findall(r"[^ ()]+", last["drawn"])) <= set(kinds)
    assert f"held-out loss {last['loss']:.4f} a vertex" in run.outcome.output
    assert f"; a tree drawn: {last['drawn']}  [" in run.outcome.output
    assert set(run.checkpoint().tables) == {"kinds"}
    # With the table on the compute ranks, of which one draws: the same.
    other = train(job, "other", 2, *sizes, "training.evaluate=30", "world.servers=0").of_kind("evaluation")
    assert [line["drawn"] for line in other] == [first["drawn"], last["drawn"]]
    np.testing.assert_allclose([line["loss"] for line in other], [first["loss"], last["loss"]], rtol=1e-4)
