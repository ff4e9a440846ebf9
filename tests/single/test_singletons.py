"""Processes that are alone and should not be: what Slurm's variables say of how they were started."""

import pytest

from hybridmpi import singletons
from hybridmpi.errors import LaunchError
from hybridmpi.singletons import refuse_singletons

# As Slurm 22.05 sets them, but for those that have no part in it.
SALLOC = {"SLURM_JOB_ID": "8", "SLURM_NTASKS": "4", "SLURM_NPROCS": "4", "SLURM_TASKS_PER_NODE": "3,1"}
SCRIPT = {**SALLOC, "SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_NODEID": "0"}
STEP = {**SCRIPT, "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "4"}


@pytest.mark.parametrize(
    ("size", "environment"),
    [
        (1, {}),
        (1, SALLOC),
        (4, STEP),
        (1, {**STEP, "SLURM_STEP_NUM_TASKS": "1"}),  # srun -n 1, srun --pty
        (1, {**SCRIPT, "SLURM_NTASKS": "1"}),
        (1, {name: value for name, value in SCRIPT.items() if name != "SLURM_NTASKS"}),  # sbatch -N 2
        (4, {**SCRIPT, "OMPI_COMM_WORLD_SIZE": "4"}),
        (1, {**SCRIPT, "OMPI_COMM_WORLD_SIZE": "1"}),  # mpirun -n 1
        (1, {**STEP, "SLURM_STEP_NUM_TASKS": "2", "OMPI_COMM_WORLD_SIZE": "1"}),  # its daemons are a step
        (1, {**STEP, "SLURM_STEP_NUM_TASKS": "2", "HYDI_CONTROL_FD": "6"}),
        (1, {"SLURM_STEP_NUM_TASKS": "many"}),
    ],
)
def test_what_may_be_alone(size, environment):
    refuse_singletons(size, environment)


@pytest.mark.parametrize(
    ("environment", "words"),
    [
        (STEP, "Slurm started 4 tasks in this step, but MPI sees one rank"),
        (SCRIPT, r"this job has 4 tasks, and its batch script has .* with hybridmpi launch -n 4 -- "),
    ],
)
def test_what_is_alone_by_mistake(environment, words):
    with pytest.raises(LaunchError, match=words + ".*") as caught:
        refuse_singletons(1, environment)
    assert "srun --mpi=pmix for Open MPI, --mpi=pmi2 for MPICH" in str(caught.value)


def test_the_first_of_them_speaks(monkeypatch):
    waited = []
    monkeypatch.setattr(singletons.time, "sleep", waited.append)
    with pytest.raises(SystemExit) as caught:
        refuse_singletons(1, {**STEP, "SLURM_PROCID": "3"})
    assert caught.value.code == LaunchError.exit_code and len(waited) == 1
