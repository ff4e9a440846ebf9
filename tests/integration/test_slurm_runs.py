"""Jobs under a real Slurm (slurm_cluster.py): one world, wrong ways to start one, signals, requeues, all templates."""

import re
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from launching import ROOT, Outcome, kill_session, run_process, session_of
from runs import Run, arguments, arrays_of, assert_whole, finished, write_job
from slurm_cluster import Job, SlurmCluster, reason_against

from hybridmpi.checkpoint import Checkpoint
from hybridmpi.cli.mpirun import find_library
from hybridmpi.mpi_implementations import OPEN_MPI

STEPS = 300
SETS = ("sparse.mode=ps", "sparse.partition=cyclic", f"training.steps={STEPS}")
TWO_BY_TWO = ("--nodes=2", "--ntasks-per-node=2")
FAMILY = find_library().mpi.name
OTHER = "pmi2" if FAMILY == OPEN_MPI else "pmix"


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    """A job file, and a cache of its own: of one choice of all-reduce, so that all runs here sum in the same order."""
    folder = tmp_path_factory.mktemp("job")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(folder / "xdg"))
        yield write_job(folder)


def script(job: Path, name: str, *options: str) -> Path:
    """Render the batch script that trains `job` as `name`; return it."""
    path = job.parent / f"{name}.sh"
    sets = [*SETS, f"checkpoint.directory={job.parent / name}", f"metrics.path={job.parent / name}.jsonl"]
    line = [sys.executable, "-m", "hybridmpi", "slurm", "render", str(job), "--output", str(path), "--time=10"]
    outcome = run_process([*line, *(part for text in sets for part in ("--set", text)), *options], 60)
    assert outcome.code == 0, str(outcome)
    return path


def submit(slurm: SlurmCluster, path: Path, number: str = "") -> Job:
    """Submit a rendered script."""
    job = slurm.submit(str(path), output=path.with_suffix(".txt"))
    return replace(job, number=job.number + number)


@pytest.fixture(scope="module")
def whole(slurm, job) -> Run:
    """An uninterrupted run of 4 ranks on 2 nodes."""
    batch = submit(slurm, script(job, "whole", "--nodes=2"))
    assert batch.wait() == ("COMPLETED", 0), batch.report()
    return finished(job, "whole", Outcome(0, batch.written(), 0))


def test_a_rendered_script_trains(whole):
    assert "restart 0 of at most 3" in whole.outcome.output
    assert "plan: 2 compute ranks, 2 servers, 2 nodes" in whole.outcome.output
    assert [line["step"] for line in whole.of_kind("step")] == list(range(1, STEPS + 1))
    assert_whole(whole.directory)


def test_launch_in_a_batch_script_does_the_same(slurm, job, whole):
    """mpirun takes the hosts and the places on them from Slurm: the same ranks, the same bits."""
    line = [sys.executable, "-m", "hybridmpi", "launch", "-n", "4", "--", sys.executable]
    line += arguments(job, "launched", *SETS)
    batch = slurm.submit(*TWO_BY_TWO, "--wrap", " ".join(line), output=job.parent / "launched.txt")
    assert batch.wait() == ("COMPLETED", 0), batch.report()
    assert "plan: 2 compute ranks, 2 servers, 2 nodes" in batch.written()
    assert finished(job, "launched", None).losses == whole.losses


def test_stopped_in_three_ways_it_ends_with_the_same_bits(slurm, job, whole):
    """By the batch script's signal, by one to a single compute rank, by one to a single server: twice it goes back into
    the queue by itself, as often as was allowed, and submitted once more it goes on to the end."""
    path = script(job, "stopped", "--nodes=2", "--restarts=2")
    batch = submit(slurm, path)

    def kill(rank: int, name: str) -> None:
        slurm.hosts.spaces.do("n2", ["kill", f"-{name}", str(batch.pids("n2")[rank])])

    ways = [lambda: batch.cancel("--batch", "--signal=USR1"), lambda: kill(2, "USR2"), lambda: kill(3, "TERM")]
    for restart, stop in enumerate(ways):
        batch.wait_for(rf"(?s)restart {restart} of at most 2.*\nstep \d+ of")
        stop()
        if restart < 2:
            batch.hasten(restart + 1)
    assert batch.wait() == ("FAILED", 75), batch.report()
    assert batch.show()["Restarts"] == "2" and "ended with status 75; submit it again to go on" in batch.written()
    stops = [int(step) for step in re.findall(r"stopped by a signal after step (\d+); checkpoint", batch.written())]
    assert len(stops) == 3 and stops == sorted(set(stops)) and stops[-1] < STEPS, batch.report()

    again = submit(slurm, path)
    assert again.wait() == ("COMPLETED", 0), again.report()
    assert [int(step) for step in re.findall(r"resumed from \S+: step (\d+)", again.written())] == stops
    run = finished(job, "stopped", None)
    assert [line["step"] for line in run.of_kind("step")] == list(range(1, STEPS + 1))
    assert run.losses == whole.losses
    one, other = arrays_of(run.checkpoint()), arrays_of(whole.checkpoint())
    assert one.keys() == other.keys() and all(one[name].tobytes() == other[name].tobytes() for name in one)


