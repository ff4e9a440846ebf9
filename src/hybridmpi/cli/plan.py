"""`hybridmpi plan JOB`: how each parameter of a job would travel, what that moves, how long a step would take.

Started on several ranks it measures the machine that they are, and runs some steps in every mode beside that.
"""

from __future__ import annotations

import argparse
import json
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from hybridmpi.cli.job import add_job
from hybridmpi.cli.launch import one_of_several
from hybridmpi.errors import LaunchError, UsageError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    add_job(parser)
    parser.add_argument("--nodes", type=int, metavar="N", help="nodes (1)")
    parser.add_argument("--ranks", type=int, metavar="N", help="ranks in all, servers among them (3 for each node)")
    parser.add_argument("--servers", metavar="N", help="servers in all, or per-node (what the job file says)")
    parser.add_argument("--link-gbps", type=float, metavar="G", help="Gbit/s of a node's link (1)")
    parser.add_argument("--cores", type=float, metavar="N", help="cores of all nodes together (one for each rank)")
    parser.add_argument(
        "--alpha",
        action="append",
        default=[],
        metavar="TABLE=X",
        help="the fraction of a table's rows that a rank touches in a step, in place of what its data say",
    )
    parser.add_argument("--row-wire", choices=("float32", "bfloat16", "float16"))
    parser.add_argument("--measure", action="store_true", help="measure this machine, and a step of the model on it")
    parser.add_argument("--steps", type=int, metavar="N", help="under mpirun: steps of each mode, after 3 (10)")
    parser.add_argument(
        "--limit", type=float, metavar="S", help="under mpirun: leave out modes whose steps would take longer (60)"
    )
    parser.add_argument("--explain", metavar="NAME", help="all about one parameter")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


# What describes a machine that is not there, and what only ranks that are there can do.
OF_A_MACHINE = ("nodes", "ranks", "servers", "link_gbps", "cores", "alpha", "row_wire", "measure", "explain")
OF_RANKS = ("steps", "limit")


def run(options: argparse.Namespace) -> int:
    """Print the plan and return the exit code. Local, without MPI but for --measure; where MPI started several ranks,
    collective over them."""
    several = one_of_several() is not None
    for name in OF_A_MACHINE if several else OF_RANKS:
        if getattr(options, name) not in (None, False, []):
            option = f"--{name.replace('_', '-')}"
            if several:
                raise UsageError(f"{option}: on several ranks the machine is the one that they are on; leave it out")
            raise UsageError(f"{option}: expected several ranks, such as hybridmpi launch -n 3 -- plan {options.job}")
    return _run_beside(options) if several else _predict(options)


def _run_beside(options: argparse.Namespace) -> int:
    """Print predictions beside what the ranks measure. Collective over the launch communicator."""
    from hybridmpi.training.job import read_job
    from hybridmpi.world import World
    from hybridmpi.world import run as run_world

    steps = 10 if options.steps is None else options.steps
    limit = 60.0 if options.limit is None else options.limit
    if steps < 1:
        raise UsageError(f"--steps {steps}: expected at least 1")
    job = read_job(options.job, options.overrides)

    def main(world: World) -> None:
        from hybridmpi.training.trial import try_modes

        found = try_modes(world, job, steps, limit)
        if world.on_root():
            print(json.dumps(found.as_json(), allow_nan=False) if options.json else found, flush=True)

    run_world(main, servers=job.world.servers)
    return 0


def _predict(options: argparse.Namespace) -> int:
    """Print the plan for the machine that the options describe."""
    from hybridmpi.planning.costs import rows_together
    from hybridmpi.planning.machine import PAYLOAD, Machine
    from hybridmpi.planning.rates import measure_rates
    from hybridmpi.planning.report import Outlook
    from hybridmpi.training.adaptive import transport_of
    from hybridmpi.training.job import read_job
    from hybridmpi.training.options import dense_options, sparse_options
    from hybridmpi.training.outlook import plan_job, require_drawable

    job = read_job(options.job, options.overrides)
    gbps = 1.0 if options.link_gbps is None else options.link_gbps
    if not 0 < gbps < math.inf:
        raise UsageError(f"--link-gbps {gbps}: expected a number above 0, and below infinity")
    rates = measure_rates() if options.measure else {}
    if options.cores is not None:
        rates["cores"] = options.cores
    compute, servers = places(
        1 if options.nodes is None else options.nodes, options.ranks, options.servers, job.world.servers
    )
    require_drawable(sum(compute))
    machine = Machine.calibrated(compute, servers, link_rate=PAYLOAD * gbps * 1e9 / 8, **rates)
    workload = with_alphas(plan_job(job, machine, options.measure), options.alpha)
    local, together = rows_together(machine, job.sparse.aggregate, job.training.staleness)
    # Where rows are read in advance, every rank reads its own.
    together = together and not (job.sparse.prefetch or job.sparse.cache_rows)
    transport = transport_of(sparse_options(job), dense_options(job), local, together)
    if options.row_wire:
        transport = replace(transport, row_wire=options.row_wire)
    outlook = Outlook(workload, machine, transport)
    if options.explain is not None:
        name = outlook.parameter(options.explain).name
        if options.json:
            parameters = outlook.as_json()["parameters"]
            print(json.dumps(next(p for p in parameters if p["name"] == name), allow_nan=False))
        else:
            print(outlook.explain(name))
    else:
        print(json.dumps(outlook.as_json(), allow_nan=False) if options.json else outlook)
    return 0


def places(
    nodes: int, ranks: int | None, servers: str | None, of_job: int | str
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return (compute ranks, servers) of each node: ranks dealt evenly, roles as the world gives them. Local.

    Raises UsageError for numbers that make no sense.
    """
    from hybridmpi.roles import assign_servers

    if nodes < 1:
        raise UsageError(f"--nodes {nodes}: expected at least 1")
    ranks = 3 * nodes if ranks is None else ranks
    if ranks < nodes:
        raise UsageError(f"--ranks {ranks}: expected at least one for each of {nodes} nodes")
    wanted: int | str = of_job
    if servers is not None:
        if servers != "per-node" and not servers.isdigit():
            raise UsageError(f"--servers {servers}: expected 'per-node' or a number from 0 up")
        wanted = servers if servers == "per-node" else int(servers)
    node_of = [rank * nodes // ranks for rank in range(ranks)]
    try:
        chosen = assign_servers(node_of, wanted)
    except LaunchError as error:
        raise UsageError(f"--ranks {ranks}: {error}") from error
    holding = Counter(node_of[rank] for rank in chosen)
    there = Counter(node_of)
    return tuple(there[node] - holding[node] for node in range(nodes)), tuple(holding[node] for node in range(nodes))


def with_alphas(workload: Any, alphas: Sequence[str]) -> Any:
    """Return the workload with --alpha TABLE=X in place of what the data say. Local. Raises UsageError for others."""
    tables = {table.name: table for table in workload.tables}
    for text in alphas:
        name, _, value = text.partition("=")
        try:
            alpha = float(value)
        except ValueError:
            alpha = -1.0
        if name not in tables:
            raise UsageError(f"--alpha {text}: no table '{name}'; the model has {', '.join(tables) or 'none'}")
        if not 0 <= alpha <= 1:
            raise UsageError(f"--alpha {text}: expected TABLE=X with X from 0 to 1, such as {name}=0.2")
        touched = workload.touched[name].moved_to(alpha, tables[name].rows)
        workload = workload.with_touched(name, touched)
    return workload
