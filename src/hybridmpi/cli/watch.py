"""`hybridmpi watch runs/lm`: what a run is doing, read from its metrics file while it writes. Needs no MPI."""

from __future__ import annotations

import argparse
import sys

from hybridmpi.paths import path_argument


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `watch` to `parser`."""
    parser.add_argument(
        "run",
        type=path_argument,
        help="the directory of a run (checkpoint.directory in its job file), or its metrics.jsonl",
    )
    parser.add_argument("--once", action="store_true", help="show what there is now, and end")


def run(options: argparse.Namespace) -> int:
    """Show the run until it has ended and return the exit code: 0, also after Ctrl-C; 75 if a signal stopped the run.

    Raises UsageError for what is no metrics file, and with --once for one that is not there.
    """
    from hybridmpi.watching.follow import follow, show
    from hybridmpi.watching.reading import MetricsReader, require_metrics

    reader = MetricsReader(options.run)
    try:
        if options.once:
            require_metrics(reader)
            print("\n".join(show(reader, str(options.run), sys.stdout)))
            return 0
        return follow(reader, str(options.run), sys.stdout)
    except KeyboardInterrupt:
        print()
        return 0
