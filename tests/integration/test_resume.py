"""Runs that are the same: twice, on other ranks and servers, stopped by a signal and resumed."""

import os
import re
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from launching import kill_session, survivors
from runs import TIMEOUT, Run, arguments, arrays_of, assert_whole, finished, train, write_job

STEPS = 24  # as in the job
HALF = 12
ROUNDING = 1e-5
SPLIT = ("world.servers=1", "sparse.partition=cyclic")


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    return write_job(tmp_path_factory.mktemp("resume"))


@pytest.fixture(scope="module")
def whole(job) -> Run:
    """An uninterrupted run on 2 compute ranks and a server."""
    run = train(job, "whole", 3, *SPLIT)
    assert len(run.losses) == STEPS
    return run


@pytest.fixture(scope="module")
def half(job) -> Run:
    """Its first half on the same ranks."""
    return train(job, "half", 3, *SPLIT, f"training.steps={HALF}")


def assert_same_bits(first: Run, second: Run) -> None:
    """The newest checkpoints of two runs hold the same arrays, bit for bit."""
    one, other = arrays_of(first.checkpoint()), arrays_of(second.checkpoint())
    assert one.keys() == other.keys() and len(one) > 10
    different = [name for name in one if one[name].tobytes() != other[name].tobytes()]
    assert not different, f"{different} differ"


def test_twice_the_same_run_is_the_same_bits(job, whole):
    """Also when checkpoints are written behind the back of the second one."""
    again = train(job, "again", 3, *SPLIT, "checkpoint.every=10", "checkpoint.behind=true", "checkpoint.keep=3")
    assert again.losses == whole.losses
    assert_same_bits(whole, again)
    for directory in again.directory.glob("step-*"):
        assert_whole(directory)
    saved = [(line["step"], line["behind"]) for line in again.of_kind("checkpoint")]
    assert saved == [(10, True), (20, True), (STEPS, False)]
    assert [int(path.name[5:]) for path in sorted(again.directory.glob("step-*"))] == [10, 20, STEPS]


@pytest.mark.parametrize(
    ("ranks", "servers", "partition"),
    [(1, 0, "cyclic"), (2, 0, "block"), (3, 1, "block"), (4, 2, "cyclic"), (4, 1, "cyclic")],
)
def test_other_ranks_and_partitions_give_the_same_losses(job, whole, ranks, servers, partition):
    """Full softmax and the same global batch: only the order of additions differs."""
    run = train(
        job, f"on{ranks}{servers}{partition}", ranks, f"world.servers={servers}", f"sparse.partition={partition}"
    )
    np.testing.assert_allclose(run.losses, whole.losses, rtol=ROUNDING)


def test_resumed_on_the_same_ranks_it_is_the_same_bits(job, whole, half):
    assert half.losses == whole.losses[:HALF]
    rest = train(job, "rest", 3, *SPLIT, resume=half.directory)
    assert f"resumed from {half.directory}: step {HALF}" in rest.outcome.output
    assert [line["step"] for line in rest.of_kind("step")] == list(range(HALF + 1, STEPS + 1))
    assert rest.losses == whole.losses[HALF:]
    assert_same_bits(whole, rest)
    assert_whole(rest.directory)


@pytest.mark.parametrize(
    ("ranks", "servers", "partition"),
    [(1, 0, "cyclic"), (4, 1, "cyclic"), (4, 2, "cyclic"), (3, 1, "block"), (3, 0, "block")],
)
def test_resumed_on_other_ranks_it_is_the_same_to_rounding(job, whole, half, ranks, servers, partition):
    run = train(
        job,
        f"from{ranks}{servers}{partition}",
        ranks,
        f"world.servers={servers}",
        f"sparse.partition={partition}",
        resume=half.directory,
    )
    np.testing.assert_allclose(run.losses, whole.losses[HALF:], rtol=ROUNDING)
    one, other = arrays_of(whole.checkpoint()), arrays_of(run.checkpoint())
    for name in one:
        np.testing.assert_allclose(other[name], one[name], rtol=1e-3, atol=1e-5, err_msg=name)
    assert_whole(run.directory)


