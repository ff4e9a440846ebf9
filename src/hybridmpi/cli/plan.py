"""`hybridmpi plan JOB`: how each parameter of a job would travel, what that moves, how long a step would take.

Started on several ranks it measures the machine that they are, and runs some steps in every mode beside that.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from hybridmpi.cli.job import add_job
from hybridmpi.cli.launch import UNDER_MPI
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
    parser.add_argument("--local", action="store_true", help="rows of a node's ranks are summed before they are pushed")
    parser.add_argument("--row-wire", choices=("float32", "bfloat16", "float16"))
    parser.add_argument("--measure", action="store_true", help="measure this machine, and a step of the model on it")
    parser.add_argument("--steps", type=int, metavar="N", help="under mpirun: steps of each mode, after 3 (10)")
    parser.add_argument(
        "--limit", type=float, metavar="S", help="under mpirun: leave out modes whose steps would take longer (60)"
    )
    parser.add_argument("--explain", metavar="NAME", help="all about one parameter")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


# What describes a machine that is not there, and what only ranks that are there can do.
OF_A_MACHINE = ("nodes", "ranks", "servers", "link_gbps", "cores", "alpha", "local", "row_wire", "measure", "explain")
OF_RANKS = ("steps", "limit")


def run(options: argparse.Namespace) -> int:
    """Print the plan and return the exit code. Local, without MPI but for --measure; where MPI started several ranks,
    collective over them."""
    several = any(int(os.environ.get(name, 1)) > 1 for name in UNDER_MPI)
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
    from hybridmpi.planning.costs import Transport
    from hybridmpi.planning.machine import PAYLOAD, Machine
    from hybridmpi.planning.rates import measure_rates
    from hybridmpi.planning.report import Outlook
    from hybridmpi.training.job import read_job

    job = read_job(options.job, options.overrides)
    gbps = 1.0 if options.link_gbps is None else options.link_gbps
    if not gbps > 0:
        raise UsageError(f"--link-gbps {gbps}: expected a number above 0")
    rates = measure_rates() if options.measure else {}
    if options.cores is not None:
        rates["cores"] = options.cores
    compute, servers = places(
        1 if options.nodes is None else options.nodes, options.ranks, options.servers, job.world.servers
    )
    machine = Machine.calibrated(compute, servers, link_rate=PAYLOAD * gbps * 1e9 / 8, **rates)
    describe = WORKLOADS.get(job.model.kind)
    if describe is None:
        raise UsageError(
            f"{options.job}: jobs of kind '{job.model.kind}' cannot be planned: {', '.join(WORKLOADS)} can"
        )
    workload = describe(job, machine, options.measure)
    workload = with_alphas(workload, options.alpha, machine)
    transport = Transport(
        options.local, options.row_wire or job.sparse.wire, job.allreduce.wire, job.allreduce.algorithm
    )
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
    on = [node_of[rank] for rank in chosen]
    holding = tuple(on.count(node) for node in range(nodes))
    return tuple(node_of.count(node) - holding[node] for node in range(nodes)), holding


def with_alphas(workload: Any, alphas: Sequence[str], machine: Any) -> Any:
    """Return the workload with --alpha TABLE=X in place of what the data say. Local. Raises UsageError for others."""
    from hybridmpi.planning.workload import Touched, at_alpha

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
        tables[name] = at_alpha(tables[name], alpha)
        workload = workload.with_touched(name, Touched.expected(tables[name], machine))
    return replace(workload, tables=tuple(tables.values()))


def _language_model(job: Any, machine: Any, measure: bool) -> Any:
    """Return the workload of a job of kind "lm"."""
    from hybridmpi import data
    from hybridmpi.models.lm import LanguageModel
    from hybridmpi.planning.language import language_model_draws, language_model_flops
    from hybridmpi.planning.workload import Touched, Workload, describe_model

    section, sizes = job.data, job.model
    corpus = data.load(
        section.source, section.vocabulary, section.held_out, Path(section.cache) if section.cache else None
    )
    vocabulary = len(corpus.vocabulary)
    samples = min(sizes.samples, vocabulary)
    words = section.streams * section.steps / machine.ranks
    model = LanguageModel(vocabulary, sizes.width, sizes.hidden, samples, sizes.dropout, sizes.softmax)
    draws = language_model_draws(corpus.vocabulary.counts, words, samples if sizes.softmax == "sampled" else None)
    dense, tables = describe_model(model, len(job.optimizer.slots), draws, job.sparse.partition)
    touched = {table.name: Touched.expected(table, machine) for table in tables}
    if measure:
        rank_streams = max(1, section.streams // machine.ranks)
        seconds = _measured_step(model, job, corpus.train, rank_streams) * words / (rank_streams * section.steps)
    else:
        classes = touched["output"].rank
        seconds = language_model_flops(words, touched["embedding"].rank, classes, sizes.width, sizes.hidden)
        seconds /= machine.flops
    clip = job.training.clip > 0
    return Workload(dense, tables, touched, seconds, clip=clip, units=section.streams * section.steps, unit="words")


# A kind of job that can be planned: what makes its workload of (job, machine, whether to measure a step).
WORKLOADS: dict[str, Callable[[Any, Any, bool], Any]] = {"lm": _language_model}

MEASURED_STEPS, MEASURED_AFTER = 12, 4


def _measured_step(model: Any, job: Any, tokens: Any, streams: int) -> float:
    """Return the seconds of forward and backward of one rank's batch of so many streams, in this process."""
    from statistics import median

    from hybridmpi.data import Streams
    from hybridmpi.training.trainer import Trainer
    from hybridmpi.world import World

    with World(servers=0) as world:
        trainer = Trainer(world, model, job.optimizer)
        seconds = []
        batches = Streams(tokens, streams, job.data.steps)
        trainer.fit(batches, MEASURED_STEPS, lambda r: seconds.append(r.seconds["forward"] + r.seconds["backward"]))
        trainer.close()
    return median(seconds[MEASURED_AFTER:])
