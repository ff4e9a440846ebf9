"""Row gradients side by side with their peers: one machine, one sitting, the targets checked.

Purpose     push: rows/s of a step that merges duplicate rows, pulls and pushes them and has Adagrad applied, by
            `hybridmpi bench sparse` (2 compute ranks and 1 server), beside every variant of peers/sparse_push.py (2
            processes on gloo, the table on both), and the share of a plain gather's rate that its pulls have;
            aggregate: rows/s of sums over duplicate rows, by `hybridmpi bench aggregate`, beside every method of
            peers/aggregate.py
Environment a Python with hybridmpi runs this file; --torch-python names one with the peers:
            python -m venv V && V/bin/pip install torch==2.13.0 numpy==2.4.6 scipy==1.17.1 pandas==3.0.0
Usage       python benchmarks/sparse_against_peers.py --torch-python V/bin/python [--rounds 3] [--json]
Validated   by each program, before and after it is timed; a program whose result is wrong ends this one too, and
            nothing is reported
Time        each round runs every program once, one after the other, with the same ids, table and rows, and one thread a
            process. The ratio is the median over the rounds of our median over that of the variant that was best in
            all. On a busy machine, compare "max"
Targets     TARGETS below; the last line says which are missed

What differs: the peer holds the whole table on every process, so it pulls nothing; rows are counted as they were drawn,
duplicates included, in both.
"""

from __future__ import annotations

import json
import statistics
import sys
from pathlib import Path
from typing import Any

import programs

PEERS = Path(__file__).parent / "peers"
OURS = "hybridmpi"
ROWS, DIM, TABLE, ZIPF = 10_000, 64, 1_000_000, 1.1
WIDTHS = (64, 512)
# What is measured: at least so many times the best variant's rate; "pull": that share of a plain gather's.
TARGETS = {"push": 3.0, "pull": 0.6, "aggregate, dim 64": 1.0, "aggregate, dim 512": 1.3}
# A program takes 10 to 40 s on two quiet cores.
TIMEOUT_SECONDS = 300

Runs = dict[str, list[dict[str, Any]]]


def main() -> int:
    """Run all programs in turn, print the tables, and return the exit status."""
    options = programs.options_against_torch(__doc__)
    launch = [sys.executable, "-m", "hybridmpi", "launch", "-n", "3", "--", "bench", "sparse", "--paths", "shared"]
    sizes = ["--rows", str(ROWS), "--dim", str(DIM), "--table", str(TABLE), "--zipf", str(ZIPF), "--json"]
    alone = [sys.executable, "-m", "hybridmpi", "bench", "aggregate", "--zipf", str(ZIPF)]
    sparse_push = [options.torch_python, str(PEERS / "sparse_push.py"), "--ranks", "2", "--batch", str(ROWS)]
    commands = {
        "push": [*launch, *sizes],
        "push, peer": [*sparse_push, "--width", str(DIM), "--table", str(TABLE), "--zipf", str(ZIPF)],
        "aggregate": [*alone, "--dim", ",".join(map(str, WIDTHS)), "--table", str(TABLE), "--json"],
        "aggregate, peer": [
            *(options.torch_python, str(PEERS / "aggregate.py"), "--width", *map(str, WIDTHS)),
            *("--table", str(TABLE), "--zipf", str(ZIPF)),
        ],
    }
    runs = programs.run_in_turn(commands, options.rounds, TIMEOUT_SECONDS)
    summary = summarise(runs)
    print(as_text(summary))
    if options.json:
        print(json.dumps(summary))
    return 0


