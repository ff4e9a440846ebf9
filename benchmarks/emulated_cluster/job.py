"""What starts an MPI job on the hosts: the launcher of this Python's MPI, TCP between hosts, agent.sh for ssh."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from emulated_cluster.namespaces import TEMPORARY
from emulated_cluster.placement import FLAGS, shares
from hybridmpi.cli.launch import as_shell, resolve
from hybridmpi.cli.mpirun import Library, Situation, command_line, find_launcher, find_library
from hybridmpi.mpi_implementations import OPEN_MPI

AGENT = str(Path(__file__).resolve().with_name("agent.sh"))
# What a shell may hold for other jobs; these get what `env` says.
FOREIGN = ("OMPI_", "PMIX_", "PRTE_", "PMI_", "MPIR_", "HYDRA_", "FI_", "SLURM_")


@dataclass(frozen=True)
class Job:
    """A command line to run on the first of its hosts, `head`, with what it adds to the environment."""

    head: str
    argv: list[str]
    assignments: dict[str, str]

    def __str__(self) -> str:
        return as_shell(self.assignments, self.argv)

    @property
    def environment(self) -> dict[str, str]:
        """The whole environment of the launcher."""
        return {k: v for k, v in os.environ.items() if not k.startswith(FOREIGN)} | self.assignments


def describe(
    command: Sequence[str],
    ranks: int,
    members: Sequence[Sequence[str]],
    placement: str,
    env: Mapping[str, str],
    pids: Mapping[str, int],
) -> Job:
    """Return the job that runs `command` (as for `hybridmpi launch`) on `ranks` ranks of the hosts `members`, by group.
    Local."""
    library, launcher = _mpi()
    order = shares(members, ranks, placement)
    hosts = sum(map(len, members))
    situation = Situation(
        library.mpi,
        launcher,
        ranks,
        resolve(command),
        order,
        nodes=hosts,
        cores=max(1, (os.cpu_count() or 1) // hosts),
        root=True,
        environment={"PYTHONPATH": os.environ["PYTHONPATH"]} if "PYTHONPATH" in os.environ else {},
    )
    assignments, argv = command_line(situation)
    flags = list(FLAGS[library.mpi.name, placement])
    if library.mpi.name == OPEN_MPI:
        more = {
            "OMPI_MCA_btl_tcp_if_include": "eth0",
            "OMPI_MCA_mpi_yield_when_idle": "1",  # the hosts share this machine's cores
        }
        flags += [word for name in [*more, *env] if name not in assignments for word in ("-x", name)]
        more["PRTE_MCA_plm_ssh_agent"] = AGENT
    else:
        more = {"HYDRA_LAUNCHER": "ssh", "HYDRA_LAUNCHER_EXEC": AGENT}
        more |= {"MPIR_CVAR_CH4_NETMOD": "ofi", "FI_PROVIDER": "tcp"}  # on one host too: a cluster of one is a cluster
    ours = {"TMPDIR": TEMPORARY, "EMULATED_CLUSTER": " ".join(f"{name}={pid}" for name, pid in pids.items())}
    return Job(order[0][0], [*argv[:3], *flags, *argv[3:]], {**assignments, **more, **ours, **env})


@cache
def _mpi() -> tuple[Library, str]:
    library = find_library()
    return library, find_launcher(library)
