"""`hybridmpi train` from end to end: what it prints, what it leaves, that it learns, on several numbers of ranks."""

import json
import os
import platform
import pty
import re
import select
import shlex
import subprocess
import sys
import time

import numpy as np
import pytest
from launching import kill_session, run_mpi, run_process
from runs import TIMEOUT, arguments, assert_whole, finished, train, write_job

from hybridmpi.checkpoint import Checkpoint

STEPS = 160
PHASES = {"pull", "forward", "backward", "overlap", "wait", "push", "allreduce", "tables", "update"}


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    return write_job(tmp_path_factory.mktemp("train"))


@pytest.mark.parametrize(("ranks", "servers"), [(1, "per-node"), (3, "per-node"), (4, "2"), (2, "0")])
def test_it_learns_and_leaves_what_it_says(job, ranks, servers):
    run = train(
        job,
        f"learns{ranks}",
        ranks,
        f"training.steps={STEPS}",
        "training.evaluate=quarters",
        "sparse.adapt_every=0",  # on so small a text all tables would leave their owners
        f"world.servers={servers}",
    )
    output = run.outcome.output
    computing = {1: 1, 3: 2, 4: 2, 2: 2}[ranks]
    assert f"plan: {computing} compute rank" in output
    assert re.search(r"^  lstm.weight_h .* dense ", output, re.MULTILINE)
    assert re.search(r"^  embedding .* sparse ", output, re.MULTILINE)

    # Perplexity: printed and recorded at each quarter, falling, and far below the model without context.
    evaluations = run.of_kind("evaluation")
    assert [line["step"] for line in evaluations] == [40, 80, 120, 160]
    found = [line["perplexity"] for line in evaluations]
    assert found == sorted(found, reverse=True) and found[-1] < found[0] / 2, found
    assert found[-1] < evaluations[-1]["unigram_perplexity"] / 2
    assert f"step 160: held-out perplexity {found[-1]:.1f} on {evaluations[-1]['words']:,} words" in output

    # Metrics: a line for the run, one for every step, with its phases and bytes.
    (head,) = run.of_kind("run")
    assert head["compute_ranks"] == computing and head["servers"] == (ranks - computing)
    assert head["job"]["model"]["width"] == 32 and head["job"]["allreduce"]["overlap"] is True
    steps = run.of_kind("step")
    assert [line["step"] for line in steps] == list(range(1, STEPS + 1))
    for line in steps:
        assert line["examples"] == 12 * 10 and not line["skipped"] and line["words_per_s"] > 0
        assert line["phases"].keys() == PHASES and all(seconds > -1e-6 for seconds in line["phases"].values()), line
        assert sum(line["phases"].values()) <= line["seconds"] * 1.01 + 1e-4, line
        assert 0 <= line["hidden"] <= line["phases"]["backward"] + line["phases"]["overlap"] + 1e-4, line
        assert line["bytes"]["push_rows"] > 0 and line["bytes"]["pull_rows"] > 0
        assert (line["bytes"]["allreduce"] > 0) == (computing > 1)

    # Alpha: since the last evaluation, and of the whole run; more ranks touch more.
    (end,) = run.of_kind("end")
    assert end["step"] == STEPS and end["seconds"] > 0
    for line in [*evaluations, end]:
        assert line["sparsity"].keys() == {"embedding", "output", "bias"}
        for alpha in line["sparsity"].values():
            assert 0 < alpha["rank"] <= alpha["node"] <= alpha["all"] <= 1, line
            assert computing > 1 or alpha["rank"] == alpha["all"]
    means = [
        np.mean([line["sparsity"]["embedding"]["all"] for line in evaluations]),
        end["sparsity"]["embedding"]["all"],
    ]
    assert means[0] == pytest.approx(means[1], rel=1e-5)
    told = re.search(r"^  embedding +([\d,]+) +ps +(\S+) +(\S+) +(\S+)$", output, re.MULTILINE)
    assert told, output
    assert [float(part) for part in told.groups()[1:]] == pytest.approx(
        [*end["sparsity"]["embedding"].values()], rel=5e-3
    )

    # A line of progress for every step (progress = 0), none of them redrawn.
    shown = re.findall(r"^step (\d+) of 160 \(\d+%\)  loss [\d.]+  [\d,]+ words/s$", output, re.MULTILINE)
    assert [int(step) for step in shown] == list(range(1, STEPS + 1))
    assert "\r" not in output and "\x1b" not in output

    # The command that it ends with works, and the checkpoint is whole.
    command = output.split("look into it with:\n", 1)[1].splitlines()[0].strip()
    inspected = run_process(shlex.split(command), TIMEOUT)
    assert inspected.code == 0, str(inspected)
    for word in ("embedding", "output", "lstm", ".weight_x", "160"):
        assert word in inspected.output
    assert_whole(run.directory)
    assert run.checkpoint().step == STEPS


