"""Jobs under a real Slurm (slurm_cluster.py): one world, wrong ways to start one, signals, requeues, all templates."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from launching import ROOT, Outcome, kill_session
from runs import Run, arguments, assert_whole, finished, write_job
from slurm_cluster import Job, SlurmCluster, reason_against

from hybridmpi.cli.mpirun import OPEN_MPI, find_library

STEPS = 500
SETS = ("world.servers=1", "sparse.mode=ps", "sparse.partition=cyclic", f"training.steps={STEPS}")
TWO_BY_TWO = ("--nodes=2", "--ntasks-per-node=2")
FAMILY = find_library().family
PLUGIN, OTHER = ("pmix", "pmi2") if FAMILY == OPEN_MPI else ("pmi2", "pmix")


@pytest.fixture(autouse=True)
def _idle(slurm):
    """Every test finds idle nodes."""
    yield
    slurm.end_jobs()


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    """A job file, and a cache of its own: of one choice of all-reduce, so that all runs here sum in the same order."""
    folder = tmp_path_factory.mktemp("job")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(folder / "xdg"))
        yield write_job(folder)


def train(job: Path, name: str, *sets: str) -> list[str]:
    """Return the command line of a rank that trains `job` as `name`."""
    return [sys.executable, *arguments(job, name, *SETS, *sets)]


@pytest.fixture(scope="module")
def whole(slurm, job) -> Run:
    """An uninterrupted run of 4 ranks on 2 nodes."""
    line = ["srun", *TWO_BY_TWO, f"--mpi={PLUGIN}", *train(job, "whole")]
    return finished(job, "whole", slurm.run(line, timeout=60))


def test_srun_makes_one_world(whole):
    assert "plan: 3 compute ranks, 1 server, 2 nodes" in whole.outcome.output
    assert [line["step"] for line in whole.of_kind("step")] == list(range(1, STEPS + 1))
    assert_whole(whole.directory)


def test_launch_in_a_batch_script_does_the_same(slurm, job, whole):
    """mpirun takes the hosts and the places on them from Slurm: the same ranks, the same bits."""
    line = [sys.executable, "-m", "hybridmpi", "launch", "-n", "4", "--", *train(job, "launched")]
    batch = slurm.submit(*TWO_BY_TWO, "--wrap", " ".join(line), output=job.parent / "launched.txt")
    assert batch.wait() == ("COMPLETED", 0), batch.report()
    assert "plan: 3 compute ranks, 1 server, 2 nodes" in batch.written()
    assert finished(job, "launched", None).losses == whole.losses
