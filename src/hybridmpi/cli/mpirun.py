"""The command that starts ranks: which MPI this Python has, where its launcher is, what it must be told here.

What an MPI must be told stands in `hybridmpi.mpi_implementations`; when it is told so, in `command_line`, which is a
pure function of a `Situation`.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from hybridmpi.children import python
from hybridmpi.cores import usable_cores
from hybridmpi.environment import inherited, number, text
from hybridmpi.errors import LaunchError, UsageError
from hybridmpi.folders import home
from hybridmpi.mpi_implementations import HOW_TO_INSTALL, Implementation, of_launcher, of_library
from hybridmpi.mpi_start import has_fabric
from hybridmpi.wording import one_line, telling

THREADS = ("OMP_NUM_THREADS", "NUMBA_NUM_THREADS")
"""OpenBLAS, MKL and BLIS follow the first; numba only its own."""
CARRIED = ("PYTHONPATH", "LD_LIBRARY_PATH", "XDG_CACHE_HOME", "NUMBA_CACHE_DIR", *THREADS)
"""What a remote rank needs of the user's environment; Hydra passes all of it, Open MPI only what is named."""
PROBE = """
import json, mpi4py
mpi4py.rc.initialize = False
from mpi4py import MPI
from hybridmpi.mpi_files import loaded_libraries
print(json.dumps([MPI.Get_library_version(), loaded_libraries()]))
"""
SECONDS = 30
"""What a launcher may take to say whose it is."""


@dataclass(frozen=True, slots=True)
class Library:
    """The MPI that mpi4py loads: which it is, its `version` such as 5.0.11, the path of the shared library, or ""."""

    mpi: Implementation
    version: str
    path: str

    def __str__(self) -> str:
        return f"{self.mpi} {self.version}" + (f" ({self.path})" if self.path else "")


@dataclass(frozen=True, slots=True)
class Situation:
    """Everything that the command line depends on.

    `hosts`: (name, ranks there), empty for this host or for what a batch system gave; `nodes`: how many hosts there are
    in either case; `cores`: of one host, all taken to be alike; `fabric`: whether there is a network that is not TCP;
    `home`: the folder that stands for a home where the environment names none.
    """

    mpi: Implementation
    launcher: str
    ranks: int
    command: Sequence[str]
    hosts: Sequence[tuple[str, int]] = ()
    nodes: int = 1
    cores: int = 1
    root: bool = False
    fabric: bool = False
    environment: Mapping[str, str] = field(default_factory=dict)
    home: str = ""


def situation_here(
    library: Library,
    launcher: str,
    ranks: int,
    command: Sequence[str],
    hosts: Sequence[tuple[str, int]] = (),
    nodes: int = 1,
) -> Situation:
    """Return the Situation of this host. Local."""
    return Situation(
        library.mpi,
        launcher,
        ranks,
        command,
        hosts,
        nodes,
        cores=usable_cores(),
        root=os.geteuid() == 0,
        fabric=has_fabric(),
        environment=inherited(),
        home=home(),
    )


def nodes_of_batch_job() -> int:
    """Return the number of nodes that Slurm has given to this job, 1 outside of one. Local. Raises UsageError where
    its variable holds something else."""
    return number("SLURM_JOB_NUM_NODES", least=1) or 1


