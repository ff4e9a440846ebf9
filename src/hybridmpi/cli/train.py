"""`hybridmpi train JOB`: train the model of a job file on all ranks that MPI started."""

from __future__ import annotations

import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    parser.add_argument("job", help="job file (TOML), such as jobs/lm.toml")
    parser.add_argument(
        "--set",
        dest="overrides",
        action="append",
        default=[],
        metavar="SECTION.KEY=VALUE",
        help="replace a value of the job file; may be given several times",
    )
    parser.add_argument(
        "--resume", metavar="PATH", help="continue from a checkpoint, or from the newest in a directory of them"
    )


def run(options: argparse.Namespace) -> int:
    """Train. Collective over the launch communicator; returns the exit code."""
    # Signals first: one that comes before its handler is set would kill the rank.
    from hybridmpi.training.signals import StopRequest

    stop = StopRequest()
    from hybridmpi.training.job import read_job
    from hybridmpi.world import run as run_world

    # Every rank reads the small job file for itself: its roles hang on it. All see the same file or the same error.
    job = read_job(options.job, options.overrides)

    def main(world):
        from hybridmpi.training.run import run_job

        return run_job(world, job, options.resume, stop)

    return run_world(main, servers=job.servers) or 0