def summarise(runs: Runs) -> dict[str, Any]:
    """Return what the tables show, as one object. `runs`: what each program printed in each round."""
    tables = {"push": _table(_ours(runs["push"], "step shared"), _variants(runs["push, peer"]))}
    for width in WIDTHS:
        ours = _ours(runs["aggregate"], f"hybridmpi, dim {width}")
        tables[f"aggregate, dim {width}"] = _table(ours, _methods(runs["aggregate, peer"], width))
    pulls = [row["ratio"]["gather"] for row in _ours(runs["push"], "pull shared")]
    reached = {name: table["ratio"] for name, table in tables.items()} | {"pull": statistics.median(pulls)}
    return {
        "bench": "sparse_against_peers",
        "params": {"rows": ROWS, "dim": DIM, "table": TABLE, "zipf": ZIPF},
        "machine": runs["push"][0]["machine"] | {"torch": runs["push, peer"][0]["version"]},
        "validated": True,
        "tables": tables,
        "pull_of_gather": {"median": statistics.median(pulls), "by_round": pulls},
        "targets": TARGETS,
        "missed": [name for name, least in TARGETS.items() if reached[name] < least],
        "load_average_by_round": [run["machine"]["load_average"][0] for run in runs["push"]],
    }


def _ours(runs: list[dict[str, Any]], name: str) -> list[dict[str, Any]]:
    """Return the row of a name in each of our runs."""
    return [next(row for row in run["results"] if row["name"] == name) for run in runs]


def _variants(runs: list[dict[str, Any]]) -> Runs:
    """Return the rows of each variant of sparse_push.py, by round."""
    found: Runs = {}
    for run in runs:
        for row in run["results"]:
            sums = ", sums before" if row["params"]["local_sum"] else ""
            found.setdefault(f"torch {row['params']['update']}{sums}", []).append(row)
    return found


def _methods(runs: list[dict[str, Any]], width: int) -> Runs:
    """Return the rows of each method of aggregate.py at one width, by round."""
    found: Runs = {}
    for run in runs:
        for row in run["results"]:
            if row["params"]["width"] == width:
                found.setdefault(row["peer"], []).append(row)
    return found


def _table(ours: list[dict[str, Any]], theirs: Runs) -> dict[str, Any]:
    """Return one comparison: who was best among the peers, our ratio to it, and a row for each."""
    medians = {name: [row["median"] for row in rows] for name, rows in ({OURS: ours} | theirs).items()}
    best = max(theirs, key=lambda name: statistics.median(medians[name]))
    ratios = [round(a / b, 3) for a, b in zip(medians[OURS], medians[best], strict=True)]
    rows = {
        name: {
            "median": statistics.median(medians[name]),
            "min": min(row["min"] for row in found),
            "max": max(row["max"] for row in found),
        }
        for name, found in ({OURS: ours} | theirs).items()
    }
    return {"unit": "rows/s", "best": best, "ratio": statistics.median(ratios), "ratio_by_round": ratios, "rows": rows}


def as_text(summary: dict[str, Any]) -> str:
    """Return the summary for people."""
    lines = []
    for title, table in summary["tables"].items():
        lines.append(f"{title + ', rows/s':<30}{'median':>13}{'min':>13}{'max':>13}")
        for name, row in table["rows"].items():
            rates = "".join(f"{row[what]:>13,.0f}" for what in ("median", "min", "max"))
            ratios = ", ".join(f"{ratio:.2f}" for ratio in table["ratio_by_round"])
            lines.append(
                f"{name:<30}{rates}" + (f"   {table['ratio']:.2f} x {table['best']} ({ratios})" * (name == OURS))
            )
    shares = ", ".join(f"{share:.2f}" for share in summary["pull_of_gather"]["by_round"])
    lines.append(f"pull, of a plain gather's rate: {summary['pull_of_gather']['median']:.2f} ({shares})")
    loads = ", ".join(map(str, summary["load_average_by_round"]))
    lines.append(f"load average at the end of our runs: {loads} on {summary['machine']['cores']} cores")
    missed = [f"{name} below {summary['targets'][name]:g}" for name in summary["missed"]]
    return "\n".join([*lines, f"targets missed: {', '.join(missed) or 'none'}"])


if __name__ == "__main__":
    sys.exit(main())
