"""The click job from end to end: it learns, resumes, is the same on other ranks, and reads the Open Bandit files."""

import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from launching import ROOT
from runs import Run, assert_whole, train

SMALL = ("data.divide=20000", "data.batch=512", "data.held_out=3000", "training.progress=0", "model.bottom=[32]")
STEPS, HALF = 80, 40
LOGGED = ("model.kind=ctr", "data.held_out=5", "data.batch=8", "training.steps=4", "training.evaluate=2")


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    return Path(shutil.copy(ROOT / "jobs" / "ctr.toml", tmp_path_factory.mktemp("ctr")))


@pytest.fixture(scope="module")
def whole(job) -> Run:
    return train(job, "whole", 3, *SMALL, f"training.steps={STEPS}")


def test_it_learns_and_says_how_well(whole):
    evaluations = whole.of_kind("evaluation")
    assert [line["step"] for line in evaluations] == [20, 40, 60, 80]
    last = evaluations[-1]
    assert last["examples"] == 3000 and 0.2 < last["base_rate"] < 0.4
    assert last["best_log_loss"] - 0.01 < last["log_loss"] < last["base_rate_log_loss"] - 0.04, last
    assert 0.68 < last["auc"] < last["best_auc"] + 0.01, last
    output = whole.outcome.output
    assert f"held-out log loss {last['log_loss']:.4f}, AUC {last['auc']:.4f} on 3,000 examples (base rate: " in output
    assert re.search(r"^  tables.c03 +507 x 16 .* sparse ", output, re.MULTILINE)
    assert re.search(r"^step 80 of 80 \(100%\)  loss [\d.]+  [\d,]+ examples/s$", output, re.MULTILINE)
    assert "trained 80 steps, 40,960 examples in " in output
    assert all(line["examples"] == 512 and line["examples_per_s"] > 0 for line in whole.of_kind("step"))


def test_resumed_it_goes_on_and_one_process_does_the_same(job, whole):
    half = train(job, "half", 3, *SMALL, f"training.steps={HALF}", "training.evaluate=0")
    assert half.losses == whole.losses[:HALF]
    rest = train(job, "rest", 3, *SMALL, f"training.steps={STEPS}", resume=half.directory)
    assert rest.losses == whole.losses[HALF:]
    assert_whole(rest.directory)
    alone = train(job, "alone", 1, *SMALL, f"training.steps={STEPS}", resume=half.directory)
    np.testing.assert_allclose(alone.losses, whole.losses[HALF:], rtol=1e-4)
    for one, other in zip(rest.of_kind("evaluation"), alone.of_kind("evaluation"), strict=True):
        np.testing.assert_allclose([one["log_loss"], one["auc"]], [other["log_loss"], other["auc"]], rtol=1e-3)
    moved = train(job, "moved", 1, *SMALL, "data.bag=3", resume=half.directory, code=2)
    assert "trained with data.bag = 2, this job has data.bag = 3" in moved.outcome.output


def test_a_log_that_is_read(job):
    """The made-up files have a click for every impression of item 1, and none of item 0."""
    folder = job.parent / "obd" / "random" / "all"
    folder.mkdir(parents=True)
    head = "item_id,item_feature_0,item_feature_1,item_feature_2,item_feature_3\n"
    (folder / "item_context.csv").write_text(head + "0,-0.5,a,x,p\n1,0.25,b,x,q\n")
    names = "timestamp,item_id,position,click,user_feature_0,user_feature_1,user_feature_2,user_feature_3"
    lines = [f"2019-11-24 00:00:{second:02},{second % 2},1,{second % 2},u,v,w,z,0.0" for second in range(40)]
    (folder / "all.csv").write_text("\n".join([f"{names},user-item_affinity_0", *lines, ""]))
    run = train(job, "read", 2, *LOGGED, f"data.source={folder.parents[1]}", "world.servers=0")
    assert "Open Bandit: 40 impressions, 20 clicked, the last 5 held out; 13 tables" in run.outcome.output
    assert [line["examples"] for line in run.of_kind("evaluation")] == [5, 5]
    assert len(run.losses) == 4 and run.of_kind("evaluation")[-1]["log_loss"] < 0.7
    absent = train(job, "absent", 2, *LOGGED, f"data.source={job.parent / 'nowhere'}", code=2)
    assert "no item_context.csv in any POLICY/CAMPAIGN folder" in absent.outcome.output
    other = train(job, "other", 1, "model.kind=lm", "model.hidden=3", code=2)
    assert "unknown key" in other.outcome.output  # the file's [model] is the other kind's
