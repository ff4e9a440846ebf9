"""`hybridmpi doctor` whole: all ok on four ranks in seconds, and seeded faults, each found and explained."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from launching import run_process

from hybridmpi.cli import mpirun
from hybridmpi.cli.main import main

DOCTOR = [sys.executable, "-m", "hybridmpi", "doctor", "--json"]
LAUNCHED = [sys.executable, "-m", "hybridmpi", "launch", "-n"]
SEEDED = Path(__file__).parent / "programs" / "seeded"
OF_THE_MACHINE = {"memory", "shared memory", "space", "file system", "limits", "variables", "threads"}
"""Lines that a machine on which these tests run may be warned of."""
TIMEOUT = 60


def report_of(argv, code, **environment):
    """Run doctor and return its report, as lines by their subject; fail unless it ends with `code` and no process."""
    outcome = run_process(argv, TIMEOUT, environment)
    line = next((line for line in outcome.output.splitlines() if line.startswith('{"ok"')), None)
    assert line and outcome.code == code and outcome.left == (), str(outcome)
    return json.loads(line)


def lines_of(report, status):
    """Return {subject: line} of one status."""
    return {line["what"]: line for line in report["findings"] if line["status"] == status}


def test_a_healthy_machine_is_all_ok():
    report = report_of([*LAUNCHED, "4", "--", "doctor", "--json"], 0)
    assert (report["ok"], report["ranks"], len(report["hosts"])) == (True, 4, 1)
    assert set(lines_of(report, "warn")) <= OF_THE_MACHINE, report
    assert {"python", "MPI", "thread level", "one-sided", "windows", "all-reduce", "checkpoints"} <= set(
        lines_of(report, "ok")
    )
    assert report["seconds"] < 6  # 1.4 on two quiet cores, where the whole command takes 2.5


def test_alone_it_starts_two_ranks_and_people_can_read_it():
    outcome = run_process([sys.executable, "-m", "hybridmpi", "doctor"], TIMEOUT)
    assert outcome.code == 0, str(outcome)
    lines = outcome.output.splitlines()
    assert lines[0].startswith("hybridmpi doctor: 2 ranks on 1 host (")
    assert any(line.startswith("ok    launcher        ") for line in lines) and "\033" not in outcome.output
    assert not lines_starting(lines, "fail")


def lines_starting(lines, word):
    """Return the lines that begin with a word."""
    return [line for line in lines if line.startswith(word)]


def test_singletons():
    report = report_of(DOCTOR, 1, SLURM_STEP_NUM_TASKS="3", SLURM_PROCID="0")
    (line,) = lines_of(report, "fail").values()
    assert line["what"] == "ranks" and "srun started 3 tasks, but MPI sees 1 rank" in line["found"]
    assert line["remedy"].startswith("srun --mpi=pm")
    assert "checkpoints" in lines_of(report, "ok")  # what needs no ranks is looked at all the same


def test_mpi_without_the_thread_level(tmp_path):
    """Something starts MPI before hybridmpi does."""
    begins = "import sys\nif 'hybridmpi.doctor.examination' in sys.orig_argv:\n    from mpi4py import MPI\n"
    (tmp_path / "sitecustomize.py").write_text(begins)
    assert report_of(DOCTOR, 0, MPI4PY_RC_THREAD_LEVEL="single")["ok"]
    report = report_of(DOCTOR, 1, MPI4PY_RC_THREAD_LEVEL="single", PYTHONPATH=str(tmp_path))
    (line,) = lines_of(report, "fail").values()
    assert line["found"] == "MPI offers SINGLE, FUNNELED is needed: MPI4PY_RC_THREAD_LEVEL=single"
    assert line["remedy"] == "unset MPI4PY_RC_THREAD_LEVEL"


def test_blocked_progress_and_a_read_only_directory(tmp_path):
    """Root writes where others may not: so the directory is a file system mounted for reading only."""
    argv = [*LAUNCHED, "2", "--", "doctor", "--json", "--directory", str(tmp_path / "runs")]
    mount = f"mount -t tmpfs -o ro none {tmp_path} && exec "
    if os.geteuid() == 0 and subprocess.run(["unshare", "-m", "true"], capture_output=True).returncode == 0:
        argv = ["unshare", "-m", "bash", "-c", mount + '"$@"', "bash", *argv]
        reason = "Read-only file system"
    elif os.geteuid() != 0:
        tmp_path.chmod(0o500)
        reason = "Permission denied"
    else:
        pytest.skip("root without the right to mount: no directory here is read-only for it")
    report = report_of(argv, 1, PYTHONPATH=str(SEEDED))
    failed = lines_of(report, "fail")
    assert set(failed) == {"one-sided", "checkpoints"}
    assert "for a rank of its node that slept 200 ms" in failed["one-sided"]["found"]
    assert f"{tmp_path / 'runs'} is yet to be made) cannot be written" in failed["checkpoints"]["found"]
    assert reason in failed["checkpoints"]["found"] and "--directory" in failed["checkpoints"]["remedy"]


def test_a_missing_launcher(monkeypatch, capfd):
    found = mpirun.find_library()
    library = replace(found, mpi=replace(found.mpi, launchers=("mpirun-not-here",)))
    monkeypatch.setattr(mpirun, "find_library", lambda: library)
    assert main(["doctor", "--json"]) == 1
    report = json.loads(capfd.readouterr().out)
    (line,) = lines_of(report, "fail").values()
    assert line["what"] == "launcher" and "no mpirun-not-here at all" in line["found"]
    assert line["remedy"].startswith("install it beside this Python: pip install ")
    assert report["ranks"] == 1 and "windows" not in lines_of(report, "fail")
