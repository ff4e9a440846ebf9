"""`hybridmpi inspect PATH`: look into a checkpoint, without MPI."""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Callable
from importlib import import_module
from typing import Any

from hybridmpi.errors import UsageError
from hybridmpi.paths import path_argument

EXAMPLES = """
examples:
  hybridmpi inspect runs/lm                                    what is in the newest checkpoint
  hybridmpi inspect runs/lm --steps                            all checkpoints there
  hybridmpi inspect runs/lm --show embedding --rows 10:20      some rows, with their words
  hybridmpi inspect runs/lm --show lstm.bias --slot accumulator
  hybridmpi inspect runs/lm --statistics --parameters 'lstm.*'
  hybridmpi inspect runs/lm --near return                      words whose rows are alike
  hybridmpi inspect --diff runs/lm/step-00001000 runs/lm       what changed
  hybridmpi inspect runs/lm --verify                           every byte, exit status 1 if one is damaged
  hybridmpi inspect runs/lm --export model.npz                 one plain file, for other programs

PATH may be a checkpoint (step-NNNNNNNN), a file in it, or a directory of checkpoints: its newest whole one.
"""

# option: the options that only mean something beside it (and what they are when not given).
COMPANIONS = {
    "show": {"rows": None, "slot": None},
    "near": {"table": None, "top": None},
    "export": {"with_state": False, "force": False},
}
TOP = 10


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `inspect` to `parser`."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = EXAMPLES
    # argparse takes what begins with '-' for an option unless it looks like a number; '-5:' is one here.
    parser._negative_number_matcher = re.compile(r"-\d[-\d:,]*|-\.?\d+$")
    parser.add_argument(
        "path", nargs="?", metavar="PATH", type=path_argument, help="a checkpoint, or a directory of checkpoints"
    )
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--show", metavar="NAME", help="print rows of a parameter")
    what.add_argument("--statistics", action="store_true", help="least, greatest, mean, norm, histogram, ... of each")
    what.add_argument("--near", metavar="WORD", help="the rows of tables nearest to a word's, by cosine")
    what.add_argument(
        "--diff", nargs="+", metavar="PATH", type=path_argument, help="what changed between two checkpoints"
    )
    what.add_argument("--export", metavar="FILE", type=path_argument, help="write one plain .h5 or .npz file")
    parser.add_argument("--verify", action="store_true", help="check every byte; with --steps: of all checkpoints")
    parser.add_argument("--steps", action="store_true", help="list all checkpoints of a directory")
    parser.add_argument("--rows", help="of --show: 17, 10:20, -5:, ::100, or several: 5,17,100")
    parser.add_argument("--slot", help="of --show: the optimiser state of this name")
    parser.add_argument("--table", metavar="NAME", help="of --near: only this table")
    parser.add_argument("--top", type=int, metavar="N", help=f"of --near: so many rows ({TOP})")
    parser.add_argument("--with-state", action="store_true", help="of --export: optimiser state too")
    parser.add_argument("--force", action="store_true", help="of --export: replace a file that is there")
    parser.add_argument(
        "--parameters",
        action="append",
        metavar="PATTERN",
        help="only parameters of this name, with * and ?; may be given several times",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(options: argparse.Namespace) -> int:
    """Print what was asked for and return the exit code: 1 if a checkpoint is damaged.

    Raises UsageError for options that do not go together or names that are not there, CheckpointError where there is
    no whole checkpoint at the path.
    """
    _check(options)
    found, module = _find(options)
    render: Callable[[Any], str] = import_module(f"hybridmpi.inspection.{module}").render
    if options.json:
        print(json.dumps(found, allow_nan=False))
    else:
        from hybridmpi.inspection.text import tame

        print("\n".join(map(tame, render(found).split("\n"))))
    return 1 if module in ("damage", "steps") and _is_damaged(found) else 0


def _find(options: argparse.Namespace) -> tuple[Any, str]:
    """Return what was asked for as plain data, and the module of `hybridmpi.inspection` that found it."""
    if options.steps:
        from hybridmpi.inspection.steps import survey

        return survey(options.path, check_bytes=options.verify), "steps"
    if options.verify:
        from hybridmpi.inspection.damage import check

        return check(options.path), "damage"
    from hybridmpi.inspection.contents import Contents

    if options.diff:
        from hybridmpi.inspection.difference import compare

        return compare(*map(Contents, options.diff), options.parameters), "difference"
    contents = Contents(options.path)
    if options.show is not None:
        from hybridmpi.inspection.rows import show

        return show(contents, options.show, options.slot, options.rows), "rows"
    if options.near is not None:
        from hybridmpi.inspection.near import near

        return near(contents, options.near, options.table, TOP if options.top is None else options.top), "near"
    if options.statistics:
        from hybridmpi.inspection.statistics import measure

        return measure(contents, options.parameters), "statistics"
    if options.export is not None:
        from hybridmpi.inspection.export import export

        return export(contents, options.export, options.parameters, options.with_state, options.force), "export"
    from hybridmpi.inspection.overview import describe

    return describe(contents, options.parameters), "overview"


def _check(options: argparse.Namespace) -> None:
    """Raise UsageError for options that do not go together; complete those of --diff."""
    asked = [name for name in ("show", "statistics", "near", "diff", "export") if getattr(options, name)]
    checks = [name for name in ("verify", "steps") if getattr(options, name)]
    if asked and checks:
        raise UsageError(f"--{asked[0]} and --{checks[0]} are two things: ask for one at a time")
    for main, companions in COMPANIONS.items():
        for name, absent in companions.items():
            if getattr(options, name) != absent and main not in asked:
                raise UsageError(f"--{name.replace('_', '-')} belongs to --{main}, which is not given")
    if options.parameters and (checks or asked in (["show"], ["near"])):
        raise UsageError(f"--parameters chooses nothing for --{(asked or checks)[0]}")
    if options.diff:
        options.diff = ([] if options.path is None else [options.path]) + options.diff
        if len(options.diff) != 2:
            raise UsageError(f"--diff compares two checkpoints, not {len(options.diff)}: --diff A B, or A --diff B")
    elif options.path is None:
        raise UsageError("which checkpoint? Give its directory: hybridmpi inspect runs/lm, for example")


def _is_damaged(found: dict[str, Any]) -> bool:
    """Return whether bytes are not what was written, where they were looked at."""
    return bool(found.get("damage")) or any(one.get("damage") for one in found.get("generations", ()))
