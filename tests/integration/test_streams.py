"""Standard streams that are closed, full, broken or stuck, and a folder that has gone: work goes on, and ends."""

import json
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from launching import ROOT, run_mpi, run_process
from runs import arguments, assert_whole, finished, write_job

from hybridmpi.checkpoint import Checkpoint

LAST_WORD = str(Path(__file__).parent / "programs" / "last_word.py")
# Root without the right to write what is read-only, from the next program on; others have none.
WITHOUT_RIGHTS = "import ctypes, os, sys; [ctypes.CDLL(None).prctl(24, c, 0, 0, 0) for c in (1, 2)]; " + (
    "os.execv(sys.argv[1], sys.argv[1:])"
)


def shell(command: str, cwd: Path, **env: str) -> subprocess.CompletedProcess:
    """Run a command of bash, in which `hybridmpi` is the one of this Python; return what it left where it could."""
    function = f'hybridmpi() {{ {shlex.quote(sys.executable)} -m hybridmpi "$@"; }}; set -o pipefail; '
    environment = {**os.environ, **env}
    return subprocess.run(
        ["bash", "-c", function + command],
        cwd=cwd,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize(
    ("kind", "code", "seconds"),
    [
        ("closed", 1, 4),
        ("none", 1, 4),
        ("full", 1, 4),
        ("broken", 1, 4),
        ("stuck", 1, 10),
        ("unspeakable", 1, 4),
        ("interrupted", 7, 4),
    ],
)
def test_a_rank_that_cannot_say_why_ends_all(kind, code, seconds):
    outcome = run_mpi(2, [LAST_WORD, kind], timeout=30)
    assert outcome.failed_with(code) and outcome.left == () and outcome.seconds < seconds, str(outcome)
    if kind == "unspeakable":
        assert "rank 0 of 2 (compute 0" in outcome.output and "Unspeakable" in outcome.output, str(outcome)


@pytest.fixture(scope="module")
def job(tmp_path_factory) -> Path:
    """A job, and a run of it in `run`."""
    return write_job(tmp_path_factory.mktemp("streams"))


@pytest.mark.parametrize(
    "redirection",
    [">&- 2>&- <&-", ">/dev/full 2>/dev/full --set metrics.path=/dev/full", "| head -1", "2>&1 >/dev/full"],
)
def test_training_does_not_need_its_streams(job, redirection):
    name = f"run{abs(hash(redirection))}"
    argv = shlex.join(arguments(job, name)[2:])
    done = shell(f"hybridmpi {argv} {redirection}", job.parent)
    assert done.returncode == 0, done
    run = finished(job, name, None)
    if "metrics.path" not in redirection:
        assert [line["step"] for line in run.of_kind("step")] == list(range(1, 25)) and run.of_kind("end")
    assert run.checkpoint().step == 24
    assert_whole(run.directory)
    if redirection.startswith("2>&1"):
        assert done.stdout.count("warning: standard output cannot be written (No space left on device)") == 1


def test_ranks_go_on_without_what_is_written_beside(job):
    """The launcher's streams are closed, the metrics cannot be written, nor the timeline in the end."""
    argv = arguments(job, "beside", "metrics.path=/dev/full")
    argv += ["--trace", str(job.parent / "gone" / "trace.json"), "--trace-steps", "2:3"]
    outcome = run_mpi(2, argv, timeout=60)
    assert outcome.code == 0, str(outcome)
    warning = "warning: metrics file '/dev/full' cannot be written (No space left on device)"
    assert outcome.output.count(warning) == 1 and "trained 24 steps" in outcome.output, str(outcome)
    command = shlex.join([sys.executable, "-m", "hybridmpi", "launch", "-n", "2", "--", *arguments(job, "closed")[2:]])
    assert shell(f"{command} >&- 2>&- <&-", job.parent).returncode == 0
    assert finished(job, "closed", None).checkpoint().step == 24


@pytest.mark.parametrize(
    ("command", "code"),
    [
        ("hybridmpi --help >/dev/full", 1),
        ("hybridmpi inspect --help >/dev/full", 1),
        ("hybridmpi inspect {run} >&- 2>&- <&-", 0),
        ("hybridmpi inspect {run} >/dev/full", 1),
        ("hybridmpi inspect {run} 2>/dev/full | head -1", 0),
        ("hybridmpi watch --once {run} >&- 2>&-", 0),
        ("hybridmpi plan nothing 2>/dev/full >/dev/full", 2),
        ("hybridmpi inspect --nothing 2>/dev/full", 2),
        ("hybridmpi plan {job} <&- >&-", 0),
        ("hybridmpi job lm >&-", 0),
        ("hybridmpi doctor 2>&- >&- <&- ; test $? -le 1", 0),
    ],
)
def test_commands_do_not_need_streams(job, command, code):
    if "{run}" in command and not (job.parent / "seen").exists():
        done = shell(
            f"hybridmpi {shlex.join(arguments(job, 'seen', f'metrics.path={job.parent}/seen/metrics.jsonl')[2:])}",
            job.parent,
        )
        assert done.returncode == 0, done
    done = shell(command.format(run=job.parent / "seen", job=job), job.parent)
    assert done.returncode == code or (code == 0 and "| head" in command and done.returncode == 1), done
    assert "Traceback" not in done.stderr and "Exception ignored" not in done.stderr, done
    if "no space" in done.stderr.lower():
        assert done.stderr == "hybridmpi: error: No space left on device, where this command writes to\n"


def test_the_current_folder_may_go(job, tmp_path):
    gone = tmp_path / "gone"
    gone.mkdir()
    done = shell("rmdir ../gone; hybridmpi inspect x", gone)
    assert done.returncode == 2 and done.stderr.startswith("hybridmpi: error: the current folder"), done
    gone.mkdir()
    program = (
        "import os, shutil, sys\nfrom hybridmpi.cli.main import main\nfrom hybridmpi.training.run import Run\n"
        "train = Run.train\nRun.train = lambda run: (shutil.rmtree(os.getcwd()), train(run))[1]\nsys.exit(main())"
    )
    argv = [*arguments(job, "gone")[2:], "--set", "checkpoint.directory=relative"]
    done = run_process([sys.executable, "-c", program, *argv], 60, {"PYTHONPATH": str(ROOT / "src")}, cwd=gone)
    assert done.code == 0, str(done)
    assert Checkpoint.open(gone / "relative").step == 24


def test_an_installation_that_nobody_may_write(tmp_path):
    """Kernels are kept among temporary files, in a folder of this user's alone."""
    program = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r})\nimport os, json, numpy, hybridmpi\n"
        "from hybridmpi import kernels\nassert hybridmpi.__file__.startswith(sys.path[0])\n"
        "assert kernels.square_sum(numpy.ones(5, 'f4')) == 5\n"
        "print(json.dumps([os.environ.get('NUMBA_CACHE_DIR'), hybridmpi.kernel_cache.note]))"
    )
    copy, temporary, home = (tmp_path / name for name in ("hybridmpi", "temporary", "home"))
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "src" / "hybridmpi", copy, ignore=ignored)
    shutil.copytree(ROOT / "kernels", copy / "kernels", ignore=ignored, dirs_exist_ok=True)
    temporary.mkdir()
    home.mkdir()
    for path in (home, *copy.rglob("*"), copy):
        path.chmod(0o555 if path.is_dir() else 0o444)
    environment = {"HOME": str(home), "XDG_CACHE_HOME": "", "TMPDIR": str(temporary), "NUMBA_CACHE_DIR": ""}
    own = temporary / f"hybridmpi-{os.getuid()}"

    def kept() -> tuple[Path, str]:
        argv = [sys.executable, "-c", WITHOUT_RIGHTS, sys.executable, "-B", "-c", program]
        outcome = run_process(argv, 60, environment, cwd=tmp_path)
        assert outcome.code == 0, str(outcome)
        folder, note = json.loads(outcome.output.splitlines()[-1])
        assert folder in note and "neither the installation nor your cache folder" in note
        return Path(folder)

    try:
        assert kept() == own / "numba" and own.stat().st_mode & 0o777 == 0o700
        own.chmod(0o755)  # others could put kernels there
        assert kept().parent.parent == temporary and not kept().is_relative_to(own)
        assert [path.name for path in temporary.iterdir()] == [own.name], "a folder of a process is left"
    finally:
        for path in (home, *copy.rglob("*"), copy):
            path.chmod(0o755)
