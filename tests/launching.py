"""Starting MPI jobs from tests: every launch has a timeout, and its whole process group is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from hybridmpi.cli.mpirun import Situation, command_line, find_launcher, find_library

TESTS = Path(__file__).parent
ROOT = TESTS.parent


@dataclass
class Outcome:
    """How a launch ended."""

    code: int
    output: str
    seconds: float

    def __str__(self) -> str:
        return f"exit {self.code} after {self.seconds:.1f} s\n{self.output}"


def run_process(argv: list[str], timeout: float, env: dict[str, str] | None = None, cwd: Path = ROOT) -> Outcome:
    """Run a command with stdout and stderr joined; kill its process group when it ends or takes too long."""
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
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        output, _ = process.communicate()
        raise AssertionError(f"no end after {timeout} s: {' '.join(argv)}\n{output}") from None
    finally:
        kill_group(process.pid)
    return Outcome(process.returncode, output, time.monotonic() - started)


def kill_group(group: int) -> None:
    """Kill whatever is left of a process group."""
    try:
        os.killpg(group, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        pass


@cache
def _launcher() -> tuple[str, str]:
    library = find_library()
    return library.family, str(find_launcher(library))


def mpi_command(ranks: int, program: list[str]) -> tuple[list[str], dict[str, str]]:
    """Return (argv, environment) that start `program` on so many ranks of this machine."""
    family, launcher = _launcher()
    situation = Situation(
        family, launcher, ranks, program, cores=os.cpu_count(), root=os.geteuid() == 0, environment=dict(os.environ)
    )
    env, argv = command_line(situation)
    return argv, env


def run_mpi(ranks: int, program: list[str], timeout: float = 120, cwd: Path = ROOT) -> Outcome:
    """Run [sys.executable, *program] on so many ranks."""
    argv, env = mpi_command(ranks, [sys.executable, *program])
    return run_process(argv, timeout, env, cwd)


def run_checks(module: str, ranks: int, timeout: float = 240) -> None:
    """Run all checks of tests/parallel/MODULE.py on so many ranks in one launch."""
    outcome = run_mpi(ranks, [str(TESTS / "parallel" / "runner.py"), module], timeout)
    assert outcome.code == 0 and "checks passed" in outcome.output, str(outcome)
