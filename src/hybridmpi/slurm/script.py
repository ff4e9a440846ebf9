"""A batch script, put together from its parts: directives, four places to edit, the ranks, what follows their end."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence

from hybridmpi.slurm import parts
from hybridmpi.slurm.directives import lines
from hybridmpi.slurm.known import EVERYWHERE, OF_NODES
from hybridmpi.slurm.request import Request, roles
from hybridmpi.slurm.sweep import directories
from hybridmpi.wording import plural


def render(request: Request) -> str:
    """Return the batch script of `request`, which `check` has found to be possible. Local, pure."""
    blocks = [
        _head(request),
        _directives(request),
        parts.PLACES.format(bin=shlex.quote(request.bin), prologue=_text(request.prologue)),
        *([] if request.mpi == "mpirun" else [parts.MPI.format(mpi=request.mpi)]),
        parts.JOB.format(job=shlex.quote(request.job_file), restarts=request.restarts) + _settings(request),
        parts.GREETING,
        *([] if request.mpi == "mpirun" else [_environment(request)]),
        _command(request),
        parts.RUN if request.servers is None else parts.RUN_TWICE,
        *([f"# The epilogue: $status is how the ranks ended.\n{_text(request.epilogue)}"] if request.epilogue else []),
        parts.END,
    ]
    return "\n".join(block.rstrip("\n") + "\n" for block in blocks)


def _head(r: Request) -> str:
    compute, servers = roles(r)
    what = f"{plural(r.nodes, 'node')} with {plural(r.ranks_per_node, 'rank')} each"
    if r.servers is not None:
        what += f", and {plural(r.servers.nodes, 'node')} with {plural(r.servers.ranks_per_node, 'server')} each"
    else:
        what += f": {plural(compute, 'compute rank')}, {plural(servers, 'server')}" if servers else ", no servers"
    tasks = f", an array of {plural(len(r.tasks), 'task')}" if r.tasks else ""
    return parts.HEAD.format(
        job=_one_line(r.job_file),
        what=what,
        tasks=tasks,
        command=_one_line(r.command),
        id="ID_TASK" if r.tasks else "ID",
    )


def _directives(r: Request) -> str:
    """Return the lines for sbatch, of each component where there are two."""
    ranks = {
        "nodes": str(r.nodes),
        "ntasks-per-node": str(r.ranks_per_node),
        "cpus-per-task": str(r.cpus_per_task),
    }
    whole = {
        "job-name": _name(r.job_file),
        "output": "%x-%A_%a.out" if r.tasks else "%x-%j.out",
        "open-mode": "append",
        "signal": f"B:USR1@{r.warning_seconds}",
        "time": r.time,
        ("requeue" if r.restarts else "no-requeue"): None,
    }
    if r.tasks:
        whole["array"] = f"0-{len(r.tasks) - 1}" + (f"%{r.at_once}" if r.at_once else "")
    given = dict(r.directives)
    if r.servers is None:
        return parts.ASKED + _block(whole | ranks | given)
    every = {name: value for name, value in given.items() if name in EVERYWHERE} | {"time": r.time}
    of_nodes = {name: value for name, value in given.items() if name in OF_NODES}
    rest = {name: value for name, value in given.items() if name not in OF_NODES}
    serving = {
        "nodes": str(r.servers.nodes),
        "ntasks-per-node": str(r.servers.ranks_per_node),
        "cpus-per-task": str(r.servers.cpus_per_task),
    }
    first = _block(whole | rest | every | serving | dict(r.servers.directives))
    second = _block({"open-mode": "append"} | every | of_nodes | ranks)
    return f"{parts.ASKED}# The nodes of the servers, where this script runs:\n{first}#SBATCH hetjob\n" + (
        f"# The nodes of the compute ranks:\n{second}"
    )


def _block(options: Mapping[str, str | None]) -> str:
    """Return sorted lines, with places for what most clusters ask for."""
    missing = [f"##SBATCH --{name}=NAME" for name in ("account", "partition") if name not in options]
    return "\n".join([*lines(options), *missing]) + "\n"


def _settings(r: Request) -> str:
    """Return the assignment of SETTINGS: what is different from the job file, in every task of an array."""
    settings = _arguments(r.overrides)
    text = f"SETTINGS=({settings})\n"
    if not r.tasks:
        return text
    swept = {setting.partition("=")[0] for setting in r.tasks[0]}
    own = ["checkpoint.directory"] if "checkpoint.directory" not in swept else []
    cases = []
    for number, (task, directory) in enumerate(zip(r.tasks, directories(r.tasks, r.job), strict=True)):
        assigned = [*task, *(f"{key}={directory}" for key in own)]
        cases.append(f"    {number}) SETTINGS+=({_arguments(assigned)}) ;;\n")
    return f'{text}case "$SLURM_ARRAY_TASK_ID" in\n{"".join(cases)}{parts.NO_TASK}esac\n'


def _command(r: Request) -> str:
    if r.mpi == "mpirun":
        return parts.BY_MPIRUN
    if r.servers is not None:
        return parts.START_TWICE + parts.BY_SRUN_TWICE
    return parts.START + parts.BY_SRUN


def _environment(r: Request) -> str:
    """Return the lines that tell the MPI what it cannot see by itself under srun."""
    text = ""
    if r.without_fabric:
        text += parts.FABRIC.format(exports="".join(_export(*item) for item in r.without_fabric.items()))
    if r.crowded:
        text += parts.CROWDED.format(exports="".join(_export(*item) for item in r.crowded.items()))
    return text


def _export(name: str, value: str) -> str:
    """Return the line that sets a variable unless the user has."""
    return f'    export {name}="${{{name}-{value}}}"\n'


def _arguments(settings: Sequence[str]) -> str:
    return " ".join(f"--set {shlex.quote(setting)}" for setting in settings)


def _name(job_file: str) -> str:
    return _one_line(job_file.rpartition("/")[2].removesuffix(".toml")) or "hybridmpi"


def _one_line(text: str) -> str:
    """Return `text` as it can stand in a comment."""
    return "".join(c if c.isprintable() else "?" for c in text)


def _text(text: str) -> str:
    return text.rstrip("\n") + "\n" if text else ""
