"""Where the MPI library of this process lies."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

from hybridmpi.mpi_implementations import Implementation

MAPS = Path("/proc/self/maps")


def loaded_libraries() -> list[str]:
    """Return the paths of the MPI libraries in this process, different files only; [] where the system hides it. Local.

    The names are those of Open MPI, MPICH and its relatives; libmpi_abi and the Fortran and C++ parts belong to one.
    """
    if not MAPS.exists():
        return []
    paths = {line.split()[-1] for line in MAPS.read_text().splitlines() if "/libmpi" in line}
    main = (path for path in paths if re.search(r"/libmpi(ch)?\.so", path))
    found = sorted({os.path.realpath(path) for path in main}) or sorted(paths)[:1]
    return [path.replace(str(Path(sys.prefix).resolve()), sys.prefix) for path in found]


def is_wheel(library: str) -> bool:
    """Return whether a library was installed into this Python's environment, as a wheel is. Local."""
    return Path(library).is_relative_to(sys.prefix)


def moved_to(mpi: Implementation) -> str:
    """Return the folder of an MPI that was moved and must be told so, "" for others. Local."""
    for library in loaded_libraries() if mpi.prefix else ():
        folder = Path(library).parent.parent
        if is_wheel(library) and (folder / "bin" / mpi.moved).exists():
            return str(folder)
    return ""
