"""`hybridmpi doctor`: what of this machine, MPI and environment is in the way of a job, and what to do about it."""

from __future__ import annotations

import argparse
import json
import platform
import sys
import time
from concurrent.futures import ThreadPoolExecutor

from hybridmpi.cli import mpirun
from hybridmpi.doctor.finding import FAIL, Finding, fail, ok, warn
from hybridmpi.doctor.launchers import started_by
from hybridmpi.doctor.report import as_object, render
from hybridmpi.doctor.supervision import Examined, examine, rank_program
from hybridmpi.environment import hint, inherited, text
from hybridmpi.errors import LaunchError
from hybridmpi.failures import STAND_BACK_SECONDS_OF_OTHERS

RANKS = 2
"""Of the job that doctor starts when it was started without a launcher: the fewest that send each other anything."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `doctor` to `parser`."""
    parser.epilog = (
        "Alone it starts two ranks of its own. On the ranks and hosts of a job: hybridmpi launch -n 4 -- doctor, or "
        "srun hybridmpi doctor. Exit status: 1 if anything fails, else 0."
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--directory", default="runs", metavar="RUNS", help="where checkpoints go (default: runs)")


def run(options: argparse.Namespace) -> int:
    """Look, print one report from the first rank, and return 1 if anything fails."""
    started = time.perf_counter()
    launcher, rank, _ = started_by(inherited())
    program = rank_program(options.directory)
    if launcher:
        # Beside the examination: where it fails, the other ranks leave, and the launcher then soon ends this one.
        with ThreadPoolExecutor() as aside:
            belongs = aside.submit(_launcher_that_belongs) if rank == 0 else None
            examined = examine(program, inherited())
        if belongs is not None and (line := belongs.result()):
            _with(line, examined)
    else:
        examined = _examine_alone(program)
    if rank != 0:
        return _other_rank(rank, examined)
    findings = examined.findings()
    seconds = time.perf_counter() - started
    if options.json:
        print(json.dumps(as_object(findings, examined.ranks, examined.hosts, seconds), allow_nan=False))
    else:
        # Open MPI gives its ranks a terminal of its own, whatever their output goes to.
        colour = not launcher and sys.stdout.isatty() and not text("NO_COLOR")
        print(render(findings, _title(examined), seconds, colour))
    sys.stdout.flush()
    return 1 if any(finding.status == FAIL for finding in findings) else 0


def _title(examined: Examined) -> str:
    hosts = examined.hosts or [platform.node()]
    ranks = f"{examined.ranks} rank{'s' * (examined.ranks != 1)}" if examined.ranks else "no rank that came to the end"
    names = ", ".join(hosts[:4]) + (f" and {len(hosts) - 4} more" if len(hosts) > 4 else "")
    return f"hybridmpi doctor: {ranks} on {len(hosts)} host{'s' * (len(hosts) > 1)} ({names})"


def _other_rank(rank: int, examined: Examined) -> int:
    """Say nothing, unless this rank came to grief, which the first rank may not learn of."""
    failed = [finding for finding in examined.findings() if finding.status == FAIL]
    if not examined.finished and not examined.stopped and failed:
        print(
            f"hybridmpi doctor: rank {rank} on {platform.node()}, {failed[-1].what}: {failed[-1].found}",
            file=sys.stderr,
            flush=True,
        )
    if failed and not examined.stopped:
        time.sleep(STAND_BACK_SECONDS_OF_OTHERS)  # a launcher ends the first rank soon after another has failed
    return 1 if failed else 0


def _examine_alone(program: list[str]) -> Examined:
    """Start two ranks as `hybridmpi launch` does; where they cannot be started, look at one process."""
    alone = inherited()
    try:
        library = mpirun.find_library()
    except LaunchError:  # the examination explains it
        return examine(program, alone)
    try:
        launcher = mpirun.find_launcher(library)
    except LaunchError as error:
        return _with(_no_launcher(error), examine(program, alone))
    ranks = max(RANKS, hint("SLURM_NTASKS") or 1)
    nodes = hint("SLURM_JOB_NUM_NODES") or 1
    situation = mpirun.situation_here(library, launcher, ranks, program, nodes=nodes)
    assignments, argv = mpirun.command_line(situation)
    started = time.perf_counter()
    examined = examine(argv, alone | assignments)
    if "software" in examined.sections:
        told = f"{launcher} starts {ranks} ranks; all this took them {time.perf_counter() - started:.1f} s"
        return _with(ok("launcher", told), examined)
    said = examined.findings()[-1].found
    remedy = f"try it: {' '.join(argv[: -len(program)])} hostname; a login node may forbid it, a batch job does not"
    return _with(fail("launcher", f"{launcher} starts no ranks: {said}", remedy), examine(program, alone))


def _launcher_that_belongs() -> Finding | None:
    """Return which launcher belongs to the MPI that is loaded, for ranks that some launcher has started; None where the
    examination has explained that there is no MPI."""
    try:
        library = mpirun.find_library()
    except LaunchError:
        return None
    try:
        return ok("launcher", f"of {library.mpi} {library.version} is {mpirun.find_launcher(library)}")
    except LaunchError as error:
        failed = _no_launcher(error)
        return warn("launcher", failed.found, failed.remedy)


def _no_launcher(error: LaunchError) -> Finding:
    found, _, remedy = str(error).partition(". Install")
    return fail("launcher", found, f"install{remedy}")


def _with(finding: Finding, examined: Examined) -> Examined:
    """Return what was examined with a line more, after those on the library."""
    examined.sections.setdefault("MPI", []).append(finding)
    return examined
