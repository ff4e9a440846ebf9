"""Starting MPI jobs from tests: every launch has a timeout, and its whole session is killed.

Launchers give their ranks process groups of their own, but all stay in the session of the process that a test starts.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from hybridmpi.cli.mpirun import Library, command_line, find_launcher, find_library, situation_here

TESTS = Path(__file__).parent
ROOT = TESTS.parent
ADVERSARY: int | None = None


@dataclass
class Outcome:
    """How a launch ended: when (time.time()), and which of its processes still ran a moment later."""

    code: int
    output: str
    seconds: float
    ended: float = 0.0
    left: tuple[int, ...] = ()

    def failed_with(self, code: int) -> bool:
        """Return whether the launch failed with `code`. A launcher may report that it killed the other ranks."""
        return self.code in (code, *_launcher()[0].mpi.killing)

    def __str__(self) -> str:
        return f"exit {self.code} after {self.seconds:.1f} s\n{self.output}"


def run_process(argv: list[str], timeout: float, env: dict[str, str] | None = None, cwd: Path = ROOT) -> Outcome:
    """Run a command with stdout and stderr joined; kill its session when it ends or takes too long.

    Open MPI ends a banner with a zero byte: those are taken out of the output.
    """
    started = time.monotonic()
    process = subprocess.Popen(
        argv,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
        env={**os.environ, **(env or {})},
        cwd=cwd,
        start_new_session=True,
        text=True,
        errors="replace",
    )
    try:
        output, _ = process.communicate(timeout=timeout)
        seconds, ended = time.monotonic() - started, time.time()
        left = survivors(process.pid)
    except subprocess.TimeoutExpired:
        kill_session(process.pid)
        output, _ = process.communicate()
        raise AssertionError(f"no end after {timeout} s: {' '.join(argv)}\n{output}") from None
    finally:
        kill_session(process.pid)
    return Outcome(process.returncode, output.replace("\0", ""), seconds, ended, left)


def survivors(session: int, patience: float = 1.0) -> tuple[int, ...]:
    """Return the processes of a session that still run after up to `patience` seconds."""
    deadline = time.monotonic() + patience
    while (left := processes_of(session)) and time.monotonic() < deadline:
        time.sleep(0.02)
    return left


def processes_of(session: int) -> tuple[int, ...]:
    """Return the running processes of a session."""
    processes = (int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit())
    return tuple(process for process in processes if session_of(process) == session)


def session_of(process: int) -> int | None:
    """Return the session of a running process; None for one that has ended, if only its parent has yet to look."""
    try:
        state, _, _, session = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[:4]
    except OSError:
        return None
    return None if state in "ZX" else int(session)


def kill_session(session: int) -> None:
    """Kill whatever is left of a session."""
    for process in processes_of(session):
        with suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)


@cache
def _launcher() -> tuple[Library, str]:
    library = find_library()
    return library, find_launcher(library)


def mpi_command(ranks: int, program: list[str]) -> tuple[list[str], dict[str, str]]:
    """Return (argv, environment) that start `program` on so many ranks of this machine."""
    env, argv = command_line(situation_here(*_launcher(), ranks, program))
    return argv, env


def run_mpi(ranks: int, program: list[str], timeout: float = 120, cwd: Path = ROOT) -> Outcome:
    """Run [sys.executable, *program] on so many ranks."""
    argv, env = mpi_command(ranks, [sys.executable, *program])
    return run_process(argv, timeout, env, cwd)


def run_checks(ranks: int, *names: str, timeout: float = 240) -> None:
    """Run checks on so many ranks in one launch: all of the modules tests/parallel/checks_*.py that are named, or those
    among them that are named too, check_*. With a seed for the ADVERSARY all are under it."""
    if ADVERSARY is not None:
        names, timeout = ("--lazy", str(ADVERSARY), "--storm", str(ADVERSARY), *names), 4 * timeout
    # What was measured of the all-reduce on this machine before, by whom ever, has no part in a test.
    with tempfile.TemporaryDirectory() as cache:
        program = ["env", f"XDG_CACHE_HOME={cache}", sys.executable, str(TESTS / "parallel" / "runner.py"), *names]
        argv, env = mpi_command(ranks, program)
        outcome = run_process(argv, timeout, env)
    assert outcome.code == 0 and "checks passed" in outcome.output, str(outcome)
