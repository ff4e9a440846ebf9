"""The `hybridmpi` command: finds the subcommand, loads only its module, and turns errors into text and exit status."""

from __future__ import annotations

import argparse
import errno
import os
import re
import sys
import time
from contextlib import suppress
from importlib import import_module
from typing import Any, NoReturn

from hybridmpi.environment import hint
from hybridmpi.errors import HybridMPIError, UsageError
from hybridmpi.mpi_implementations import IMPLEMENTATIONS
from hybridmpi.streams import drop, ensure_streams, write
from hybridmpi.wording import nearest

COMMANDS = {
    "launch": ("hybridmpi.cli.launch", "start a command on several ranks, here or on other hosts"),
    "train": ("hybridmpi.cli.train", "train the model of a job file"),
    "job": ("hybridmpi.cli.jobs", "make a job file with every key, its default and its meaning"),
    "doctor": ("hybridmpi.cli.doctor", "find out what on this machine is in the way of a job"),
    "watch": ("hybridmpi.cli.watch", "show what a run is doing, while it does it"),
    "plot": ("hybridmpi.cli.plot", "draw runs: loss, speed, time by phase, bytes by way"),
    "inspect": ("hybridmpi.cli.inspect", "show and verify a checkpoint"),
    "bench": ("hybridmpi.cli.bench", "measure one piece of the system"),
    "plan": ("hybridmpi.cli.plan", "predict how a job would run on a cluster, without one"),
    "slurm": ("hybridmpi.cli.slurm", "write batch scripts for Slurm"),
}
"""name: (module, one line of help). A module has `add_arguments(parser)` and `run(options) -> exit status`."""

RANK_VARIABLES = (*dict.fromkeys(each.rank for each in IMPLEMENTATIONS), "SLURM_PROCID")
"""Where mpirun, mpiexec and srun tell a process its rank before MPI is loaded."""
STAND_BACK_SECONDS = 2.0
UNWRITABLE = (errno.EPIPE, errno.ENOSPC, errno.EDQUOT, errno.EIO)
"""What a stream that cannot be written says."""

USAGE = """usage: hybridmpi COMMAND ...

Train models whose parameters are partly dense and partly sparse over MPI.

commands:
{commands}

options:
  -h, --help   show this help; 'hybridmpi COMMAND --help' shows that of a command
  --version    show the version

Exit status: 0 done, 1 failure, 2 wrong usage or job file, 75 stopped by a signal after a checkpoint.
"""


def main(argv: list[str] | None = None) -> int:
    """Run a `hybridmpi` command line (default: sys.argv) and return its exit status. Local.

    An error of hybridmpi is printed and becomes its exit status. Where MPI already runs with several ranks it goes on
    up, so that the hook of the world ends them all.
    """
    arguments = sys.argv[1:] if argv is None else argv
    ensure_streams()
    for stream in (sys.stdout, sys.stderr):  # names and words may be of any script, a terminal need not show it
        with suppress(AttributeError):  # what a notebook puts in their place
            stream.reconfigure(errors="backslashreplace")
    try:
        try:
            require_folder()
            status = _run(arguments)
        except SystemExit:  # of argparse, when it has printed its help
            sys.stdout.flush()
            raise
        sys.stdout.flush()
        return status
    except HybridMPIError as error:
        if _is_one_of_several():
            raise
        _let_the_first_rank_speak()
        write(sys.stdout, "")
        write(sys.stderr, f"hybridmpi: error: {error}\n")
        return error.exit_code
    except OSError as error:  # the reader of a pipe, such as head, has seen enough; or a disk is full
        if error.errno not in UNWRITABLE or error.filename is not None or _is_one_of_several():
            raise
        if error.errno != errno.EPIPE:
            write(sys.stderr, f"hybridmpi: error: {error.strerror}, where this command writes to\n")
        drop(sys.stdout)
        return 1


def _run(arguments: list[str]) -> int:
    if not arguments or arguments[0] in ("-h", "--help"):
        lines = "\n".join(f"  {name:<10} {text}" for name, (_, text) in COMMANDS.items())
        print(USAGE.format(commands=lines), end="", file=sys.stdout if arguments else sys.stderr)
        return 0 if arguments else 2
    if arguments[0] == "--version":
        from importlib.metadata import version

        print(f"hybridmpi {version('hybridmpi')}")
        return 0
    name, *rest = arguments
    if name not in COMMANDS:
        raise UsageError(f"no command '{name}': {nearest(name, COMMANDS)}")
    module_name, text = COMMANDS[name]
    module = import_module(module_name)
    parser = _Parser(prog=f"hybridmpi {name}", description=text[0].upper() + text[1:] + ".")
    module.add_arguments(parser)
    return module.run(parser.parse_args(rest))


def require_folder() -> None:
    """Raise UsageError where the current folder has been removed. Local."""
    try:
        os.getcwd()
    except OSError as error:
        raise UsageError(f"the current folder is not there any more ({error.strerror}): cd to one that is") from error


class _Parser(argparse.ArgumentParser):
    """A parser whose refusal is printed by one rank, and names the options that there are for one that is not."""

    def error(self, message: str) -> NoReturn:
        _let_the_first_rank_speak()
        if match := re.fullmatch(r"unrecognized arguments: --([\w-]+).*", message):
            message = f"no option '{match[1]}': {nearest(match[1], sorted(_options_of(self)))}"
        super().error(message)

    def _print_message(self, message: str, file: Any = None) -> None:
        """Print help, which is what was asked for, or what is wrong, which is said by the exit status too."""
        if file is sys.stdout:
            file.write(message)  # argparse would keep silent about a full disk
        else:
            write(sys.stderr, message)


def _options_of(parser: argparse.ArgumentParser) -> set[str]:
    """Return the long options, without dashes, of a parser and of those for its subcommands."""
    options: set[str] = set()
    for action in parser._actions:
        options |= {option[2:] for option in action.option_strings if option.startswith("--")}
        if isinstance(action, argparse._SubParsersAction):
            options = options.union(*(_options_of(inner) for inner in action.choices.values()))
    return options


def _let_the_first_rank_speak() -> None:
    """Wait a moment unless this is the first of the processes that a launcher started. Local.

    Wrong usage is wrong on every rank, and the launcher ends the others as soon as the first has said so and left. A
    rank that is alone in its error is still there afterwards, and speaks.
    """
    if any(hint(name) for name in RANK_VARIABLES):
        time.sleep(STAND_BACK_SECONDS)


def _is_one_of_several() -> bool:
    """Return whether MPI runs in this process with more than one rank, without loading it."""
    mpi = sys.modules.get("mpi4py.MPI")
    return mpi is not None and mpi.Is_initialized() and not mpi.Is_finalized() and mpi.COMM_WORLD.size > 1
