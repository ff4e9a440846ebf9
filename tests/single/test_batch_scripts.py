"""The scripts of jobs/ with stand-ins for srun, scontrol and hybridmpi: when they start again, and when not."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# Writes down its arguments; ends with the next of STATUSES; for "wait" with 75 when it gets USR1. A shell could not: it
# lets no signal be trapped that was ignored when it began.
STAND_IN = f"""#!{sys.executable}
import os, signal, sys, time

def note(text):
    with open("calls", "a") as file:
        print(text, file=file)

def stop(*_):
    note("asked")
    sys.exit(75)

note(" ".join([os.path.basename(sys.argv[0]), *sys.argv[1:]]).replace("\\n", " "))
with open("statuses") as file:
    status, *rest = file.read().split()
with open("statuses", "w") as file:
    print(*rest, file=file)
if status == "wait":
    signal.signal(signal.SIGUSR1, stop)
    note("ready")
    time.sleep(20)
    sys.exit(9)
sys.exit(int(status))
"""
SLURM = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n[1-2]", "SLURM_CPUS_PER_TASK": "4", "SLURM_NTASKS_PER_NODE": "1"}


@pytest.fixture
def place(tmp_path):
    """A folder where the scripts find an environment, and what they call."""
    for name in (".venv/bin/hybridmpi", "bin/srun"):
        path = tmp_path / name
        path.parent.mkdir(parents=True)
        path.write_text(STAND_IN)
        path.chmod(0o755)
    scontrol = tmp_path / "bin" / "scontrol"
    scontrol.write_text('#!/bin/bash\necho "${0##*/} $*" >> calls\nexit "${REFUSED:-0}"\n')
    scontrol.chmod(0o755)
    return tmp_path


def begin(place, script, statuses, edits=(), **environment):
    """Start a script of jobs/ in `place`, edited, where ranks end with `statuses` one after the other."""
    text = (ROOT / "jobs" / script).read_text()
    for old, new in edits:
        assert old in text
        text = text.replace(old, new)
    (place / "script").write_text(text)
    (place / "statuses").write_text(" ".join(map(str, statuses)) + "\n")
    return subprocess.Popen(
        ["bash", "script"], cwd=place, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        start_new_session=True, env={"PATH": f"{place / 'bin'}:{os.environ['PATH']}", **environment},
    )  # fmt: skip


def end(place, process):
    """Return (status, output, what was called) when the script has ended."""
    try:
        output, _ = process.communicate(timeout=30)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
    return process.returncode, output, (place / "calls").read_text().splitlines()


def wait_for(place, line):
    deadline = time.monotonic() + 20
    while line not in ((place / "calls").read_text() if (place / "calls").exists() else ""):
        assert time.monotonic() < deadline, f"never {line}"
        time.sleep(0.02)


@pytest.mark.parametrize(
    ("status", "count", "refused", "code", "requeued"),
    [(0, 0, 0, 0, False), (75, 0, 0, 0, True), (75, 2, 0, 0, True), (75, 3, 0, 75, False), (75, 0, 1, 75, True)]
    + [(1, 0, 0, 1, False), (2, 0, 0, 2, False), (137, 1, 0, 137, False)],
)
def test_a_batch_job_starts_again_only_after_a_checkpoint_and_so_many_times(
    place, status, count, refused, code, requeued
):
    environment = SLURM | {"SLURM_RESTART_COUNT": str(count), "REFUSED": str(refused)}
    process = begin(place, "slurm/plain.sbatch", [status], **environment)
    found, output, calls = end(place, process)
    assert found == code, output
    assert ("scontrol requeue 7" in calls) == requeued
    assert ("submit it again to go on" in output) == (code == 75)
    assert re.search(rf"job 7: on n\[1-2\], restart {count} of at most 3", output)
    assert "hybridmpi train jobs/lm.toml --resume --set world.servers=2" in calls[0] and "--mpi=pmix" in calls[0]


@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGUSR2, signal.SIGTERM])
def test_a_signal_to_the_batch_script_reaches_srun(place, number):
    """All ask for a checkpoint; a job that scancel ends, by TERM, does not come back."""
    process = begin(
        place, "slurm/requeue.sbatch", ["wait"], [(".venv-mpich", ".venv"), ("sleep 2", "sleep 0.2")], **SLURM
    )
    wait_for(place, "ready")
    process.send_signal(number)
    code, output, calls = end(place, process)
    assert (code, calls[-1]) == ((75, "asked") if number == signal.SIGTERM else (0, "scontrol requeue 7")), output
    assert "the ranks are asked for a checkpoint" in output


@pytest.mark.parametrize("task", range(6))
def test_each_task_of_an_array_has_its_settings(place, task):
    process = begin(place, "slurm/array.sbatch", [0], **SLURM, SLURM_ARRAY_TASK_ID=str(task))
    code, output, calls = end(place, process)
    rate, seed = ("0.01", "0.02", "0.05")[task // 2], 1 + task % 2
    assert code == 0, output
    assert f"--set optimizer.rate={rate} --set training.seed={seed} " in calls[0]
    assert calls[0].endswith(f"checkpoint.directory=runs/lm/rate-{rate}_seed-{seed}")


def test_the_servers_of_a_heterogeneous_job_are_the_ranks_of_its_first_part(place):
    parts = {"SLURM_NTASKS_HET_GROUP_0": "4", "SLURM_CPUS_PER_TASK_HET_GROUP_0": "8"}
    code, output, calls = end(place, begin(place, "slurm/heterogeneous.sbatch", [0], **SLURM, **parts))
    assert code == 0, output
    assert calls[0].count("--set world.servers=[0,1,2,3]") == 2 and " : --het-group=1 --cpus-per-task=1 " in calls[0]


def test_what_the_script_sets_reaches_the_ranks_whatever_sbatch_was_told(place):
    (place / "bin" / "srun").write_text('#!/bin/bash\necho "$SLURM_EXPORT_ENV" >> calls\n')
    code, output, calls = end(place, begin(place, "slurm/plain.sbatch", [0], **SLURM, SLURM_EXPORT_ENV="NONE"))
    assert (code, calls) == (0, ["ALL"]), output


def test_a_batch_script_without_its_environment_says_so(place):
    process = begin(place, "slurm/plain.sbatch", [0], [("BIN=.venv/bin", "BIN=elsewhere")], **SLURM)
    output, _ = process.communicate(timeout=30)
    assert process.returncode == 2 and "no command elsewhere/hybridmpi on" in output and "EDIT 2" in output


@pytest.mark.parametrize(
    ("statuses", "code", "starts"), [([0], 0, 1), ([75, 1, 0], 0, 3), ([2], 2, 1), ([1, 75, 1, 137], 1, 3)]
)
def test_until_done_starts_again_so_many_times(place, statuses, code, starts):
    edits = [("STARTS=10", "STARTS=3"), ("PAUSE=10", "PAUSE=0")]
    found, output, calls = end(place, begin(place, "mpirun/until-done.sh", statuses, edits))
    assert (found, len(calls)) == (code, starts), output
    assert set(calls) == {"hybridmpi launch -n 3 -- train jobs/lm.toml --resume"}


def test_who_ends_until_done_gets_a_checkpoint_and_no_further_start(place):
    process = begin(place, "mpirun/until-done.sh", ["wait", 0], [("PAUSE=10", "PAUSE=0")])
    wait_for(place, "ready")
    process.send_signal(signal.SIGTERM)
    code, output, calls = end(place, process)
    assert code == 75 and calls[1:] == ["ready", "asked"], output


def test_scripts_without_a_scheduler(place):
    code, output, calls = end(place, begin(place, "mpirun/one-machine.sh", [0]))
    assert code == 0 and calls == ["hybridmpi launch -n 3 -- train jobs/lm.toml --resume"], output
    ssh = place / "bin" / "ssh"
    ssh.write_text('#!/bin/bash\n[ "$5" != node2 ]\n')
    ssh.chmod(0o755)
    process = begin(place, "mpirun/hosts.sh", [0])
    code, output, calls = end(place, process)
    assert code == 2 and "node2 cannot be reached by ssh without a password" in output and len(calls) == 1
    ssh.write_text("#!/bin/bash\n")
    code, output, calls = end(place, begin(place, "mpirun/hosts.sh", [0]))
    assert code == 0 and calls[1].startswith("hybridmpi launch -n 8 --hosts node1:4,node2:4 -- train"), output
