"""Who started this process, and as which rank, as far as the environment tells: before and without MPI."""

from __future__ import annotations

from collections.abc import Mapping

from hybridmpi.environment import hint
from hybridmpi.mpi_implementations import IMPLEMENTATIONS

SRUN = ("SLURM_STEP_NUM_TASKS", "SLURM_PROCID")
"""Variables that srun sets to the number of ranks and to the rank; with --mpi=pmi2 it sets those of MPICH too."""


def started_by(environment: Mapping[str, str]) -> tuple[str, int, int]:
    """Return (launcher in words, rank, number of ranks) as the launcher tells; ("", 0, 1) without one. Local, pure.

    What sets the variables of several launchers is known by the one that only it sets. A variable that holds no number
    tells nothing.
    """
    tasks = hint(SRUN[0], environment) or 1
    marked = [each for each in IMPLEMENTATIONS if each.mark in environment]
    for mpi in marked or (IMPLEMENTATIONS if tasks == 1 else ()):
        if size := hint(mpi.size, environment):
            return mpi.starter, hint(mpi.rank, environment) or 0, size
    # An interactive shell is one task too; a component of a heterogeneous job may be.
    if tasks > 1 or (SRUN[0] in environment and (hint("SLURM_HET_SIZE", environment) or 1) > 1):
        return "srun", hint(SRUN[1], environment) or 0, tasks
    return "", 0, 1
