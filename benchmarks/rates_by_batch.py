"""Comparisons of training rates by batch size: ours beside its peers, and the share of what matrix products allow.

Ours is `hybridmpi bench dynamic`: of each batch size, the first row of its results counts whose "n" is that size. A
peer prints what peers/common.py records, with the batch size in "params". The limit is peers/products.py.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

OURS, LIMIT, DYNET = "hybridmpi", "matrix products", "DyNet"
BEST = "the best peer"
UNIT = "trees/s"
LIMIT_REPEATS = 30  # of 0.1 to 0.2 s: enough that the best is an undisturbed one

Runs = Mapping[str, Sequence[dict[str, Any]]]
Targets = Callable[[int], Mapping[str, float]]


def ours(python: str, threads: int, batches: Sequence[int], *more: str) -> list[str]:
    """Return the command line of our program."""
    sizes = ["--batch", *map(str, batches), "--threads", str(threads), "--json"]
    return [python, "-m", "hybridmpi", "bench", "dynamic", *more, *sizes]


def limit(python: str, program: str, threads: int, products: Sequence[tuple[int, int, int]]) -> list[str]:
    """Return the command line of the limit. `products`: rows, inputs and outputs of each."""
    sizes = [word for product in products for word in ("--product", *map(str, product))]
    return [python, program, *sizes, "--reps", str(LIMIT_REPEATS), "--threads", str(threads)]


def summarise(runs: Runs, flop: Mapping[int, float], targets: Targets) -> dict[str, Any]:
    """Return one table for each batch size, and the targets missed.

    `runs`: what each program printed in each round, ours and the limit among them. `flop`: floating-point operations of
    the matrix products of a tree, forward and backward, by batch size. `targets(batch)`: how many times the rate of a
    peer, or of BEST, ours must have at least. Ratios are taken within a round, their medians over rounds; the limit is
    from the best repetition of all rounds, since one that was disturbed limits nothing.
    """
    speeds = [run["max"] for run in runs[LIMIT]]
    tables, missed = {}, []
    for batch, operations in flop.items():
        rows = {name: [_row(name, run, batch) for run in found] for name, found in runs.items() if name != LIMIT}
        tables[batch] = table = _table(rows, max(speeds) * 1e9 / operations)
        reached = table["ratio"] | {BEST: table["ratio"][table["best"]]}
        for peer, least in targets(batch).items():
            if peer in reached and reached[peer]["median"] < least:
                missed.append(f"batch {batch} below {least:g} x {peer}")
    return {
        "machine": runs[OURS][0]["machine"] | {name: runs[name][0]["version"] for name in runs if name != OURS},
        "gflops_by_round": speeds,
        "validated": True,
        "tables": tables,
        "missed": missed,
        "load_average_by_round": [run["machine"]["load_average"][0] for run in runs[OURS]],
    }


def _row(name: str, run: Mapping[str, Any], batch: int) -> dict[str, Any]:
    """Return the row of a batch size in what a program printed."""
    if name == OURS:
        return next(row for row in run["results"] if row["unit"] == UNIT and row["n"] == batch)
    return next(row for row in run["results"] if row["params"]["batch"] == batch)


def _table(rows: Mapping[str, Sequence[dict[str, Any]]], limit: float) -> dict[str, Any]:
    """Return the comparison at one batch size. `rows`: of each program in each round; `limit`: trees/s."""
    medians = {name: [row["median"] for row in found] for name, found in rows.items()}
    peers = [name for name in rows if name != OURS]
    return {
        "unit": UNIT,
        "best": max(peers, key=lambda name: statistics.median(medians[name])),
        "ratio": {name: _ratio(medians[OURS], medians[name]) for name in peers},
        "of_the_limit": {name: round(statistics.median(medians[name]) / limit, 3) for name in rows},
        "limit": limit,
        "rows": {
            name: {
                "median": statistics.median(medians[name]),
                "min": min(row["min"] for row in found),
                "max": max(row["max"] for row in found),
            }
            for name, found in rows.items()
        },
    }


def _ratio(ours: Sequence[float], theirs: Sequence[float]) -> dict[str, Any]:
    by_round = [round(a / b, 3) for a, b in zip(ours, theirs, strict=True)]
    return {"median": statistics.median(by_round), "by_round": by_round}


def as_text(summary: Mapping[str, Any]) -> str:
    """Return the summary for people: our rate over that of each peer, and the share of the limit that each has."""
    lines = []
    for batch, table in summary["tables"].items():
        title = f"batch {batch}, {UNIT}"
        lines.append(f"{title:<24}{'median':>9}{'min':>9}{'max':>9}{'of limit':>10}   hybridmpi is (by round)")
        for name, row in table["rows"].items():
            rates = "".join(f"{row[what]:>9,.0f}" for what in ("median", "min", "max"))
            line = f"{name:<24}{rates}{table['of_the_limit'][name]:>10.0%}"
            if name != OURS:
                ratio = table["ratio"][name]
                by_round = ", ".join(f"{value:.2f}" for value in ratio["by_round"])
                line += f"   {ratio['median']:.2f} times it ({by_round})" + ", the best peer" * (name == table["best"])
            lines.append(line)
        lines.append(f"{'limit':<24}{table['limit']:>9,.0f}")
    speeds = ", ".join(f"{speed:g}" for speed in summary["gflops_by_round"])
    lines.append(f"large matrix products, GFLOP/s at best by round: {speeds}")
    loads = ", ".join(map(str, summary["load_average_by_round"]))
    lines.append(f"load average at the end of our runs: {loads} on {summary['machine']['cores']} cores")
    return "\n".join([*lines, f"targets missed: {', '.join(summary['missed']) or 'none'}"])