def test_set_replaces_values_of_the_job_file(job):
    run = train(job, "sets", 1, "training.steps=2", "optimizer.kind=adam", "optimizer.rate=0.01", "model.width=16")
    (head,) = run.of_kind("run")
    assert head["job"]["model"]["width"] == 16 and len(run.losses) == 2
    saved = run.checkpoint()
    assert saved.meta["optimizer"]["name"] == "adam" and saved.tables["embedding"].dim == 16


def test_a_bar_on_a_terminal(job):
    """On a terminal one line is redrawn; what is printed in between stands on lines of its own."""
    leader, follower = pty.openpty()
    line = [sys.executable, *arguments(job, "bar", "training.steps=40", "training.evaluate=20")]
    process = subprocess.Popen(line, stdout=follower, stderr=follower, stdin=subprocess.DEVNULL, start_new_session=True)
    os.close(follower)
    written, deadline = b"", time.monotonic() + TIMEOUT
    try:
        while time.monotonic() < deadline:
            if select.select([leader], [], [], 0.1)[0]:
                try:
                    part = os.read(leader, 1 << 16)
                except OSError:  # the terminal is closed
                    break
                if not part:
                    break
                written += part
        process.wait(timeout=10)
    finally:
        kill_session(process.pid)
        process.wait()
        os.close(leader)
    text = written.decode()
    assert process.returncode == 0, text
    assert re.search(r"\r\x1b\[K#{10,} 40/40  loss [\d.]+  [\d,]+ words/s\r?\n", text), text
    assert re.search(r"^step 20: held-out perplexity", text, re.MULTILINE), text


def test_a_timeline_of_chosen_steps(job):
    path = job.parent / "timelines" / "some.json"
    line = [*arguments(job, "traced", "training.steps=8"), "--trace", str(path), "--trace-steps", "4:6"]
    outcome = run_mpi(3, line, TIMEOUT)
    assert outcome.code == 0 and outcome.left == (), str(outcome)
    assert f"trace: {path} (steps 4 to 6, 3 ranks, " in outcome.output
    trace = json.loads(path.read_text())
    names = [e["args"]["name"].split(" (")[0] for e in trace["traceEvents"] if e["name"] == "process_name"]
    assert names == ["compute 0", "compute 1", "server 0"]
    steps = [(e["pid"], e["args"]["step"]) for e in trace["traceEvents"] if e["name"].startswith("step ")]
    assert steps == [(rank, step) for rank in (0, 1) for step in (4, 5, 6)]
    assert [entry.name for entry in path.parent.iterdir()] == ["some.json"]


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (["--trace-steps", "4:6"], "give both"),
        (["--trace", "t.json", "--trace-steps", "6:4"], "invalid range of steps, FIRST:LAST"),
        (["--trace", "t.json", "--trace-steps", "25:30"], "the job ends with step 24"),
    ],
)
def test_a_timeline_of_no_steps(job, wrong, words):
    outcome = run_process([sys.executable, *arguments(job, "untraced"), *wrong], TIMEOUT)
    assert outcome.code == 2 and words in outcome.output, str(outcome)
    assert not finished(job, "untraced", outcome).losses


def test_only_the_newest_checkpoints_are_kept(job):
    run = train(job, "keep", 3, "training.steps=10", "checkpoint.every=2", "checkpoint.keep=3")
    assert sorted(path.name for path in run.directory.iterdir()) == [f"step-{step:08d}" for step in (6, 8, 10)]
    for path in run.directory.iterdir():
        assert_whole(path)


def contents(directory):
    return {path: path.read_bytes() for path in directory.parent.rglob(f"{directory.name}*/**/*") if path.is_file()}


