"""`hybridmpi plot runs/a runs/b -o runs.png`: a picture of runs, or of what they have done so far. Needs no MPI."""

from __future__ import annotations

import argparse

from hybridmpi.paths import path_argument


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `plot` to `parser`."""
    parser.add_argument(
        "runs", nargs="+", metavar="RUN", type=path_argument, help="directories of runs, or their metrics.jsonl"
    )
    parser.add_argument(
        "-o", "--output", type=path_argument, required=True, metavar="FILE", help="a .png, .svg or .pdf file"
    )
    parser.add_argument("--force", action="store_true", help="replace a file that is no picture of this command")
    parser.add_argument("--x", choices=("step", "time"), default="step", help="along steps, or seconds of training")
    parser.add_argument("--log", action="store_true", help="losses on a logarithmic axis")


def run(options: argparse.Namespace) -> int:
    """Draw and return the exit code 0. Raises UsageError for runs that are not there, or a file that cannot be."""
    from hybridmpi.pictures import require_picture
    from hybridmpi.watching.plot import draw
    from hybridmpi.watching.reading import read_metrics

    require_picture(options.output, "-o", options.force)
    draw(
        options.output,
        [read_metrics(path) for path in options.runs],
        list(map(str, options.runs)),
        options.x,
        options.log,
    )
    print(options.output)
    return 0