def test_resumed_from_one_rank_on_three(job, whole):
    """The other way: what one process wrote, servers take over."""
    train(job, "alone", 1, f"training.steps={HALF}")
    run = train(job, "joined", 3, *SPLIT, resume=job.parent / "alone")
    np.testing.assert_allclose(run.losses, whole.losses[HALF:], rtol=ROUNDING)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_a_signal_to_the_launcher_writes_a_checkpoint_and_resuming_goes_on(job, whole, number):
    """Exit status 75, a whole checkpoint; the run that resumes it, in the same directory, completes the sequence."""
    name = f"stopped{int(number)}"
    steps = 100_000
    line = [sys.executable, "-m", "hybridmpi", "launch", "-n", "3", "--"]
    line += arguments(job, name, *SPLIT, f"training.steps={steps}", resume="")[2:]
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
        process.send_signal(number)
        sent = time.monotonic()
        output += process.communicate(timeout=TIMEOUT)[0]
        took = time.monotonic() - sent
        assert process.returncode == 75, output
        assert survivors(process.pid) == ()
    finally:
        kill_session(process.pid)
        process.wait()
    assert took < 20, f"{took:.1f} s from the signal to the end"
    found = re.search(r"stopped by a signal after step ([\d,]+); checkpoint (\S+); --resume continues it", output)
    assert found and "no checkpoint in " in output, output
    step = int(found[1].replace(",", ""))
    stopped = finished(job, name, None)
    assert 8 <= step == len(stopped.losses) == stopped.checkpoint().step
    assert os.path.samefile(found[2], stopped.checkpoint().directory)
    assert_whole(stopped.directory)

    more = step + 10
    reference = whole if more <= STEPS else train(job, f"reference{int(number)}", 3, *SPLIT, f"training.steps={more}")
    resumed = train(job, name, 3, *SPLIT, f"training.steps={more}", resume="")
    assert f": step {step:,}\n" in resumed.outcome.output
    assert [line["step"] for line in resumed.of_kind("step")] == list(range(1, more + 1)), "the metrics file goes on"
    assert resumed.losses == reference.losses[:more]
    if len(reference.losses) == more:
        assert_same_bits(reference, resumed)
    assert_whole(resumed.directory)


@pytest.mark.parametrize(
    ("sets", "words"),
    [
        (["optimizer.kind=adam"], ["written with optimizer 'adagrad', this run has 'adam'"]),
        (
            ["model.width=16"],
            ["was made for another model", "'embedding': expected table (62, 16), found table (62, 32)"],
        ),
        (["data.streams=6"], ["trained with data.streams = 12, this job has data.streams = 6"]),
        (["data.vocabulary=20"], ["its vocabulary is not that of", "would mean other words"]),
    ],
)
def test_a_checkpoint_that_does_not_fit_the_job_is_refused(job, half, sets, words):
    run = train(job, "refused", 3, *SPLIT, *sets, resume=half.directory, code=None)
    messages = re.findall(r"^hybridmpi: .*", run.outcome.output, re.MULTILINE)
    assert run.outcome.code in (1, 2) and len(messages) == 1, str(run.outcome)
    for word in words:
        assert word in run.outcome.output, f"'{word}' is missing\n{run.outcome}"
    assert not (run.directory.exists() and list(run.directory.iterdir())) and not run.lines


def test_another_text_is_refused(job, half):
    other = job.parent / "other.txt"
    other.write_text("quite other words\n" * 1000)
    run = train(job, "othertext", 3, *SPLIT, f"data.source={other}", resume=half.directory, code=None)
    assert run.outcome.code in (1, 2) and "its vocabulary is not that of" in run.outcome.output, str(run.outcome)


def test_resuming_from_nothing_is_refused(job):
    run = train(job, "nothing", 3, *SPLIT, resume=job.parent / "nowhere", code=None)
    (message,) = re.findall(r"^hybridmpi: .*", run.outcome.output, re.MULTILINE)
    assert run.outcome.code in (1, 2) and "nowhere: no such file or directory" in message, str(run.outcome)
