"""`hybridmpi inspect PATH`: what a checkpoint holds, without MPI."""

from __future__ import annotations

import argparse
import json

from hybridmpi.checkpoint.inspect import describe, render


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `inspect` to `parser`."""
    parser.add_argument(
        "path", help="a checkpoint directory, a directory of checkpoints (the newest whole one is shown) or an index.h5"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--verify", action="store_true", help="check every byte; exit 1 if any is damaged")


def run(options: argparse.Namespace) -> int:
    """Print the checkpoint and return the exit code: 1 if it is damaged.

    Raises CheckpointError when there is no whole checkpoint at the path.
    """
    description = describe(options.path, check_digests=options.verify)
    print(json.dumps(description, allow_nan=False) if options.json else render(description))
    return 1 if description["damage"] else 0