def test_cancelled_it_leaves_a_checkpoint_and_does_not_come_back(slurm, job):
    batch = submit(slurm, script(job, "cancelled", "--nodes=2"))
    batch.wait_for(r"^step \d+ of")
    batch.cancel()
    assert batch.wait()[0] == "CANCELLED", batch.report()
    step = int(batch.wait_for(r"stopped by a signal after step (\d+); checkpoint")[1])
    assert finished(job, "cancelled", None).checkpoint().step == step
    time.sleep(1)
    assert batch.show()["JobState"] == "CANCELLED" and batch.show()["Restarts"] == "0", batch.report()


def test_a_heterogeneous_job_serves_from_its_own_nodes(slurm, job):
    options = ("--nodes=1", "--ranks-per-node=2", "--constraint=large", "--set", "training.steps=3")
    servers = ("--server-nodes=2", "--server-directive=constraint=small")
    batch = submit(slurm, script(job, "apart", *options, *servers), "+0")
    # Its srun may never end (Slurm 22.05); the script looks after it every 15 seconds, and ends at the second look.
    assert batch.wait(90) == ("COMPLETED", 0), batch.report()
    assert "plan: 2 compute ranks, 2 servers, 3 nodes" in batch.written()
    (described,) = finished(job, "apart", None).of_kind("run")
    assert described["host"] in ("n3", "n4"), "compute rank 0 is on a large node"


def test_the_tasks_of_an_array_are_runs_of_their_own(slurm, job):
    sweep = ("--sweep=optimizer.rate=0.1,0.2", "--nodes=1", "--ranks-per-node=2", "--set", "training.steps=3")
    path = script(job, "array", *sweep, "--set", "metrics.path=")
    first = submit(slurm, path, "_0")
    second = replace(first, number=first.number.replace("_0", "_1"))
    assert [task.wait() for task in (first, second)] == [("COMPLETED", 0)] * 2, first.report() + second.report()
    rates = [Checkpoint.open(place).meta["optimizer"]["rate"] for place in sorted((job.parent / "array").iterdir())]
    assert rates == [0.1, 0.2]


@pytest.mark.parametrize("plugin", [[f"--mpi={OTHER}"], []], ids=["other", "none"])
def test_srun_without_the_pmi_of_this_mpi_is_refused(slurm, job, plugin):
    """Each task is a world of its own. MPICH refuses PMIx by itself; all else hybridmpi does, in the words of one."""
    outcome = slurm.run(["srun", *TWO_BY_TWO, *plugin, sys.executable, *arguments(job, "wrong")], check=False)
    assert not (job.parent / "wrong").exists()
    if FAMILY != OPEN_MPI and plugin:
        assert outcome.code != 0 and "unsupported PMI version PMIx" in outcome.output, str(outcome)
        return
    assert outcome.code == 2, str(outcome)
    (message,) = re.findall("^hybridmpi: .*", outcome.output, re.MULTILINE)
    assert "Slurm started 4 tasks in this step, but MPI sees one rank" in message
    assert "srun --mpi=pmix for Open MPI, --mpi=pmi2 for MPICH" in message


def test_alone_in_a_batch_script_by_mistake_in_a_shell_on_purpose(slurm, job):
    program = f"{sys.executable} -c 'import hybridmpi as hm; print(hm.World())'"
    batch = slurm.submit("--ntasks=4", "--wrap", program, output=job.parent / "alone.txt")
    assert batch.wait() == ("FAILED", 1), batch.report()
    assert "LaunchError: this job has 4 tasks, and its batch script has started this process by" in batch.written()
    assert "<World rank 0 of 1" in slurm.run(["salloc", "--ntasks=4", "bash", "-c", program]).output
    assert "<World rank 0 of 1" in slurm.run(["srun", "--ntasks=1", "bash", "-c", program]).output


def test_a_slurm_whose_maker_is_killed_leaves_nothing(tmp_path):
    """Daemons, a job and its processes: all are in one PID namespace, which ends."""
    if reason := reason_against():
        pytest.skip(f"no Slurm here: {reason}")
    maker = f"""
import sys, time
sys.path[:0] = {[str(ROOT / "tests"), str(ROOT / "tests" / "integration")]}
from pathlib import Path
from slurm_cluster import SlurmCluster
with SlurmCluster(Path({str(tmp_path)!r})) as slurm:
    job = slurm.submit("--wrap", "echo started; srun sleep 600", output=Path({str(tmp_path / "out")!r}))
    job.wait_for("started")
    print(*slurm.hosts.spaces.members(), flush=True)
    time.sleep(600)
"""
    process = subprocess.Popen([sys.executable, "-c", maker], stdout=subprocess.PIPE, text=True, start_new_session=True)
    try:
        pids = [int(pid) for pid in process.stdout.readline().split()]
        assert len(pids) > 12, "hosts, daemons, a step and what it runs"
        process.kill()
        deadline = time.monotonic() + 5
        while left := [pid for pid in pids if session_of(pid) is not None]:
            assert time.monotonic() < deadline, f"processes {left} are left"
            time.sleep(0.05)
    finally:
        kill_session(process.pid)
        process.communicate()