def command_line(situation: Situation) -> tuple[dict[str, str], list[str]]:
    """Return (environment assignments, argv). Local, pure. What the user has set in the environment is left alone."""
    s, mpi = situation, situation.mpi
    busiest = max((ranks for _, ranks in s.hosts), default=-(-s.ranks // s.nodes))
    wanted: dict[str, str] = {}
    if not any(name in s.environment for name in THREADS):  # else BLAS starts a thread per core in every rank
        wanted |= dict.fromkeys(THREADS, str(max(1, s.cores // busiest)))
    wanted |= mpi.always
    if s.nodes == 1:
        wanted |= mpi.one_host
    elif not s.fabric:
        wanted |= mpi.without_fabric
    if busiest > s.cores:
        wanted |= mpi.crowded
    if s.root:
        wanted |= mpi.as_root
    if mpi.needs_home and s.home:
        wanted["HOME"] = s.home
    assignments = {name: value for name, value in wanted.items() if name not in s.environment}

    argv = [s.launcher, "-n", str(s.ranks), *mpi.unbound]
    if s.hosts:
        argv += [mpi.hosts, ",".join(f"{name}:{ranks}" for name, ranks in s.hosts)]
        carried = [name for name in CARRIED if name in s.environment and name not in assignments]
        for name in [*assignments, *carried] if mpi.carry else ():
            if name not in mpi.as_root and name != "HOME":  # these are the launcher's
                argv += [mpi.carry, name]
    elif s.nodes == 1:
        argv += mpi.many
    return assignments, [*argv, *s.command]


def parse_hosts(text: str, ranks: int) -> list[tuple[str, int]]:
    """Return (name, ranks there) for "a,b" (ranks spread evenly) or "a:4,b:4" (filled in order). Local.

    Hosts that get no rank are left out. Raises UsageError for other text, a host named twice, or too few places.
    """
    parts = [re.fullmatch(r"([\w.-]+)(?::([1-9]\d*))?", part.strip()) for part in text.split(",")]
    if not all(parts) or len({bool(part[2]) for part in parts}) != 1:
        raise UsageError(
            f"--hosts {text or chr(34) * 2}: expected names such as a,b or names with numbers of ranks such as a:4,b:4"
        )
    names = [part[1] for part in parts]
    if len(set(names)) != len(names):
        raise UsageError(f"--hosts {text}: a host is named twice; give it a number of ranks instead, such as a:2")
    if not parts[0][2]:
        share, more = divmod(ranks, len(names))
        placed = [(name, share + (i < more)) for i, name in enumerate(names)]
    else:
        placed, left = [], ranks
        for part in parts:
            placed.append((part[1], min(left, int(part[2]))))
            left -= placed[-1][1]
        if left:
            raise UsageError(f"--hosts {text} has places for {ranks - left} ranks, {ranks} were asked for: raise them")
    return [(name, count) for name, count in placed if count]


def find_library() -> Library:
    """Return the MPI that mpi4py loads, asked in a child process: MPI must not be loaded here. Local.

    Raises LaunchError when mpi4py or its MPI cannot be loaded, or the MPI is not one that we know how to start.
    """
    try:
        child = subprocess.run(
            python("-c", PROBE), capture_output=True, text=True, errors="replace", timeout=4 * SECONDS
        )
    except subprocess.TimeoutExpired:
        raise LaunchError(
            f"mpi4py does not load MPI in {sys.executable} within {4 * SECONDS} s: look at the file system that it "
            "lies on"
        ) from None
    if child.returncode:
        reason = (child.stderr.strip() or f"exit status {child.returncode}").splitlines()[-1]
        raise LaunchError(f"mpi4py cannot load MPI in {sys.executable}: {reason}. {HOW_TO_INSTALL}")
    says, files = json.loads(child.stdout.splitlines()[-1])
    path = files[0] if files else ""
    if known := of_library(says):
        return Library(*known, path)
    raise LaunchError(
        f"mpi4py loads an MPI that 'launch' does not know: {says.splitlines()[0].strip()} {path}. Start the ranks "
        f"with its own launcher, for example: mpiexec -n 3 {sys.executable} -m hybridmpi train jobs/lm.toml"
    )


def find_launcher(library: Library, search_path: str | None = None) -> str:
    """Return the path of the launcher that belongs to `library`. Local.

    Looked for beside this Python, in the library's own installation, then on `search_path` (default: $PATH). The
    launcher of another MPI would start as many jobs of one rank each: raises LaunchError that names those found.
    """
    mpi = library.mpi
    prefix = [str(Path(library.path).parents[up] / "bin") for up in (1, 2)] if library.path.count("/") > 2 else []
    places = [str(Path(sys.executable).parent), *prefix, search_path or text("PATH") or os.defpath]
    others = []
    for place in places:
        for name in mpi.launchers:
            if launcher := shutil.which(name, path=place):
                found, says = identify(launcher)
                if found is not None and found[0] is mpi and _major(found[1]) == _major(library.version):
                    return launcher
                if (other := f"{launcher} {says}") not in others:
                    others.append(other)
    raise LaunchError(
        f"mpi4py loads {library}, and its launcher was not found ("
        + ("; ".join(others) or f"no {' or '.join(mpi.launchers[:2])} at all")
        + f"). Install it beside this Python: pip install {mpi.package}=={library.version}, or put the "
        "one that belongs to it first on PATH"
    )


def _major(version: str) -> str:
    return version.split(".")[0]


def identify(launcher: str) -> tuple[tuple[Implementation, str] | None, str]:
    """Return ((MPI, version) of a launcher, None where it does not say; what to say of it, such as "is of MPICH 4.0.2",
    or its own words where it fails). Local."""
    environment = {"HOME": home(), **inherited()}
    try:
        child = subprocess.run(
            [launcher, "--version"], capture_output=True, text=True, errors="replace", timeout=SECONDS, env=environment
        )
    except OSError as error:
        return None, f"cannot be started: {error.strerror}"
    except subprocess.TimeoutExpired:
        return None, f"--version does not end within {SECONDS} s"
    if found := of_launcher(child.stdout):
        return found, f"is of {found[0]} {found[1]}"
    if child.returncode:
        return None, f"--version fails: {telling(child.stderr + child.stdout) or f'exit status {child.returncode}'}"
    return None, f"is of an MPI that is not known: {one_line(child.stdout)[:100] or 'it says nothing'}"
