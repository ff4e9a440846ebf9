"""Puts seeded mistakes (see catalogue.py) one at a time into a copy of the tree, and requires their tests to fail.

    python tests/mistakes/run.py [--only NAME_OR_CHAPTER ...] [--list]

Each test runs once without a mistake first, and must pass. Exit code 1 if a mistake was missed or a test is broken.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from fnmatch import fnmatch
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))

from launching import mpi_command, run_process
from mistakes.catalogue import ROOT, Mistake, catalogue

COPIED = ("src", "kernels", "tests", "jobs", "docs", "benchmarks", ".ci", "README.md", "Makefile", "setup.cfg")
# How long a test may take with a mistake in it: so many times what it took without, and some seconds to start.
TIMES_SLOWER, STARTING_SECONDS = 3, 30
# Kernels of a file with a mistake are compiled anew, and with them all that may have been compiled into others.
COMPILING_SECONDS = 180
BASELINE_SECONDS = 300

SEEN, MISSED, BROKEN = "seen", "MISSED", "BROKEN"


class Copy:
    """A copy of the tree whose code is what its tests run, whatever is installed. Local."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "tree"
        self.root.mkdir()
        left_out = shutil.ignore_patterns("*.egg-info", "runs", ".hypothesis")
        for name in COPIED:
            source = ROOT / name
            if source.is_dir():
                shutil.copytree(source, self.root / name, ignore=left_out)  # with times: compiled kernels stay valid
            elif source.exists():
                shutil.copy2(source, self.root / name)
        # What setup.cfg's package_dir does in an installation.
        (self.root / "src" / "hybridmpi" / "kernels").symlink_to(self.root / "kernels")
        self._caches = folder / "caches"
        self._caches.mkdir()
        self._seconds: dict[str, float] = {}
        self._at_hand: set[bool] = set()

    def environment(self, **more: str) -> dict[str, str]:
        """Return what makes a process import the copy."""
        path = [str(self.root / "src"), *filter(None, [os.environ.get("PYTHONPATH")])]
        return {"PYTHONPATH": os.pathsep.join(path), "XDG_CACHE_HOME": tempfile.mkdtemp(dir=self._caches), **more}

    def run(self, seen_by: str, ranks: int, limit: float, **more: str) -> tuple[int, str]:
        """Run a test; return its exit code, 124 after `limit` seconds, and what it printed."""
        environment = self.environment(**more)
        if ranks:
            program = [sys.executable, str(self.root / "tests" / "parallel" / "runner.py"), *seen_by.split()[1:]]
            argv, environment = self._under_mpirun(ranks, program, environment)
        else:
            options = ["-n", "0", "-x", "-q", "-p", "no:cacheprovider", "-o", f"timeout={limit}"]
            argv = [sys.executable, "-m", "pytest", *options, seen_by]
        try:
            outcome = run_process(argv, limit, environment, self.root)
        except AssertionError as error:
            return 124, str(error)
        return outcome.code, outcome.output

    @staticmethod
    def _under_mpirun(ranks: int, program: list[str], environment: dict[str, str]) -> tuple[list[str], dict[str, str]]:
        given = [f"{name}={value}" for name, value in environment.items()]
        argv, own = mpi_command(ranks, ["env", *given, *program])
        return argv, {**own, **environment}

    def require_own_code(self, ranks: int) -> None:
        """Raise RuntimeError unless processes, on so many ranks or alone, import the copy and nothing else."""
        if bool(ranks) in self._at_hand:
            return
        program = [
            sys.executable,
            "-c",
            "import hybridmpi, hybridmpi.kernels as k; print(hybridmpi.__file__, k.__file__)",
        ]
        argv, environment = program, self.environment()
        if ranks:
            argv, environment = self._under_mpirun(ranks, program, environment)
        said = subprocess.run(
            argv, env={**os.environ, **environment}, cwd=self.root, capture_output=True, text=True, timeout=60
        )
        files = [word for word in said.stdout.split() if word.endswith(".py")]
        if len(files) != 2 * max(1, ranks) or not all(Path(file).is_relative_to(self.root) for file in files):
            raise RuntimeError(f"not the code of {self.root}: {said.stdout}{said.stderr}")
        self._at_hand.add(bool(ranks))

    def try_without(self, mistake: Mistake) -> tuple[float, str]:
        """Return how long the test of `mistake` takes without any, and "" or why it does not pass."""
        if mistake.seen_by not in self._seconds:
            self.require_own_code(mistake.ranks)
            started = time.monotonic()
            code, output = self.run(mistake.seen_by, mistake.ranks, BASELINE_SECONDS)
            if code or re.search(r"\b[1-9]\d* skipped", output):
                return 0.0, output
            self._seconds[mistake.seen_by] = time.monotonic() - started
        return self._seconds[mistake.seen_by], ""

    def try_with(self, mistake: Mistake) -> tuple[str, str]:
        """Return what became of a mistake, and what its test printed."""
        wrong = mistake.text(self.root)
        seconds, failure = self.try_without(mistake)
        if failure:
            return BROKEN, failure
        path = self.root / mistake.file
        right = path.with_name(f".{path.name}.right")
        # Of two mistakes put in within a second the second must not run as the bytecode of the first.
        limit, more = TIMES_SLOWER * seconds + STARTING_SECONDS, {"PYTHONDONTWRITEBYTECODE": "1"}
        if re.search(r"numba|cpu_kernel", wrong):
            limit += COMPILING_SECONDS
            more["NUMBA_CACHE_DIR"] = tempfile.mkdtemp(dir=self._caches)
        shutil.move(path, right)
        try:
            path.write_text(wrong, encoding="utf-8")
            code, output = self.run(mistake.seen_by, mistake.ranks, limit, **more)
        finally:
            os.replace(right, path)
        return (SEEN if code else MISSED), output


def chosen(mistakes: Sequence[Mistake], patterns: Sequence[str]) -> list[Mistake]:
    """Return the entries whose name or chapter matches one of `patterns`, all without any."""
    return [m for m in mistakes if not patterns or any(fnmatch(n, p) for n in (m.name, m.chapter) for p in patterns)]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    parser = argparse.ArgumentParser(description="Put seeded mistakes into a copy of the tree; their tests must fail.")
    parser.add_argument(
        "--only", nargs="+", default=[], metavar="NAME", help="names or chapters of mistakes; * matches"
    )
    parser.add_argument("--list", action="store_true", help="say what there is, and run nothing")
    options = parser.parse_args(arguments)
    mistakes = chosen(catalogue(), options.only)
    if not mistakes:
        parser.error(f"no mistake is called {' or '.join(options.only)}; --list says what there is")
    if options.list:
        for mistake in mistakes:
            print(f"{mistake.chapter}: {mistake.name}: {mistake.why}\n  in {mistake.file}, seen by {mistake.seen_by}")
        return 0
    ends = []
    with tempfile.TemporaryDirectory() as folder:
        copy = Copy(Path(folder).resolve())
        for mistake in mistakes:
            started = time.monotonic()
            end, output = copy.try_with(mistake)
            ends.append(end)
            print(f"{end} {mistake.name} ({time.monotonic() - started:.1f} s): {mistake.seen_by}", flush=True)
            if end == BROKEN:
                print(f"  fails without the mistake, or was skipped:\n{output}", flush=True)
    print(f"{ends.count(SEEN)} of {len(ends)} mistakes seen, {ends.count(MISSED)} missed, {ends.count(BROKEN)} broken")
    return int(ends.count(SEEN) < len(ends))


if __name__ == "__main__":
    sys.exit(main())
