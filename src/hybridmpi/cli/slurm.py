"""`hybridmpi slurm render JOB`: write the batch script that trains a job file on a cluster with Slurm."""

from __future__ import annotations

import argparse
import shlex
import shutil
import sys
from pathlib import Path
from typing import Any

from hybridmpi.cli import mpirun
from hybridmpi.cli.job import add_job
from hybridmpi.errors import LaunchError, UsageError
from hybridmpi.mpi_implementations import IMPLEMENTATIONS
from hybridmpi.paths import path_argument, require_output

STARTERS = (*dict.fromkeys(each.plugin for each in IMPLEMENTATIONS), "mpirun")
"""What srun must speak for an MPI; or its own launcher."""
DIRECTIVES = {
    "account": "whom the time is charged to",
    "partition": "the nodes that are asked for",
    "qos": "quality of service",
    "constraint": "features of the nodes",
    "gres": "what each node must have besides, such as gpu:4",
    "mem": "memory of each node, such as 64G",
    "job-name": "name of the job and of its output (that of the job file)",
}
"""Options of sbatch that many give; --directive gives any."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    actions = parser.add_subparsers(dest="action", required=True, metavar="render")
    render = actions.add_parser("render", help="write a batch script", description="Write a batch script.")
    render.set_defaults(parser=render)
    add_job(render)
    to = "where to; without it to standard output"
    render.add_argument("-o", "--output", type=path_argument, metavar="FILE", help=to)
    render.add_argument("--force", action="store_true", help="replace a file that is there")
    ranks = render.add_argument_group("ranks")
    number(ranks, "nodes", 1, "nodes")
    number(ranks, "ranks-per-node", 2, "ranks on each node, servers among them")
    number(ranks, "cpus-per-task", 1, "cores of each rank")
    number(ranks, "server-nodes", 0, "nodes for servers alone, besides: a heterogeneous job")
    number(ranks, "servers-per-node", 1, "server ranks on each of these")
    number(ranks, "server-cpus", 1, "cores of each of these server ranks")
    asked = render.add_argument_group("what Slurm is asked for")
    asked.add_argument("--time", default="1:00:00", metavar="TIME", help="time limit, as Slurm writes it (1:00:00)")
    for name, text in DIRECTIVES.items():
        asked.add_argument(f"--{name}", metavar="X", help=text)
    asked.add_argument(
        "--directive",
        action="append",
        default=[],
        metavar="NAME[=X]",
        help="any other option of sbatch, such as exclusive",
    )
    asked.add_argument(
        "--server-directive", action="append", default=[], metavar="NAME[=X]", help="of the nodes of --server-nodes"
    )
    again = render.add_argument_group("starting again")
    number(again, "restarts", 3, "how often the job may start again by itself; 0: never")
    again.add_argument(
        "--warning",
        type=int,
        metavar="S",
        help="seconds before the time limit at which a checkpoint is asked for (120)",
    )
    several = render.add_argument_group("several jobs in one: an array")
    several.add_argument(
        "--sweep",
        action="append",
        default=[],
        metavar="KEY=A,B,C",
        help="a task for each value; given twice, for each pair",
    )
    number(several, "at-once", 0, "tasks that may run at the same time; 0: all")
    place = render.add_argument_group("the environment")
    place.add_argument("--bin", metavar="DIR", help="folder of the hybridmpi command (of this one)")
    place.add_argument(
        "--mpi",
        choices=STARTERS,
        help="what starts the ranks: srun by this PMI (by the MPI here), or mpirun",
    )
    place.add_argument("--prologue", metavar="FILE|TEXT", help="what the script does first: module load ...")
    place.add_argument("--epilogue", metavar="FILE|TEXT", help="what it does when the ranks have ended")


def number(group: Any, name: str, default: int, text: str) -> None:
    """Add an option that is a whole number."""
    group.add_argument(f"--{name}", type=int, default=default, metavar="N", help=f"{text} ({default})")


def run(options: argparse.Namespace) -> int:
    """Write the script, tell on standard error what the user should know, and return 0. Local."""
    from hybridmpi.slurm.request import check
    from hybridmpi.slurm.script import render
    from hybridmpi.slurm.texts import check_bash

    request = request_of(options)
    notes = check(request)
    script = render(request)
    check_bash(script, "the script")
    if (file := options.output) is None:
        print(script, end="")
    else:
        require_output(file, "-o", options.force, filter(None, (options.job, options.prologue, options.epilogue)))
        file.write_text(script, encoding="utf-8")
        file.chmod(0o755)
        print(f"{file}: edit its four places, then: sbatch {shlex.quote(str(file))}", file=sys.stderr)
    for note in notes:
        print(f"note: {note}", file=sys.stderr)
    return 0


def request_of(options: argparse.Namespace) -> Any:
    """Return the Request that the options describe. Local. Raises UsageError for values that cannot be."""
    from hybridmpi.slurm import sweep
    from hybridmpi.slurm.directives import parse_directives
    from hybridmpi.slurm.request import Request, Servers
    from hybridmpi.slurm.texts import text_of
    from hybridmpi.slurm.values import check_value
    from hybridmpi.training.job import read_job

    o = options
    tasks = sweep.tasks(o.sweep)
    for task in tasks:
        read_job(o.job, [*o.overrides, *task])
    directives = parse_directives(o.directive)
    for name in DIRECTIVES:
        if (value := getattr(o, name.replace("-", "_"))) is not None:
            if name in directives:
                raise UsageError(f"--directive {name}: --{name} {value} says that already; give it once")
            check_value(name, value, f"--{name} {value}")
            directives[name] = value
    servers = None
    if o.server_nodes:
        of_servers = parse_directives(o.server_directive, "--server-directive")
        servers = Servers(o.server_nodes, o.servers_per_node, o.server_cpus, of_servers)
    elif o.server_directive or o.servers_per_node != 1 or o.server_cpus != 1:
        raise UsageError(
            "--servers-per-node, --server-cpus, --server-directive: these are of --server-nodes; give it too"
        )
    mpi = o.mpi or mpirun.find_library().mpi.plugin
    without_fabric, crowded = told(mpi)
    return Request(
        job_file=o.job,
        job=read_job(o.job, o.overrides),
        overrides=o.overrides,
        nodes=o.nodes,
        ranks_per_node=o.ranks_per_node,
        cpus_per_task=o.cpus_per_task,
        time=o.time,
        warning=o.warning,
        restarts=o.restarts,
        mpi=mpi,
        bin=find_bin() if o.bin is None else o.bin,
        without_fabric=without_fabric,
        crowded=crowded,
        directives=directives,
        prologue=text_of(o.prologue, "--prologue"),
        epilogue=text_of(o.epilogue, "--epilogue"),
        tasks=tasks,
        at_once=o.at_once,
        servers=servers,
        command=command_of(o),
    )


def told(mpi: str) -> tuple[dict[str, str], dict[str, str]]:
    """Return what the MPI of a PMI must be told without a fabric, and with more ranks than cores. Local.

    It is the MPI here if it speaks this PMI, else the newest that does.
    """
    speaking = [each for each in IMPLEMENTATIONS if each.plugin == mpi]
    if not speaking:
        return {}, {}
    try:
        here = mpirun.find_library().mpi
    except LaunchError:  # where scripts are written there need not be an MPI
        here = speaking[0]
    implementation = here if here in speaking else speaking[0]

    def assigned(**situation: Any) -> dict[str, str]:
        wanted, _ = mpirun.command_line(mpirun.Situation(implementation, "srun", 4, (), nodes=2, **situation))
        return {name: value for name, value in wanted.items() if name not in mpirun.THREADS}

    plain = assigned(cores=2, fabric=True)
    return tuple(
        {name: value for name, value in other.items() if name not in plain}
        for other in (assigned(cores=2, fabric=False), assigned(cores=1, fabric=True))
    )


def find_bin() -> str:
    """Return the folder of this environment's hybridmpi command. Local. Raises LaunchError where there is none."""
    beside = Path(sys.executable).parent / "hybridmpi"
    found = str(beside) if beside.exists() else shutil.which("hybridmpi")
    if found is None:
        raise LaunchError(f"no hybridmpi command beside {sys.executable}, nor on PATH: say where it is with --bin DIR")
    return str(Path(found).parent)


def command_of(options: argparse.Namespace) -> str:
    """Return the command line that renders the same script. Local."""
    words = ["hybridmpi", "slurm", "render", options.job]
    for action in options.parser._actions:
        value = getattr(options, action.dest, None)
        if action.dest in ("job", "output", "force", "help") or value in (None, [], action.default):
            continue
        option = action.option_strings[-1]
        for item in value if isinstance(value, list) else [value]:
            words += [option, str(item)]
    return shlex.join(words)
