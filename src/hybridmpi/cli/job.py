"""The arguments of commands that take a job file."""

from __future__ import annotations

import argparse

from hybridmpi.paths import expanded


def job_path(text: str) -> str:
    """Return the path of a job file. Local."""
    return expanded(text, "job file")


def add_job(parser: argparse.ArgumentParser) -> None:
    """Add the job file, and the option that changes what it says."""
    parser.add_argument("job", type=job_path, help="job file (TOML), such as jobs/lm.toml")
    parser.add_argument(
        "--set",
        dest="overrides",
        action="append",
        default=[],
        metavar="SECTION.KEY=VALUE",
        help="replace a value of the job file; may be given several times",
    )
