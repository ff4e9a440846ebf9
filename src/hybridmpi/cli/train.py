"""`hybridmpi train JOB`: train the model of a job file on all ranks that MPI started."""

from __future__ import annotations

import argparse

from hybridmpi.cli.job import add_job
from hybridmpi.paths import expanded, path_argument


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    add_job(parser)
    begin = parser.add_mutually_exclusive_group()
    begin.add_argument(
        "--resume",
        nargs="?",
        const="",
        metavar="PATH",
        help="continue from a checkpoint, or from the newest in a directory of them; without PATH from the newest in "
        "checkpoint.directory, or from the start while there is none (then after the job file)",
    )
    begin.add_argument(
        "--fresh",
        action="store_true",
        help="start over: remove the checkpoints in checkpoint.directory, and the metrics, of an earlier run",
    )
    parser.add_argument(
        "--trace",
        type=path_argument,
        metavar="FILE",
        help="record what every rank does in some steps, as a timeline that ui.perfetto.dev and chrome://tracing open",
    )
    parser.add_argument(
        "--trace-steps",
        type=steps,
        metavar="FIRST:LAST",
        help="the steps that --trace records, such as 10:20; without it the 20 steps after the first three",
    )


def steps(text: str) -> tuple[int, int]:
    """Return the first and the last step of --trace-steps. Local."""
    first, last = map(int, text.split(":"))
    if not 1 <= first <= last:
        raise ValueError
    return first, last


steps.__name__ = "range of steps, FIRST:LAST,"  # argparse: "invalid range of steps, FIRST:LAST, value"


def run(options: argparse.Namespace) -> int:
    """Train. Collective over the launch communicator; returns the exit code."""
    # Signals first: one that comes before its handler is set would kill the rank.
    from hybridmpi.errors import UsageError
    from hybridmpi.signals import StopRequest

    if options.resume:
        options.resume = expanded(options.resume, "--resume")
    if options.trace_steps and not options.trace:
        raise UsageError("--trace-steps says which steps are recorded, --trace FILE where they go: give both")
    stop = StopRequest()
    stop.listen()
    from hybridmpi.training.job import read_job
    from hybridmpi.world import World

    # Every rank reads the small job file for itself: its roles hang on it. All see the same file or the same error.
    job = read_job(options.job, options.overrides)

    with World(job.servers, asked_to_stop=stop) as world:
        from hybridmpi.training.outputs import require_outputs
        from hybridmpi.training.run import run_job

        require_outputs(world, job, options.job, options.trace)
        traced = (options.trace, options.trace_steps)
        code = 0 if world.is_server else run_job(world, job, options.resume, *traced, fresh=options.fresh)
    stop.ignore()
    return code
