"""The MPI library: which file, whose build, whether mpi4py fits to it, its thread level, and who started the ranks."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hybridmpi import environment as variables
from hybridmpi.doctor.finding import Finding, fail, ok
from hybridmpi.doctor.launchers import started_by
from hybridmpi.errors import LaunchError
from hybridmpi.mpi_files import is_wheel, loaded_libraries
from hybridmpi.mpi_implementations import IMPLEMENTATIONS, THREAD_VARIABLES, Implementation, of_library
from hybridmpi.mpi_start import load_mpi
from hybridmpi.wording import one_line

THREAD_LEVELS = ("SINGLE", "FUNNELED", "SERIALIZED", "MULTIPLE")


def found_before_its_start() -> tuple[str, str] | None:
    """Return (name, version) of the MPI that mpi4py loads, which is not started yet; None where none can be loaded, or
    it is not known. Local."""
    try:
        import mpi4py

        mpi4py.rc.initialize, mpi4py.rc.finalize = False, True
        from mpi4py import MPI
    except (ImportError, RuntimeError):
        return None
    found = known(MPI)
    return (found[0].name, found[1]) if found else None


def load() -> tuple[Any, list[Finding]]:
    """Return (mpi4py's MPI, initialised, or None where it cannot be used; what was found). Local.

    What cannot be used, by its version or its thread level, is explained by a `fail`.
    """
    try:
        mpi = load_mpi()
    except LaunchError as error:
        mpi = sys.modules.get("mpi4py.MPI")
        if mpi is None or not mpi.Is_initialized():
            text, _, remedy = one_line(error).partition(". Install one")
            return None, [fail("MPI", text, f"install one{remedy}")]
        return None, [*describe(mpi), _thread_level(mpi)]
    return mpi, [*describe(mpi), _thread_level(mpi)]


def known(mpi: Any) -> tuple[Implementation, str] | None:
    """Return (entry, version) of the library; None for one that is not known. Local."""
    return of_library(mpi.Get_library_version())


def name_of(mpi: Any) -> str:
    """Return the library's name and version; the first words that it says of itself where it is not known. Local."""
    if found := known(mpi):
        return f"{found[0]} {found[1]}"
    return mpi.Get_library_version().splitlines()[0].split(",")[0].strip()[:60]


def describe(mpi: Any) -> list[Finding]:
    """Return the library's version, file and build, and whether mpi4py was made for it. Local."""
    version = name_of(mpi)
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
    return [*found, _made_for(mpi, version)]


def _made_for(mpi: Any, version: str) -> Finding:
    """Return whether mpi4py fits: its wheel has a form for Open MPI and one for MPICH's ABI, else it was built here."""
    what, compiled, running = "mpi4py's ABI", (mpi.VERSION, mpi.SUBVERSION), mpi.Get_version()
    remedy = (
        f"{sys.executable} -m pip install --force-reinstall --no-cache-dir mpi4py; with --no-binary mpi4py, and the "
        "mpicc of the MPI meant first on PATH, it is built for that one"
    )
    offered = f"MPI {running[0]}.{running[1]} is offered"
    form = re.match(r"MPI\.(mpich|openmpi)\.", Path(getattr(mpi, "__file__", None) or "").name)
    made_for = {"mpich": "MPICH's ABI", "openmpi": "Open MPI's ABI"}[form[1]] if form else mpi.get_vendor()[0]
    here = known(mpi)
    right = here is None or (form[1] == here[0].wheel if form else made_for in (here[0].name, "unknown"))
    if not right and (form or made_for in {each.name for each in IMPLEMENTATIONS}):
        return fail(what, f"made for {made_for}, but {version} is loaded", remedy)
    if running < compiled[:1]:
        return fail(
            what, f"made for MPI {compiled[0]}.{compiled[1]}, the library offers {running[0]}.{running[1]}", remedy
        )
    has = f", which {here[0]} has" if form and here and here[0].name not in made_for else ""
    return ok(what, f"made for {made_for}{has}; {offered}")


def build_of(path: str) -> str:
    """Return where a library file comes from: wheel, conda, system or module. Local, pure."""
    if Path(path).is_relative_to(variables.text("CONDA_PREFIX") or "/nowhere") or "/conda" in path:
        return "conda"
    if is_wheel(path):
        return "wheel"
    return "system" if path.startswith(("/usr/lib", "/lib")) else "built or module"


def _thread_level(mpi: Any) -> Finding:
    level = THREAD_LEVELS[[getattr(mpi, f"THREAD_{name}") for name in THREAD_LEVELS].index(mpi.Query_thread())]
    named = {name: value for name in THREAD_VARIABLES if (value := variables.text(name))}
    told = ", ".join(f"{name}={value}" for name, value in named.items())
    if level == "SINGLE":
        why = f": {told}" if told else "; MPI was loaded before hybridmpi asked, or was built without threads"
        remedy = f"unset {' '.join(named)}" if told else (
            "import hybridmpi before mpi4py.MPI (look for a sitecustomize), or use an MPI built with threads"
        )  # fmt: skip
        return fail("thread level", f"MPI offers SINGLE, FUNNELED is needed{why}", remedy)
    return ok("thread level", f"{level}" + (", FUNNELED is needed" if level != "FUNNELED" else ", as needed"))


def ranks(mpi: Any, environment: Mapping[str, str] | None = None) -> list[Finding]:
    """Return whether MPI knows as many ranks as the launcher started. Local."""
    launcher, _, told = started_by(variables.inherited() if environment is None else environment)
    size = mpi.COMM_WORLD.Get_size()
    if not launcher:
        return [ok("ranks", "one process, no launcher")]
    if size >= told:  # of a heterogeneous job srun tells a task only the number of its component
        return [ok("ranks", f"{size}, started by {launcher}")]
    name, found = name_of(mpi), known(mpi)
    if launcher == "srun":
        plugin = found[0].plugin if found else "pmix or pmi2"
        return [fail(
            "ranks", f"srun started {told} tasks, but MPI sees {size} rank in each: srun and {name} share no PMI, "
            f"so {told} separate jobs would run", f"srun --mpi={plugin} (srun --mpi=list shows what there is), or "
            "hybridmpi launch inside sbatch",
        )]  # fmt: skip
    return [fail(
        "ranks", f"{launcher} started {told} processes, but each is alone: mpi4py loads {name}, whose launcher "
        f"is another, so {told} separate jobs would run", f"hybridmpi launch -n {told} -- ...: it finds the launcher "
        "that belongs to this MPI",
    )]  # fmt: skip
