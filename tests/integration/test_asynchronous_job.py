"""`hybridmpi train` without steps in common: boundaries, what the metrics say, a signal, going on from a checkpoint."""

import re
import signal
import subprocess
import sys

import pytest
from launching import kill_session, survivors
from runs import TIMEOUT, arguments, assert_whole, finished, train, write_job

PS = ("world.servers=1", "sparse.mode=ps", "optimizer.rate=0.1")


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    return write_job(tmp_path_factory.mktemp("asynchronous"))


def test_ranks_meet_where_something_is_evaluated_or_saved(job):
    sets = ("training.steps=60", "training.evaluate=quarters", "checkpoint.every=25", "checkpoint.keep=9")
    run = train(job, "bounded", 3, *PS, *sets, "training.staleness=2")
    assert [line["step"] for line in run.of_kind("step")] == list(range(1, 61)), "rank 0's own"
    assert all(line["examples"] == 60 for line in run.of_kind("step"))
    found = [(line["step"], line["perplexity"]) for line in run.of_kind("evaluation")]
    assert [step for step, _ in found] == [15, 30, 45, 60] and found[-1][1] < found[0][1] / 1.5, found
    stale = run.of_kind("staleness")
    assert [(line["step"], sum(line["pushes"].values())) for line in stale] == [
        *((step, 2 * step) for step, _ in found),
        (60, 120),
    ]
    assert max(map(int, stale[-1]["pushes"])) <= 5  # (2 s + 1) (p - 1)
    assert re.search(
        r"^staleness of 120 pushes: mean [\d.]+, none for \d+%, at most \d updates$", run.outcome.output, re.M
    )
    assert "trained 60 steps, 7,200 words" in run.outcome.output
    assert {path.name for path in run.directory.glob("step-*")} == {f"step-{step:08}" for step in (25, 50, 60)}
    assert_whole(run.directory)

    further = train(job, "further", 3, *PS, "training.steps=70", "training.staleness=unbounded", resume=run.directory)
    assert [line["step"] for line in further.of_kind("step")] == list(range(61, 71))
    assert further.checkpoint().meta["updates"] == 140 and further.losses[-1] < run.losses[0] / 1.5


def test_a_signal_stops_all_ranks_with_a_checkpoint(job):
    line = [sys.executable, "-m", "hybridmpi", "launch", "-n", "3", "--"]
    line += arguments(job, "stopped", *PS, "training.steps=100000", "training.staleness=unbounded")[2:]
    process = subprocess.Popen(
        line, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, text=True,
        start_new_session=True,
    )  # fmt: skip
    try:
        output = ""
        for text in process.stdout:
            output += text
            if re.match(r"step 8 of", text):
                break
        process.send_signal(signal.SIGTERM)
        output += process.communicate(timeout=TIMEOUT)[0]
        assert process.returncode == 75 and survivors(process.pid) == (), output
    finally:
        kill_session(process.pid)
        process.wait()
    step = int(re.search(r"stopped by a signal after step ([\d,]+);", output)[1].replace(",", ""))
    stopped = finished(job, "stopped", None)
    assert step == stopped.checkpoint().step >= len(stopped.losses) >= 8
    assert_whole(stopped.directory)


@pytest.mark.parametrize(
    ("sets", "words"),
    [
        (("training.staleness=2",), "staleness = 2: 'lstm."),
        ((*PS, "training.staleness=2", "sparse.search=true"), "sparse.search = true times steps"),
        ((*PS, "training.staleness=-1"), 'expected "unbounded" or a whole number, at least 0'),
    ],
)
def test_what_needs_steps_in_common_is_refused(job, sets, words):
    run = train(job, "refused", 3, *sets, code=2)
    assert words in run.outcome.output and len(re.findall(r"^hybridmpi: ", run.outcome.output, re.M)) == 1
