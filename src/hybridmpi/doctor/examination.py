"""What one rank does: `python -m hybridmpi.doctor.examination DIRECTORY`, started by `supervision` on every rank.

It looks at this process and its host, starts MPI, looks at what MPI does, and gathers what all ranks found. It says in
lines on its output what it begins and what it has found, so that the process that started it knows how far it came.
"""

from __future__ import annotations

import json
import platform
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from subprocess import Popen
from typing import TYPE_CHECKING, Any

from hybridmpi import environment
from hybridmpi.doctor import beside, cores, folder, machine, mpi_library, settings, versions
from hybridmpi.doctor.finding import FAIL, MARK, Finding, guarded, merge
from hybridmpi.failures import forget_abort_hook
from hybridmpi.mpi_implementations import IMPLEMENTATIONS, implementation

if TYPE_CHECKING:
    from hybridmpi.world import World

LOCAL_RANKS = (*dict.fromkeys(each.local_rank for each in IMPLEMENTATIONS), "SLURM_LOCALID")
"""Which rank of its host this is, before MPI tells."""


def say(**message: Any) -> None:
    """Tell the supervisor something. Local."""
    print(f"\n{MARK}{json.dumps(message)}", flush=True)


def begin(step: str) -> None:
    """Tell the supervisor what comes now, and may be what this process dies of. Local."""
    say(begin=step)


def section(name: str, findings: Sequence[Finding]) -> None:
    """Tell the supervisor what was found; a section that is told again replaces what it was before. Local."""
    say(section=name, findings=[asdict(finding) for finding in findings])


def main(directory: str) -> None:
    """Look at everything, on every rank. Collective over the launch communicator, once there is one."""
    begin("this host")
    first = not any(environment.hint(name) for name in LOCAL_RANKS)
    child = beside.start(directory) if first else None
    software = guarded("versions", versions.probe)
    process = guarded("limits", machine.probe_process)
    host = guarded("memory", machine.probe_host) if first else []
    section("software", software)
    section("machine", [*host, *process])

    begin("start of MPI")
    given = environment.inherited()  # before hybridmpi tells MPI anything
    if found := mpi_library.found_before_its_start():
        say(mpi=found)
    process += guarded("variables", settings.probe, given, implementation(*found) if found else None)
    section("machine", [*host, *process])
    mpi, library = mpi_library.load()
    if mpi is not None:
        library += guarded("ranks", mpi_library.ranks, mpi)
    section("MPI", library)
    absent = versions.absent()
    if absent:
        section("software", software := [*[line for line in software if line.what not in absent], *absent.values()])
    if mpi is None or absent or any(finding.status == FAIL for finding in library):
        begin("imports, checkpoints and GPU")
        section("files", beside.findings_of(child) if child is not None else [])
        say(end={"ranks": 1, "hosts": [platform.node()]})
        return
    _with_mpi(directory, child, library, software, process)


def _with_mpi(
    directory: str, child: Popen | None, library: list[Finding], software: list[Finding], process: list[Finding]
) -> None:
    """Look at what ranks do together, and merge what all have found. Collective over the launch communicator."""
    from hybridmpi.doctor import communication
    from hybridmpi.world import World

    begin("the world of all ranks")
    world = World(servers=0)
    found = mpi_library.known(world.mpi)
    entry = found[0] if found else None
    world.comm.Barrier()
    now = time.time()
    process = [*process, *guarded("threads", cores.threads)]
    host = guarded("memory", machine.probe_host, world.node.Get_size()) if world.node.Get_rank() == 0 else []
    seats = world.gather((cores.my_seat(), now, library, software, host, process))
    places, times, *told = zip(*seats, strict=True)
    hosts = [seat.host for seat in places]
    libraries, softwares, machines, processes = (_merged(each, hosts) for each in told)
    section("MPI", libraries)
    section("software", softwares)
    section("machine", [*machines, *processes])
    section("ranks", [
        *guarded("node map", cores.node_map, world.node_of, places),
        *guarded("cores", cores.binding, places),
        *guarded("clocks", cores.clocks, times, hosts),
    ])  # fmt: skip

    sent: list[Finding] = []
    begin("one-sided")
    sent += communication.windows(world, entry)
    section("communication", sent)

    begin("imports, checkpoints and GPU")
    leads = world.node.Get_rank() == 0
    if leads and child is None:  # where the launcher does not say who is first on a host
        child = beside.start(directory)
    mine = beside.findings_of(child) if child is not None and leads else []
    section("files", _merged(world.gather(mine), hosts))
    begin("all-reduce")  # now that no child of this program takes cores from it
    sent += communication.all_reduce(world, entry)
    section("communication", sent)
    if world.nodes > 1:
        begin("the directory on all hosts")
        section("directory", _same_directory(world, directory, hosts))
    begin("large windows")
    sent += communication.large(world)
    section("communication", sent)
    say(end={"ranks": world.size, "hosts": list(dict.fromkeys(hosts))})
    world.barrier()
    forget_abort_hook(world)  # MPI frees at its end what this process has made


def _merged(found: Sequence[list[Finding]], hosts: Sequence[str]) -> list[Finding]:
    """Merge what ranks found, of those that were asked."""
    told = [(each, place) for each, place in zip(found, hosts, strict=True) if each]
    return merge([each for each, _ in told], [place for _, place in told])


def _same_directory(world: World, directory: str, hosts: Sequence[str]) -> list[Finding]:
    """Rank 0 writes a file that the first rank of each node looks for. Collective over the world."""
    path, text = world.broadcast(folder.write_token(directory) if world.rank == 0 else None)
    leads = world.node.Get_rank() == 0
    seen = world.gather(folder.sees_token(path, text) if leads and path else None)
    if world.rank == 0 and path:
        Path(path).unlink(missing_ok=True)
    return folder.seen_alike(path, {place: well for place, well in zip(hosts, seen, strict=True) if well is not None})


if __name__ == "__main__":
    main(*sys.argv[1:])
