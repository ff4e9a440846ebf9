"""Singletons: processes that MPI takes for the only rank, where Slurm was to start several."""

from __future__ import annotations

import time
from collections.abc import Mapping

from hybridmpi.environment import hint, inherited
from hybridmpi.errors import LaunchError
from hybridmpi.failures import STAND_BACK_SECONDS_OF_OTHERS
from hybridmpi.mpi_implementations import PLUGINS as OF_MPIS
from hybridmpi.mpi_implementations import STARTED

PLUGINS = f"srun {OF_MPIS} (srun --mpi=list shows what there is)"


def refuse_singletons(size: int, environment: Mapping[str, str] | None = None) -> None:
    """Raise LaunchError if Slurm has given this program several tasks and MPI, by its world's `size`, one rank. Local.

    `srun` with the wrong PMI plugin starts N jobs of one rank each, all of which would train the whole data, write
    the same checkpoint and exit 0. Each of them finds this, and the first says so; the others leave by SystemExit. A
    batch script that calls Python itself starts one process where N were asked for. In a shell that salloc has opened,
    one process may be meant. A variable of Slurm that holds no number is taken for not set.
    """
    environment = inherited() if environment is None else environment
    if size > 1 or any(name in environment for name in STARTED):
        return
    in_step, in_batch_script = "SLURM_STEP_NUM_TASKS" in environment, "SLURM_PROCID" in environment
    tasks = hint("SLURM_STEP_NUM_TASKS" if in_step else "SLURM_NTASKS", environment) or 1
    if tasks == 1 or not (in_step or in_batch_script):
        return
    if not in_step:
        raise LaunchError(
            f"this job has {tasks} tasks, and its batch script has started this process by itself, as the only rank. "
            f"Start it with {PLUGINS}, or with hybridmpi launch -n {tasks} -- ...; with srun -n 1 where one process is "
            "meant"
        )
    if hint("SLURM_PROCID", environment):
        time.sleep(STAND_BACK_SECONDS_OF_OTHERS)  # srun may end the first task when another has left, before it spoke
        raise SystemExit(LaunchError.exit_code)
    raise LaunchError(
        f"Slurm started {tasks} tasks in this step, but MPI sees one rank: srun and this MPI do not share a PMI, "
        f"so {tasks} separate jobs would run. Use {PLUGINS}, or start the ranks with hybridmpi launch or mpirun in a "
        "batch script; 'hybridmpi doctor', started in the same way, says which"
    )
