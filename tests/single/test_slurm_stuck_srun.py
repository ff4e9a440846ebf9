"""The script of a heterogeneous job ends when srun does not: srun, squeue and sleep are stand-ins, bash is real."""

import os
import signal
import subprocess
from contextlib import suppress

import pytest

from hybridmpi.cli.main import main

SRUN = """#!/bin/bash
# As srun: USR1 goes to the ranks. The first component's rank 0 runs; its steps end with it.
trap '' USR1
while [ "$1" != sh ]; do shift; done
command=()
while [ "$1" != : ]; do command+=("$1"); shift; done
touch "$STEPS"
SLURM_PROCID=0 SLURM_CPUS_PER_TASK=1 "${command[@]}"
status=$?
rm "$STEPS"
case $STUCK in yes) exec sleep infinity ;; esac
exit "$status"
"""
SQUEUE = """#!/bin/bash
case $CONTROLLER in down) echo "slurm_load_jobs error" >&2; exit 1 ;; esac
echo 1+0.batch
[ ! -e "$STEPS" ] || echo 1+0.0
"""
SLEEP = """#!/bin/bash
case $1 in infinity) exec /bin/sleep 60 ;; esac
exec /bin/sleep 0.05
"""
HYBRIDMPI = """#!/bin/bash
/bin/sleep 0.3
case $ENDS in killed) kill -KILL $PPID $$ ;; esac
exit "$ENDS"
"""
SCONTROL = """#!/bin/bash
echo "scontrol $*"
"""


@pytest.fixture
def script(tmp_path, capsys):
    commands = {"srun": SRUN, "squeue": SQUEUE, "sleep": SLEEP, "hybridmpi": HYBRIDMPI, "scontrol": SCONTROL}
    for name, text in commands.items():
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    path = tmp_path / "script.sh"
    job = tmp_path / "job.toml"
    assert main(["job", "lm", str(job)]) == 0
    line = ["slurm", "render", str(job), "--nodes=1", "--server-nodes=1", "--mpi=pmix", f"--bin={tmp_path}"]
    assert main([*line, "--output", str(path)]) == 0, capsys.readouterr()
    return path


def run(path, timeout=20, **variables):
    """Run the script in a process group of its own; return its status and what it said."""
    folder = path.parent
    environment = dict(os.environ) | variables
    environment |= {"PATH": f"{folder}:{os.environ['PATH']}", "STEPS": str(folder / "steps"), "TMPDIR": str(folder)}
    environment |= {"SLURM_JOB_ID": "1", "SLURM_NTASKS_HET_GROUP_0": "1", "SLURM_JOB_NODELIST": "n1"}
    given = {"env": environment, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    process = subprocess.Popen(["bash", str(path)], start_new_session=True, cwd=folder, **given)
    try:
        said, _ = process.communicate(timeout=timeout)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    return process.returncode, said


@pytest.mark.parametrize("stuck", ["yes", "no"])
@pytest.mark.parametrize(("rank", "status"), [("0", 0), ("2", 2), ("75", 0), ("killed", 137)])
def test_the_status_of_rank_0_is_the_job_s_even_where_srun_does_not_end(script, stuck, rank, status):
    code, said = run(script, STUCK=stuck, ENDS=rank)
    assert code == status, said
    assert ("all steps have ended, but srun has not" in said) == (stuck == "yes"), said
    assert ("scontrol requeue 1" in said) == (rank == "75"), said
    assert not list(script.parent.glob("tmp.*"))


def test_without_an_answer_of_the_controller_srun_is_left_alone(script):
    with pytest.raises(subprocess.TimeoutExpired):
        run(script, timeout=3, STUCK="yes", ENDS="0", CONTROLLER="down")
