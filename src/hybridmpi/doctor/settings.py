"""Environment variables that are known to hurt, and those that hold no number where one belongs."""

from __future__ import annotations

import re
from collections.abc import Mapping

from hybridmpi.doctor.finding import Finding, ok, warn
from hybridmpi.environment import hint
from hybridmpi.mpi_implementations import IMPLEMENTATIONS, Implementation

# What is known to make ranks slow or wrong, whatever the MPI, and what it does.
HURTFUL = {
    "NUMBA_DISABLE_JIT": ("1", "kernels run as plain Python, hundreds of times slower"),
    "NUMBA_ENABLE_CUDASIM": ("1", "CUDA kernels are simulated on the CPU"),
    "HDF5_USE_FILE_LOCKING": ("TRUE", "HDF5 insists on locks, which NFS and Lustre may refuse"),
}
NUMBERS = (
    *dict.fromkeys(name for each in IMPLEMENTATIONS for name in (each.size, each.rank, each.local_rank)),
    "SLURM_JOB_NUM_NODES", "SLURM_NTASKS", "SLURM_STEP_NUM_TASKS", "SLURM_PROCID", "SLURM_LOCALID", "SLURM_HET_SIZE",
    "OMP_NUM_THREADS", "NUMBA_NUM_THREADS",
)  # fmt: skip
"""Variables that hybridmpi, or what it stands on, reads numbers from."""


def probe(environment: Mapping[str, str], mpi: Implementation | None) -> list[Finding]:
    """Return what variables hurt, with the MPI that is loaded, if it is known. Local, pure."""
    bad = {
        name: why
        for name, (value, why) in {**HURTFUL, **(mpi.hurtful if mpi else {})}.items()
        if environment.get(name, "").lower() in {value.lower(), {"1": "true", "0": "false"}.get(value, value.lower())}
    }
    if environment.get("OMP_PROC_BIND", "false").lower() not in ("false", "0"):
        bad["OMP_PROC_BIND"] = "the threads of all ranks may be bound to the same cores"
    if environment.get("OMP_WAIT_POLICY", "").lower() == "active":
        bad["OMP_WAIT_POLICY"] = "idle threads of BLAS spin"
    if mpi and (components := environment.get(mpi.components)):
        named = re.split(r"[,^]", components)
        if (mpi.shared_memory in named) == components.startswith("^") and len(named) > 1:
            bad[mpi.components] = "ranks of one node talk through the network instead of shared memory"
    for name in NUMBERS:
        value = environment.get(name, "").partition(",")[0]  # OpenMP takes a number for each level
        if value.strip() and hint(name, {name: value}) is None:
            bad[name] = "is no whole number, and is taken for not set"
    if bad:
        text = "; ".join(f"{name}={environment[name]}: {why}" for name, why in bad.items())
        return [warn("variables", text, f"unset {' '.join(bad)}")]
    return [ok("variables", "none that is known to hurt")]