def test_a_new_run_in_the_folder_of_an_old_one_is_refused_or_starts_over(job):
    run = train(job, "again", 1, "training.steps=4", "checkpoint.every=2")
    before = contents(run.directory)
    assert len(before) >= 8
    refused = train(job, "again", 3, "training.steps=1", code=2)
    (message,) = re.findall(r"^hybridmpi: .*", refused.outcome.output, re.MULTILINE)
    assert all(word in message for word in ("of an earlier run", "--resume", "checkpoint.directory=", "--fresh"))
    assert contents(run.directory) == before and refused.lines == run.lines, "it was touched"
    new = train(job, "again", 1, "training.steps=3", "checkpoint.every=1", fresh=True)
    assert {path.name for path in new.directory.iterdir()} == {"step-00000002", "step-00000003"}
    assert [line["step"] for line in new.of_kind("step")] == [1, 2, 3]


def test_a_run_that_ended_before_its_first_step_is_in_nobody_s_way(job):
    failed = train(job, "early", 1, "data.streams=1000000", code=2)
    assert [line["kind"] for line in failed.lines] == ["run"] and "too few" in failed.outcome.output
    run = train(job, "early", 1, "training.steps=1")
    assert [line["kind"] for line in run.lines].count("run") == 1 and len(run.of_kind("step")) == 1


def test_skipped_steps_are_counted_and_warned_of(job):
    sets = (
        "training.steps=5",
        "training.nonfinite=skip",
        "training.clip=0",
        "optimizer.kind=sgd",
        "optimizer.rate=1e38",
    )
    run = train(job, "skipped", 3, *sets)
    (end,) = run.of_kind("end")
    assert 0 < end["skipped"] < 5, end
    assert f"trained 5 steps, {end['skipped']} of them skipped" in run.outcome.output, run.outcome.output
    assert run.outcome.output.count(f"warning: {end['skipped']} of 5 steps skipped") == 1


def test_two_runs_do_not_write_into_one_directory(job):
    """The second is refused before its first step and names the first; killed, the first is in nobody's way."""
    line = [sys.executable, *arguments(job, "both", "training.steps=100000", "checkpoint.every=2")]
    environment = {**os.environ, "SLURM_JOB_ID": "4711"}
    first = subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment)
    try:
        owner = job.parent / "both" / ".owner.json"
        deadline = time.monotonic() + TIMEOUT
        while not list((job.parent / "both").glob("step-*/manifest.json")):
            assert time.monotonic() < deadline and first.poll() is None
            time.sleep(0.1)
        second = train(job, "both", 1, "training.steps=200000", resume="", code=2)
        (message,) = re.findall(r"^hybridmpi: .*", second.outcome.output, re.MULTILINE)
        assert f"job 4711 on {platform.node()} (process {first.pid}, since " in message, message
        assert first.poll() is None
    finally:
        first.kill()
        first.communicate()
    assert owner.exists()
    step = Checkpoint.open(job.parent / "both").step
    third = train(job, "both", 1, f"training.steps={step + 2}", resume="")
    assert f"taken over from job 4711 on {platform.node()}" in third.outcome.output and not owner.exists()
    assert third.checkpoint().step == step + 2


def test_a_checkpoint_directory_that_cannot_be_made(job):
    (job.parent / "file").write_text("no directory")
    directory = job.parent / "file" / "run"
    run = train(job, "unwritable", 3, "training.steps=2", f"checkpoint.directory={directory}", code=2)
    (message,) = re.findall(r"^hybridmpi: .*", run.outcome.output, re.MULTILINE)
    assert "rank 0 of 3" in message and f"checkpoint.directory = {directory}: cannot be written" in message
    assert "reading" not in run.outcome.output and not run.lines, "found after something was done"


def test_a_metrics_file_that_cannot_be_written(job):
    (job.parent / "file").write_text("no directory")
    path = job.parent / "file" / "metrics.jsonl"
    run = train(job, "unwritten", 3, "training.steps=2", f"metrics.path={path}", code=2)
    (message,) = re.findall(r"^hybridmpi: .*", run.outcome.output, re.MULTILINE)
    assert str(path) in message and "cannot be written" in message and "set metrics.path" in message


def test_the_launch_command_starts_it(job):
    """The whole way of a user: `hybridmpi launch -n 3 -- train JOB`."""
    line = [sys.executable, "-m", "hybridmpi", "launch", "-n", "3", "--", *arguments(job, "launched")[2:]]
    outcome = run_process(line, TIMEOUT)
    assert outcome.code == 0 and outcome.left == (), str(outcome)
    first = outcome.output.splitlines()[0]
    assert " -n 3 " in first and "hybridmpi train" in first
    assert len(finished(job, "launched", outcome).losses) == 24
