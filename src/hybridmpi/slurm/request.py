"""What is asked of a batch script: the job, the ranks, the cluster; and whether it can be."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from hybridmpi.errors import LaunchError, UsageError
from hybridmpi.roles import assign_servers
from hybridmpi.slurm.values import seconds_of
from hybridmpi.training.job import Job

WARNING_SECONDS, WARNING_LIMIT = 120, 65535
ARRAY_SIZE = 1000
OF_ONE_HOST = ("/tmp", "/var/tmp", "/dev/shm")


@dataclass(frozen=True, slots=True)
class Servers:
    """The server nodes of a heterogeneous job: `directives` are what is asked for them alone."""

    nodes: int
    ranks_per_node: int = 1
    cpus_per_task: int = 1
    directives: Mapping[str, str | None] = field(default_factory=dict)

    @property
    def ranks(self) -> int:
        """The server ranks, which are the first of the world."""
        return self.nodes * self.ranks_per_node


@dataclass(frozen=True, slots=True)
class Request:
    """Everything that a script depends on.

    `job`, `overrides`: the job of `job_file` as read, and what --set changed in it; `time`: as Slurm writes it;
    `warning`: seconds before that at which a checkpoint is asked for; `restarts`: how often the job may start again by
    itself; `mpi`: "pmix" or "pmi2", as srun starts the ranks, or "mpirun"; `bin`: the folder of the hybridmpi command;
    `without_fabric`, `crowded`: what the MPI must be told where there is no network but TCP, and where a node has more
    ranks than cores; `directives`: sbatch's options besides; `tasks`: the settings of each task of an array, `at_once`
    how many of them may run together (0: all); `servers`: nodes of their own for server ranks; `command`: what
    rendered it.
    """

    job_file: str
    job: Job
    overrides: Sequence[str] = ()
    nodes: int = 1
    ranks_per_node: int = 2
    cpus_per_task: int = 1
    time: str = "1:00:00"
    warning: int | None = None
    restarts: int = 3
    mpi: str = "pmix"
    bin: str = ".venv/bin"
    without_fabric: Mapping[str, str] = field(default_factory=dict)
    crowded: Mapping[str, str] = field(default_factory=dict)
    directives: Mapping[str, str | None] = field(default_factory=dict)
    prologue: str = ""
    epilogue: str = ""
    tasks: Sequence[tuple[str, ...]] = ()
    at_once: int = 0
    servers: Servers | None = None
    command: str = ""

    @property
    def warning_seconds(self) -> int:
        """Seconds before the time limit at which a checkpoint is asked for; two minutes, or half of a short job."""
        limit = seconds_of(self.time, "--time")
        if self.warning is not None:
            return self.warning
        return WARNING_SECONDS if limit is None else min(WARNING_SECONDS, limit // 2)


def check(request: Request) -> list[str]:
    """Return what a user should know of the script, each a sentence or two. Local.

    Raises UsageError for what cannot be.
    """
    r = request
    for name in ("nodes", "ranks_per_node", "cpus_per_task"):
        _at_least(1, getattr(r, name), name)
    _at_least(0, r.restarts, "restarts")
    _at_least(0, r.at_once, "at_once")
    limit, warning = seconds_of(r.time, "--time"), r.warning_seconds
    if not 1 <= warning <= WARNING_LIMIT or (limit is not None and warning >= limit):
        raise UsageError(
            f"--warning {warning}: expected seconds from 1 up, less than --time {r.time} and at most {WARNING_LIMIT}"
        )
    if r.at_once and not r.tasks:
        raise UsageError("--at-once is of the tasks of --sweep: give that too")
    if asked := next((line for line in r.prologue.splitlines() if line.startswith("#SBATCH")), None):
        raise UsageError(
            f"--prologue: {asked}: sbatch would read this line, unchecked, after those of the script; give it by "
            f"--directive {asked.removeprefix('#SBATCH').strip().removeprefix('--')}"
        )
    return [*_check_ranks(r), *_check_files(r), *_check_gpus(r)]


def roles(request: Request) -> tuple[int, int]:
    """Return (compute ranks, server ranks) of the job. Local. Raises UsageError when no rank would compute."""
    r = request
    ranks = r.nodes * r.ranks_per_node
    if r.servers is not None:
        return ranks, r.servers.ranks
    try:
        servers = assign_servers([rank // r.ranks_per_node for rank in range(ranks)], r.job.servers)
    except LaunchError as error:
        raise UsageError(f"--nodes {r.nodes} --ranks-per-node {r.ranks_per_node}: {error}") from error
    return ranks - len(servers), len(servers)


def _check_ranks(r: Request) -> list[str]:
    if r.servers is None:
        compute, servers = roles(r)
        if r.job.servers == "per-node" and not servers:
            return [
                "no rank serves: with one rank on each node the compute ranks hold the tables; --ranks-per-node 2 or "
                "more gives each node a server"
            ]
        return []
    _at_least(1, r.servers.nodes, "server_nodes")
    _at_least(1, r.servers.ranks_per_node, "servers_per_node")
    _at_least(1, r.servers.cpus_per_task, "server_cpus")
    if r.tasks:
        raise UsageError("--server-nodes: Slurm has no arrays of heterogeneous jobs; render one script for each value")
    if r.mpi == "mpirun":
        raise UsageError("--server-nodes: mpirun does not start heterogeneous jobs; expected --mpi pmix or pmi2")
    if r.job.servers == 0 and r.job.world.servers != 0:
        raise UsageError(f'--server-nodes: sparse.mode = "{r.job.sparse.mode}" has no servers; leave the option out')
    if set_by_user := [text for text in r.overrides if text.startswith("world.servers")]:
        raise UsageError(f"--set {set_by_user[0]}: --server-nodes says which ranks serve; leave one of them out")
    return []


def _check_files(r: Request) -> list[str]:
    job, notes = r.job, []
    if len(r.tasks) > ARRAY_SIZE:
        notes.append(f"{len(r.tasks):,} tasks: Slurm takes {ARRAY_SIZE:,} in one array unless your site allows more")
    if r.tasks and Path(job.metrics.path).is_absolute():
        raise UsageError(
            f"--sweep: all tasks would write {job.metrics.path}; give a relative path, which is in the directory of "
            "each task: --set metrics.path=metrics.jsonl"
        )
    directory = Path(job.checkpoint.directory).absolute()
    host = next((folder for folder in OF_ONE_HOST if directory.is_relative_to(folder)), None)
    if host and (r.nodes > 1 or r.servers or r.restarts):
        notes.append(
            f"checkpoints go to {directory}: is {host} the same on all nodes? Usually it is not, and neither other "
            "nodes nor a later start would find them; --set checkpoint.directory=..."
        )
    if job.checkpoint.every == 0:
        notes.append(
            "checkpoint.every = 0: if a node fails, all that was done since the last start is lost; "
            "--set checkpoint.every=500 bounds it"
        )
    return notes


def _check_gpus(r: Request) -> list[str]:
    asked = [name for name in r.directives if name.startswith("gpus")]
    if "gpu" in (r.directives.get("gres") or ""):
        asked.append("gres")
    return [f"--{asked[0]}: training runs on the CPUs in this version; the GPUs would idle"] if asked else []


def _at_least(least: int, value: int, name: str) -> None:
    if value < least:
        raise UsageError(f"--{name.replace('_', '-')} {value}: expected at least {least}")
