"""One writer for a directory: who lives is refused, who is gone is taken over from, whatever way it went."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from types import SimpleNamespace

import pytest

from hybridmpi import checkpoint
from hybridmpi.checkpoint import owner
from hybridmpi.errors import CheckpointError, UsageError
from hybridmpi.training.run import refuse_old_run


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(owner, "BEAT_SECONDS", 0.05)
    monkeypatch.setattr(owner, "WATCH_SECONDS", 0.4)
    monkeypatch.setattr(owner, "LOOK_SECONDS", 0.05)
    monkeypatch.setattr(owner, "SETTLE_SECONDS", 0.02)
    for name in (*owner.JOB_VARIABLES, owner.RESTART_VARIABLE):
        monkeypatch.delenv(name, raising=False)
    yield
    owner._release_all()


HOLD = (
    "import sys, time; from hybridmpi.checkpoint import owner\n"
    "owner.take(sys.argv[1])\n"
    "print('taken', flush=True); time.sleep(60)\n"
)


@pytest.fixture
def holder(tmp_path):
    """Another process that has the directory."""
    environment = {**os.environ, "SLURM_JOB_ID": "4711"}
    child = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE, text=True, env=environment
    )
    assert child.stdout.readline() == "taken\n"
    yield child
    child.kill()
    child.wait()
    child.stdout.close()


def test_a_living_owner_is_named_and_a_killed_one_taken_over_from_at_once(tmp_path, holder):
    with pytest.raises(UsageError, match=rf"job 4711 on .* \(process {holder.pid}, since 20.*Wait for its end"):
        owner.take(tmp_path)
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    started = time.monotonic()
    right, note = owner.take(tmp_path)
    assert time.monotonic() - started < 0.3 and "taken over from job 4711" in note and "which is gone" in note
    again, note = owner.take(tmp_path)  # this process has it already
    assert again is right and note == ""
    right.release()
    assert (tmp_path / owner.OWNER_FILE).exists()
    right.release()
    assert list(tmp_path.iterdir()) == []


def test_one_that_ends_by_itself_leaves_nothing(tmp_path):
    subprocess.run(
        [sys.executable, "-c", HOLD.replace("time.sleep(60)", "pass"), str(tmp_path)], check=True, timeout=60
    )
    assert list(tmp_path.iterdir()) == []


def elsewhere(path, **about):
    """Let the file say that its owner is another host's."""
    said = {**owner._process(), **owner._job(), "since": "2026", "token": "t", "host": "node07", "boot": "b", **about}
    path.write_text(json.dumps(said))


def test_an_owner_on_another_host_lives_while_it_touches_its_file(tmp_path):
    path = tmp_path / owner.OWNER_FILE
    elsewhere(path, job="12")
    ended = threading.Event()

    def beat():
        while not ended.wait(0.05):
            os.utime(path)

    thread = threading.Thread(target=beat)
    thread.start()
    try:
        with pytest.raises(UsageError, match="job 12 on node07"):
            owner.take(tmp_path)
    finally:
        ended.set()
        thread.join()
    _, note = owner.take(tmp_path)
    assert "taken over from job 12 on node07" in note


def test_an_owner_beats_and_one_that_was_replaced_saves_no_more(tmp_path):
    right, _ = owner.take(tmp_path)
    before = right.path.stat().st_mtime_ns
    time.sleep(0.2)
    assert right.path.stat().st_mtime_ns > before
    right.check()
    right.path.unlink()
    right.check()  # somebody tidied up: it is there again
    assert json.loads(right.path.read_text())["pid"] == os.getpid()
    elsewhere(right.path)
    time.sleep(0.1)
    before = right.path.stat().st_mtime_ns
    time.sleep(0.2)
    assert right.path.stat().st_mtime_ns == before, "another's file is not touched"
    with pytest.raises(CheckpointError, match=r"a run on node07 .* this one saves no more"):
        right.check()
    right.release()
    assert right.path.exists(), "and not removed"


