"""`hybridmpi bench NAME`: measure one piece of the system, validated; whole comparisons are programs in benchmarks/."""

from __future__ import annotations

import argparse
from importlib import import_module

BENCHMARKS = {
    "allreduce": "what a Trainer uses, each algorithm of messages, and MPI's own, by size",
    "sparse": "pulls and pushes of rows, by each way they can travel",
    "aggregate": "sums over the duplicate rows of a sparse gradient, against numpy and scipy",
    "lm": "training steps of the language model, time by phase",
    "dynamic": "training steps of models over trees that differ, by batch size; the share of scheduling",
    "growing": "training steps on trees that the model draws, in batches and one call after the other",
    "checkpoint": "writing a checkpoint, at once and behind, beside a plain write and a copy in memory",
    "overlap": "training steps with sums of dense gradients during backward and after it",
}
"""name: one line of help. Module hybridmpi.bench.NAME has add_arguments(parser), servers(options) and
measure(world, options) -> (parameters, rows)."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `hybridmpi bench`."""
    benchmarks = parser.add_subparsers(dest="bench", required=True, metavar="NAME")
    for name, text in BENCHMARKS.items():
        module = import_module(f"hybridmpi.bench.{name}")
        one = benchmarks.add_parser(
            name, help=text, description=module.__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
        )
        module.add_arguments(one)
        one.add_argument("--json", action="store_true", help="end with one JSON object on the last line of stdout")


def run(options: argparse.Namespace) -> int:
    """Measure and print. Collective over the launch communicator; returns the exit code.

    Raises HybridMPIError, and prints no figure, when a result is wrong.
    """
    from hybridmpi.bench.measure import report
    from hybridmpi.world import World
    from hybridmpi.world import run as run_world

    module = import_module(f"hybridmpi.bench.{options.bench}")

    def main(world: World) -> int:
        params, results = module.measure(world, options)
        report(world, options.bench, params, results, options.json)
        return 0

    return run_world(main, servers=module.servers(options)) or 0
