"""`hybridmpi job KIND`: a job file with every key, its default and what it means, to begin with."""

from __future__ import annotations

import argparse
import textwrap

from hybridmpi.paths import path_argument, require_output


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    parser.add_argument("kind", nargs="?", metavar="KIND", help="kind of the job; without one, the kinds are listed")
    parser.add_argument(
        "file", nargs="?", metavar="FILE", type=path_argument, help="the new job file; without one, it is printed"
    )
    parser.add_argument("--force", action="store_true", help="replace a file that is there")


def run(options: argparse.Namespace) -> int:
    """List the kinds, print a job file or write one. Local; returns the exit code.

    Raises UsageError for an unknown kind, and for a file that exists or cannot be written.
    """
    from hybridmpi.errors import UsageError
    from hybridmpi.training.kinds import KINDS, task_of
    from hybridmpi.training.reference import job_file
    from hybridmpi.wording import nearest

    if options.kind is None:
        for kind in KINDS:
            about = textwrap.wrap(task_of(kind).about, 70)
            print(f"{kind:<10}{about[0]}", *(f"{'':<10}{line}" for line in about[1:]), sep="\n")
        print(
            "\nmake a job file and train it with:",
            "hybridmpi job lm my.toml",
            "hybridmpi launch -n 3 -- train my.toml",
            sep="\n  ",
        )
        return 0
    if options.kind not in KINDS:
        raise UsageError(f"no kind of jobs '{options.kind}': {nearest(options.kind, KINDS)}")
    if options.file is None:
        print(job_file(options.kind, f"{options.kind}.toml"), end="")
        return 0
    require_output(options.file, "job file", options.force)
    options.file.write_text(job_file(options.kind, str(options.file)), encoding="utf-8")
    print(f"{options.file} has every key with its default; change some, then:")
    print(f"  hybridmpi launch -n 3 -- train {options.file}")
    return 0
