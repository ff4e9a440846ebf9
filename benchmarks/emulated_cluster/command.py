"""The command line: make a cluster, run one MPI job on it or measure its links, take it down."""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Sequence

from emulated_cluster.cluster import Cluster
from emulated_cluster.namespaces import end_leftovers, reason_against
from emulated_cluster.placement import BLOCK, PLACEMENTS
from hybridmpi.errors import HybridMPIError

EXAMPLE = """
without a program, the links are measured. A program is what 'hybridmpi launch' takes:
  python benchmarks/emulated_cluster --hosts 8 --groups 2 --trunk 250mbit --placement round-robin -- \\
    bench allreduce --bytes 67108864
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit status: the job's, 2 for what cannot be started, 1 for a timeout."""
    parser = _parser()
    options = parser.parse_args(arguments)
    if options.down:
        return down()
    # Every way out leads through the `with` statement; where Python is killed, the kernel takes the cluster down.
    signal.signal(signal.SIGTERM, _leave)
    try:
        return _run(options)
    except (HybridMPIError, TimeoutError) as error:
        print(f"emulated cluster: {str(error).removeprefix('emulated cluster: ')}", file=sys.stderr)
        return getattr(error, "exit_code", 1)
    except KeyboardInterrupt:
        return 128 + signal.SIGINT


def _run(options: argparse.Namespace) -> int:
    command = options.command[options.command[:1] == ["--"] :]
    with Cluster(options.hosts, options.rate, options.groups, options.trunk, options.delay_us) as cluster:
        _say(f"{options.hosts} hosts in {options.groups} group{'s' * (options.groups > 1)}, links {options.rate}")
        if options.groups > 1:
            _say(f"  trunk {options.trunk}: " + " | ".join(" ".join(names) for names in cluster.layout.members))
        if not command:
            for rate in cluster.check():
                print(rate, flush=True)
            return 0
        before = cluster.trunk_bytes() if options.groups > 1 else []
        outcome = cluster.run(
            command, options.ranks, dict(options.mpi_env), options.placement, options.timeout, echo=True
        )
        _say(f"exit {outcome.code} after {outcome.seconds:.1f} s")
        for group, (left, entered) in enumerate(before):
            now_left, now_entered = cluster.trunk_bytes()[group]
            _say(f"group {group}: {now_left - left:,} bytes left it over the trunk, {now_entered - entered:,} entered")
        return outcome.code if outcome.code >= 0 else 128 - outcome.code


def down() -> int:
    """End clusters whose makers are gone and say which there were; return the exit status."""
    if reason := reason_against():
        print(f"emulated cluster: {reason}", file=sys.stderr)
        return 2
    ended, used = end_leftovers()
    for maker in ended:
        print(f"ended the cluster that process {maker} left behind")
    for maker in used:
        print(f"left alone the cluster that process {maker} is using")
    if not ended and not used:
        print("nothing is left of any cluster")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="emulated_cluster",
        usage="python benchmarks/emulated_cluster [--hosts N] [--groups N --trunk RATE] [...] [-- PROGRAM ARGS...]",
        description="Hosts on shaped links, as network namespaces of this machine, with one MPI job across them.",
        epilog=EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--hosts", type=int, default=4, metavar="N", help="number of hosts (default %(default)s)")
    add("--rate", default="1gbit", help="of each host's link, both ways, such as 500mbit (default %(default)s)")
    add("--groups", type=int, default=1, metavar="N", help="number of groups of hosts (default %(default)s)")
    add("--trunk", metavar="RATE", help="rate of each group's link to the others, both ways; needed with groups")
    add("--delay-us", type=int, default=0, metavar="US", help="time from host to host, one way (default %(default)s)")
    add("--ranks", type=int, metavar="N", help="number of ranks (default: one on each host)")
    add(
        "--placement",
        choices=PLACEMENTS,
        default=BLOCK,
        help="neighbouring ranks stay together, or are dealt to the groups in turn (default %(default)s)",
    )
    add("--mpi-env", action="append", default=[], type=_setting, metavar="K=V", help="set in every rank; repeatable")
    add("--timeout", type=float, default=600.0, metavar="S", help="seconds the job may take (default %(default)g)")
    add("--down", action="store_true", help="end what clusters of killed processes have left, and do nothing else")
    add("command", nargs=argparse.REMAINDER, metavar="-- PROGRAM ARGS...", help="what the ranks run")
    return parser


def _setting(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise argparse.ArgumentTypeError(f"'{text}': expected NAME=VALUE")
    return name, value


def _leave(number: int, _: object) -> None:
    sys.exit(128 + number)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
