"""Running the programs of a comparison: one at a time, their threads bounded, none left behind, a JSON object from
each; and the arguments that comparisons with torch have."""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import IO, Any, NoReturn

THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS")
LAST_LINES = 25  # the banners of an aborted launch take fifteen


def options_against_torch(
    description: str, add: Callable[[argparse.ArgumentParser], None] | None = None
) -> argparse.Namespace:
    """Return the arguments of a comparison with torch: `torch_python`, `rounds`, `json`, and those that `add` adds."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--torch-python", required=True, metavar="PATH", help="a Python interpreter that has torch")
    parser.add_argument("--rounds", type=int, default=3, help="how often each program runs (default %(default)s)")
    parser.add_argument("--json", action="store_true", help="end with one JSON object on the last line of stdout")
    if add:
        add(parser)
    options = parser.parse_args()
    if options.rounds < 1:
        parser.error("--rounds must be at least 1")
    return options


def run_in_turn(
    commands: Mapping[str, Sequence[str]], times: int, seconds: float, word: str = "round", threads: int = 1
) -> dict[str, list[dict[str, Any]]]:
    """Run every program once, one after the other, so many `times` over; return what each printed, by name. `word`:
    what one time over is called. `seconds`, `threads`: see `run`, and what ends this process."""
    printed: dict[str, list[dict[str, Any]]] = {name: [] for name in commands}
    for number in range(times):
        for name, argv in commands.items():
            what = f"{word} {number + 1} of {times}: {name}"
            print(what, file=sys.stderr, flush=True)
            printed[name].append(run(what, argv, seconds, threads))
    return printed


def run(what: str, argv: Sequence[str], seconds: float, threads: int = 1) -> dict[str, Any]:
    """Run one program; return the JSON object on the last line of its stdout.

    Each of its processes computes with so many threads, unless it says otherwise itself. The program has a process
    group of its own, which is killed when the program has ended, takes longer than `seconds`, or this process is
    interrupted or terminated; `hybridmpi launch` takes its ranks with it. Ends this process, with what the program last
    said on stderr, when the program fails or prints no such object.
    """
    # Files, since a pipe ends only when the last process that holds it has ended.
    with (
        tempfile.TemporaryFile("w+", errors="replace") as output,
        tempfile.TemporaryFile("w+", errors="replace") as errors,
    ):
        try:
            status = _wait(argv, threads, output, errors, seconds)
        except subprocess.TimeoutExpired:
            _fail(f"{what}: no end after {seconds:g} s", _text(errors))
        except OSError as error:
            sys.exit(f"{what}: cannot start {argv[0]}: {error.strerror}")
        if status:
            _fail(f"{what}: exit status {status}", _text(errors))
        printed = _text(output)
        try:
            return json.loads(printed.splitlines()[-1])
        except (IndexError, ValueError):
            _fail(f"{what}: expected a JSON object on the last line of stdout", printed + _text(errors))


def _wait(argv: Sequence[str], threads: int, output: IO[str], errors: IO[str], seconds: float) -> int:
    """Run a program and return its exit status. Raises TimeoutExpired, when it and all its group are dead."""
    before = signal.signal(signal.SIGTERM, _leave)
    process = None
    try:
        process = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=errors,
            env=os.environ | dict.fromkeys(THREAD_VARIABLES, str(threads)),
            process_group=0,
        )
        return process.wait(seconds)
    finally:
        if process:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        signal.signal(signal.SIGTERM, before)


def _leave(number: int, _frame: object) -> NoReturn:
    sys.exit(128 + number)


def _text(file: IO[str]) -> str:
    file.seek(0)
    return file.read().replace("\0", "")  # Open MPI ends a banner with a zero byte


def _fail(what: str, said: str) -> NoReturn:
    last = "\n".join(said.splitlines()[-LAST_LINES:])
    sys.exit(f"{what}; nothing is reported. It last said:\n{last}")
