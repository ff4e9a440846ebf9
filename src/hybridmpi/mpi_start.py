"""Starting MPI in this process: the thread level, and what the library that mpi4py loads must be told first."""

from __future__ import annotations

import os
import sys
from typing import Any

from hybridmpi import environment
from hybridmpi.errors import LaunchError
from hybridmpi.folders import home
from hybridmpi.mpi_files import moved_to
from hybridmpi.mpi_implementations import HOW_TO_INSTALL, RANKED, Implementation, of_library

# Where the kernel lists network devices that MPI drives by more than TCP.
FABRICS = ("/sys/class/infiniband", "/sys/class/cxi")


def load_mpi() -> Any:
    """Import and return mpi4py's MPI with the thread level that hybridmpi needs. Local.

    Only the main thread calls MPI, so FUNNELED is enough; mpi4py would ask for MULTIPLE, which some one-sided
    components refuse. The level can only be chosen before the first import. Raises LaunchError without an MPI.
    """
    first = "mpi4py.MPI" not in sys.modules
    try:
        import mpi4py

        if first:  # what MPI must be told before it starts depends on which one it is
            mpi4py.rc.initialize = False
            mpi4py.rc.finalize = True
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        raise LaunchError(
            f"no MPI library could be loaded ({error}). {HOW_TO_INSTALL}; 'hybridmpi doctor' says what else is amiss"
        ) from error
    if not MPI.Is_initialized():
        known = of_library(MPI.Get_library_version())
        # For the start only: ranks that this process may start later must not believe that they are alone.
        with environment.defaults(variables_of_process(known[0]) if known else {}):
            MPI.Init_thread(MPI.THREAD_FUNNELED)
    if MPI.Query_thread() < MPI.THREAD_FUNNELED:
        raise LaunchError(
            "MPI runs at thread level SINGLE, hybridmpi needs FUNNELED: "
            "import hybridmpi before mpi4py.MPI, or set mpi4py.rc.thread_level = 'funneled' first"
        )
    return MPI


def variables_of_process(mpi: Implementation) -> dict[str, str]:
    """Return what a process must tell `mpi` by variables before it starts it, whatever has started the process. Local.

    What ranks send messages by must be the same on all hosts: only a process alone can choose it here.
    """
    if not any(environment.text(name) for name in RANKED):
        wanted = dict(mpi.alone)
    else:
        wanted = {} if has_fabric() else dict(mpi.for_windows)
    if mpi.needs_home:
        wanted["HOME"] = home()
    if prefix := moved_to(mpi):
        wanted[mpi.prefix] = prefix
    return wanted


def has_fabric() -> bool:
    """Return whether this host has a network device that MPI drives by more than TCP (InfiniBand, Slingshot). Local."""
    return any(os.path.isdir(folder) and os.listdir(folder) for folder in FABRICS)