def test_the_same_job_started_again_elsewhere_need_not_wait(tmp_path, monkeypatch):
    monkeypatch.setenv("SLURM_JOB_ID", "99")
    monkeypatch.setenv("SLURM_RESTART_COUNT", "1")
    monkeypatch.setattr(owner, "WATCH_SECONDS", 60)
    elsewhere(tmp_path / owner.OWNER_FILE, job="99", restarts="")
    _, note = owner.take(tmp_path)
    assert "taken over from job 99 on node07" in note


@pytest.mark.parametrize("content", [b"", b"{", b"[1]", b"null", b"\xff\xfe", b'{"pid": "x"}', b"[" * 100_000])
def test_a_file_that_says_nothing_is_taken_over(tmp_path, content):
    (tmp_path / owner.OWNER_FILE).write_bytes(content)
    assert "taken over from" in owner.take(tmp_path)[1]


@pytest.mark.parametrize("pid", [-1, 0, 2**70, None, True, 1.5])
def test_a_process_that_cannot_be_is_gone(tmp_path, pid):
    elsewhere(tmp_path / owner.OWNER_FILE, host=owner.socket.gethostname(), boot=owner._process()["boot"], pid=pid)
    assert "taken over from" in owner.take(tmp_path)[1]


def test_a_place_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(UsageError, match=r"file: checkpoints cannot be written there"):
        owner.take(tmp_path / "file")


def test_only_generations_of_this_run_are_pruned(tmp_path):
    def save(step, run):
        directory = checkpoint.begin(tmp_path, step, run)
        record = checkpoint.write_dense(directory, {}, {}, {}, {} if run is None else {"run_id": run})
        return checkpoint.commit(directory, step, [record], {})

    for step, run in ((1, None), (2, "a"), (3, "b"), (4, "a"), (5, "b"), (6, "a")):
        save(step, run)
    for step, run in ((7, "b"), (8, "a"), (9, None)):
        checkpoint.begin(tmp_path, step, run)  # cut off
    save(10, "a")
    (tmp_path / "away").mkdir()
    (tmp_path / "away" / "server-000.h5").write_text("mine")
    (tmp_path / "step-00000000").symlink_to(tmp_path / "away")
    removed = [int(path.name[5:]) for path in checkpoint.prune(tmp_path, 2, "a")]
    assert removed == [8, 4, 2]
    assert (tmp_path / "away" / "server-000.h5").exists()
    assert sorted(int(path.name[5:]) for path in tmp_path.glob("step-*")) == [0, 1, 3, 5, 6, 7, 9, 10]


def test_what_an_earlier_run_left_is_not_taken_the_place_of(tmp_path):
    root, metrics = tmp_path / "run", tmp_path / "metrics.jsonl"
    job = SimpleNamespace(checkpoint=SimpleNamespace(directory=str(root)), metrics_path=str(metrics))
    for resume in (None, "", str(tmp_path / "other")):
        refuse_old_run(job, resume)  # nothing there
    metrics.write_text("")
    (root / "step-00000005").mkdir(parents=True)  # a first checkpoint that was cut off
    refuse_old_run(job, None)
    metrics.write_text("{}\n")
    with pytest.raises(UsageError, match=r"metrics\.jsonl holds the metrics of an earlier run: --resume .*--fresh"):
        refuse_old_run(job, None)
    refuse_old_run(job, "")
    job.metrics_path = os.devnull
    refuse_old_run(job, None)
    directory = checkpoint.begin(root, 7, "a")
    checkpoint.commit(directory, 7, [checkpoint.write_dense(directory, {}, {}, {}, {})], {})
    with pytest.raises(
        UsageError, match=r"run holds checkpoints \(step-00000007\) of an earlier run: --resume goes on"
    ):
        refuse_old_run(job, None)
    with pytest.raises(UsageError, match=r"--resume .*other is none of them: --resume without a path"):
        refuse_old_run(job, str(tmp_path / "other"))
    for resume in ("", str(root), str(directory), str(directory / "dense.h5"), f"{root}/../run"):
        refuse_old_run(job, resume)
