"""`hybridmpi launch -n 3 -- train jobs/lm.toml`: start a command on several ranks, the way this machine needs it."""

from __future__ import annotations

import argparse
import ctypes
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence

from hybridmpi.children import python
from hybridmpi.cli import mpirun
from hybridmpi.environment import hint, inherited
from hybridmpi.errors import LaunchError, UsageError
from hybridmpi.mpi_implementations import IMPLEMENTATIONS
from hybridmpi.wording import nearest

FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)
UNDER_MPI = (*dict.fromkeys(each.size for each in IMPLEMENTATIONS), "SLURM_STEP_NUM_TASKS")
"""Set by mpirun, mpiexec and srun to the number of ranks; an interactive `srun --pty bash` is one rank."""
PR_SET_PDEATHSIG = 1


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `hybridmpi launch`."""
    parser.usage = "hybridmpi launch -n RANKS [--hosts A,B|A:4,B:4] [--dry-run] -- COMMAND ..."
    parser.add_argument("-n", type=int, metavar="RANKS", help="number of ranks, servers included; may exceed the cores")
    parser.add_argument("--hosts", metavar="A,B|A:4,B:4", help="hosts to start on, with numbers of ranks if wanted")
    parser.add_argument("--dry-run", action="store_true", help="print the command line and start nothing")
    parser.add_argument(
        "command",
        nargs=argparse.REMAINDER,
        metavar="-- COMMAND ...",
        help="a hybridmpi command, 'python file.py ...' or any program, with its arguments",
    )


def run(options: argparse.Namespace) -> int:
    """Print the complete command line on stderr, start it, and return the exit status of the job."""
    ranks = options.n
    if ranks is None or ranks < 1:
        given = "-n is missing" if ranks is None else f"-n {ranks}"
        raise UsageError(f"{given}: expected the number of ranks, such as hybridmpi launch -n 3 -- train jobs/lm.toml")
    command = resolve(options.command[options.command[:1] == ["--"] :])
    if name := one_of_several():
        raise LaunchError(
            f"this process is itself one of several ranks ({name}={hint(name)}): start the command without 'launch'"
        )
    hosts = [] if options.hosts is None else mpirun.parse_hosts(options.hosts, ranks)
    nodes = len(hosts) or mpirun.nodes_of_batch_job()
    library = mpirun.find_library()
    situation = mpirun.situation_here(library, mpirun.find_launcher(library), ranks, command, hosts, nodes)
    assignments, argv = mpirun.command_line(situation)
    print(as_shell(assignments, argv), file=sys.stderr, flush=True)
    return 0 if options.dry_run else supervise(argv, inherited() | assignments, library.mpi.ending)


def one_of_several() -> str | None:
    """Return the variable by which a launcher says that this process is one of several ranks; None without one.
    Local."""
    return next((name for name in UNDER_MPI if (hint(name) or 1) > 1), None)


def resolve(command: Sequence[str]) -> list[str]:
    """Return the program that one rank runs, by this Python where it is a hybridmpi command or `python`. Local.

    Raises UsageError when there is none, or when it is neither a command nor a program.
    """
    from hybridmpi.cli.main import COMMANDS

    if not command:
        raise UsageError("no command to start: give one after --, such as hybridmpi launch -n 3 -- train jobs/lm.toml")
    program, *rest = command
    if program == "launch":
        raise UsageError("'launch' cannot start 'launch': name the command that the ranks run")
    if program in COMMANDS:
        return python("-m", "hybridmpi", *command)
    if program in ("python", "python3"):
        return [sys.executable, *rest]
    if shutil.which(program) is None:
        raise UsageError(
            f"'{program}' is neither a hybridmpi command nor a program: "
            + (f"expected python {program}" if program.endswith(".py") else nearest(program, COMMANDS))
        )
    return list(command)


def as_shell(assignments: Mapping[str, str], argv: Sequence[str]) -> str:
    """Return the line that does the same when it is pasted into a shell. Local."""
    return " ".join([*(f"{name}={shlex.quote(value)}" for name, value in assignments.items()), shlex.join(argv)])


def supervise(argv: Sequence[str], environment: Mapping[str, str], ending: signal.Signals) -> int:
    """Run `argv`, pass signals on to its ranks and return its exit status, 128 + n where signal n ended it. Local.

    All of INT, TERM, USR1 and USR2 reach the ranks as USR1, which asks hybridmpi to write a checkpoint and stop: Open
    MPI answers INT and TERM by killing the ranks a quarter of a second later, and MPICH's Hydra dies of USR2. A second
    INT or TERM ends the job at once, by `ending`, and so does the death of this process. The launcher gets a process
    group of its own, so that Ctrl-C reaches it only through us, and no terminal to read from.
    """
    asked = 0

    def forward(number: int, _frame: object) -> None:
        nonlocal asked
        final = number in (signal.SIGINT, signal.SIGTERM)
        asked += final
        child.send_signal(ending if final and asked > 1 else signal.SIGUSR1)

    held = signal.pthread_sigmask(signal.SIG_BLOCK, FORWARDED)  # until there is somebody to forward to
    try:
        child = subprocess.Popen(
            argv,
            env=environment,
            process_group=0,
            stdin=subprocess.DEVNULL if sys.stdin is None or sys.stdin.isatty() else None,
            preexec_fn=lambda: _before_exec(held, ending),
        )
        previous = {number: signal.signal(number, forward) for number in FORWARDED}
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, held)
    try:
        status = child.wait()
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
    return status if status >= 0 else 128 - status


def _before_exec(mask: set[signal.Signals], ending: signal.Signals) -> None:
    """In the child, before it becomes the launcher: end with the parent (where Linux offers it), unblock signals."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, ending)
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
