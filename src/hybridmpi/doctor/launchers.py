"""Who started this process, and as which rank, as far as the environment tells: before and without MPI."""

from __future__ import annotations

from collections.abc import Mapping

STARTERS = (
    ("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "Open MPI's mpirun"),
    ("PMI_SIZE", "PMI_RANK", "MPICH's mpiexec"),
    ("SLURM_STEP_NUM_TASKS", "SLURM_PROCID", "srun"),
)
"""Variables that a launcher sets to the number of ranks and to the rank; srun --mpi=pmi2 sets those of MPICH too."""


def started_by(environment: Mapping[str, str]) -> tuple[str, int, int]:
    """Return (launcher in words, rank, number of ranks) as the launcher tells; ("", 0, 1) without one. Local, pure."""
    step = environment.get("SLURM_STEP_NUM_TASKS", "1")
    for size, rank, name in STARTERS:
        if environment.get(size, "").isdigit():
            if name == "srun" and int(step) == 1 and int(environment.get("SLURM_HET_SIZE", 1)) == 1:
                continue  # an interactive shell is one task too; a component of a heterogeneous job may be
            if "mpirun" not in name and int(step) > 1:
                name, size, rank = "srun", "SLURM_STEP_NUM_TASKS", "SLURM_PROCID"
            return name, int(environment.get(rank, 0)), int(environment[size])
    return "", 0, 1
