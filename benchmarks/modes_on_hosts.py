"""The headline experiment of Parallax in small: words/s of the language model in every mode, by number of hosts.

Purpose     words/s of `hybridmpi bench lm` on 1, 2, 4, 8 emulated hosts, each with some compute ranks and a server, in
            the modes hybrid, ps, allreduce and allgather, and as plain parameter servers do it: whole tables dealt to
            servers in turn, every rank pushing for itself. With --sweep also the speed-up of hybrid over other modes by
            the words of an instance, on most hosts, with a smaller model of words drawn evenly: the fewer words, the
            smaller alpha, the share of a table's rows that a rank touches, from 0.85 to 0.02
Environment Linux, root, iproute2 (see benchmarks/emulated_cluster); matplotlib for --plot
Usage       python benchmarks/modes_on_hosts.py [--rate 100mbit] [--hosts 1,2,4,8] [--sweep] [--json] [--plot FILE]
Validated   by `bench lm`: a small model must end where one process ends, all ranks must hold the same bits
Time        all cases of a number of hosts run one after the other, --rounds times in turn; medians over the rounds. All
            hosts share this machine's cores: the rate is to be chosen such that communication has the share of a step
            that is asked for, and "share" says which it had: what of a hybrid step is not forward, backward or update
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from emulated_cluster.cluster import Cluster

PLAIN = "plain servers"
CASES: dict[str, list[str]] = {
    "hybrid": ["--mode", "hybrid"],
    "ps": ["--mode", "ps"],
    PLAIN: ["--mode", "ps", "--parts", "1", "--aggregate", "never"],
    "allgather": ["--mode", "allgather"],
    "allreduce": ["--mode", "allreduce"],
}
# Words of an instance: the length of its window. The batch is so many instances whatever their length.
SWEEP = (120, 60, 30, 15, 8, 4, 1)
SWEEP_ROWS, SWEEP_BATCH = 1000, 16
# Wide rows and few cells: what travels is to count, not what is computed.
SWEEP_MODEL = {"vocab": SWEEP_ROWS, "width": 512, "hidden": 8, "samples": 32, "batch": SWEEP_BATCH, "zipf": 0}
OTHERS = ("ps", PLAIN, "allreduce")
COMPUTING = ("forward", "backward", "update")
STYLES = {
    "hybrid": {"color": "black", "linewidth": 2.5, "marker": "o"},
    "ps": {"color": "tab:blue", "marker": "s"},
    PLAIN: {"color": "tab:orange", "marker": "v"},
    "allgather": {"color": "tab:green", "marker": "^"},
    "allreduce": {"color": "tab:red", "marker": "x"},
}


def main() -> int:
    """Run the experiment, print its tables, and return the exit status."""
    options = _parser().parse_args()
    if options.plot:
        import matplotlib.figure  # noqa: F401 - what is missing is known before an hour has passed
    rows = []
    for hosts in options.hosts:
        with Cluster(hosts, options.rate) as cluster:
            rows += _measure(cluster, hosts, CASES, options, [])
            if options.sweep and hosts == max(options.hosts):
                for words in SWEEP:
                    cases = {name: CASES[name] for name in ("hybrid", *OTHERS)}
                    model = [str(word) for key, value in SWEEP_MODEL.items() for word in (f"--{key}", value)]
                    rows += _measure(cluster, hosts, cases, options, [*model, "--steps", str(words)], words)
    summary = {
        "bench": "modes_on_hosts",
        "params": {
            "rate": options.rate, "compute_ranks_per_host": options.compute, "servers_per_host": 1,
            "bench_lm": options.arguments, "rounds": options.rounds,
        },
        "machine": rows[0].pop("machine"),
        "validated": True,
        "results": [{key: value for key, value in row.items() if key != "machine"} for row in rows],
    }  # fmt: skip
    print(as_tables(summary))
    if options.plot:
        draw(Path(options.plot), summary)
    if options.json:
        print(json.dumps(summary))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rate", default="100mbit", help="of each host's link (default %(default)s)")
    parser.add_argument(
        "--hosts", type=_numbers, default=[1, 2, 4, 8], metavar="N,N", help="numbers of hosts (default 1,2,4,8)"
    )
    parser.add_argument("--compute", type=int, default=2, help="compute ranks of a host (default %(default)s)")
    parser.add_argument("--rounds", type=int, default=2, help="launches of each case (default %(default)s)")
    parser.add_argument("--sweep", action="store_true", help="also vary the words of an instance, on most hosts")
    parser.add_argument("--json", action="store_true", help="end with one JSON object on the last line of stdout")
    parser.add_argument("--plot", metavar="FILE", help="draw words/s by hosts, and the sweep")
    parser.add_argument("arguments", nargs="*", metavar="-- BENCH LM ARGUMENTS", help="such as -- --width 64")
    return parser


def _numbers(text: str) -> list[int]:
    return [int(number) for number in text.split(",")]


def _measure(
    cluster: Cluster,
    hosts: int,
    cases: dict[str, list[str]],
    options: argparse.Namespace,
    more: Sequence[str],
    words: int | None = None,
) -> list[dict[str, Any]]:
    """Return a row for each case: the median over the rounds of its words/s, what a step took and moved."""
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in cases}
    for number in range(options.rounds):
        for name, arguments in cases.items():
            what = f"{hosts} hosts, {name}{f', {words} words' if words else ''}, round {number + 1}"
            print(what, file=sys.stderr, flush=True)
            command = ["bench", "lm", "--json", *options.arguments, *more, *arguments]
            outcome = cluster.run(command, hosts * (options.compute + 1), timeout=900)
            lines = outcome.output.splitlines()
            if outcome.code or not (found_lines := [line for line in lines if line.startswith('{"bench"')]):
                sys.exit(f"{what}: nothing is reported. {outcome}")
            found[name].append(json.loads(found_lines[-1]))
    rows = []
    for name, runs in found.items():
        medians = [run["results"][0]["median"] for run in runs]
        run = runs[medians.index(statistics.median_low(medians))]
        result, phases = run["results"][0], run["results"][0]["phases_ms"]
        step = sum(seconds for phase, seconds in phases.items() if phase != "server busy")
        rows.append({
            "name": name,
            "hosts": hosts,
            "words": words,
            "median": statistics.median(medians),
            "min": min(medians),
            "max": max(medians),
            "unit": "words/s",
            "repeats": len(runs),
            "share": round(1 - sum(phases[phase] for phase in COMPUTING) / step, 2),
            "phases_ms": phases,
            "bytes_per_step": result["bytes_per_step"],
            "machine": run["machine"],
        })  # fmt: skip
    return rows


def as_tables(summary: dict[str, Any]) -> str:
    """Return the summary for people."""
    by_hosts = [row for row in summary["results"] if row["words"] is None]
    sweep = [row for row in summary["results"] if row["words"] is not None]
    lines = [f"links {summary['params']['rate']}; words/s (share of the step that is communication)"]
    for hosts in dict.fromkeys(row["hosts"] for row in by_hosts):
        rows = {row["name"]: row for row in by_hosts if row["hosts"] == hosts}
        best = rows["hybrid"]["median"]
        cells = [
            f"{name} {row['median']:,.0f} ({row['share']:.2f}; hybrid x {best / row['median']:.2f})"
            for name, row in rows.items()
        ]
        lines.append(f"{hosts} host{'s' * (hosts > 1)}: " + ", ".join(cells))
    if sweep:
        lines.append(f"words of an instance, on {sweep[0]['hosts']} hosts: hybrid over other modes")
        for words, ratios in _speedups(sweep).items():
            alpha = 1 - (1 - 1 / SWEEP_ROWS) ** (SWEEP_BATCH * words)
            found = ", ".join(f"{name} x {ratio:.2f}" for name, ratio in ratios.items())
            lines.append(f"{words:>4} (alpha {alpha:.2f}): {found}")
    return "\n".join(lines)


def _speedups(sweep: Sequence[dict[str, Any]]) -> dict[int, dict[str, float]]:
    """Return by the words of an instance how many times as fast as other modes hybrid is."""
    rates = {(row["words"], row["name"]): row["median"] for row in sweep}
    words = dict.fromkeys(row["words"] for row in sweep)
    return {w: {name: rates[w, "hybrid"] / rates[w, name] for name in OTHERS} for w in words}


def draw(file: Path, summary: dict[str, Any]) -> None:
    """Draw words/s by hosts, and beside it the speed-up by the words of an instance where there is one."""
    from matplotlib.figure import Figure

    by_hosts = [row for row in summary["results"] if row["words"] is None]
    sweep = [row for row in summary["results"] if row["words"] is not None]
    figure = Figure(figsize=(11 if sweep else 6.5, 4.5), layout="constrained")
    axes = figure.add_subplot(1, 2 if sweep else 1, 1)
    for name, style in STYLES.items():
        rows = [row for row in by_hosts if row["name"] == name]
        axes.plot([row["hosts"] for row in rows], [row["median"] for row in rows], label=name, **style)
    ticks = sorted({row["hosts"] for row in by_hosts})
    axes.set(xscale="log", yscale="log", xlabel="hosts", ylabel="words/s", xticks=ticks, xticklabels=ticks)
    axes.minorticks_off()
    axes.set_title(f"language model, links {summary['params']['rate']}")
    axes.grid(alpha=0.3)
    axes.legend()
    if sweep:
        axes = figure.add_subplot(1, 2, 2)
        found = _speedups(sweep)
        words = list(found)
        for name in OTHERS:
            axes.plot(words, [found[w][name] for w in words], label=name, **STYLES[name])
        axes.set(xscale="log", xlabel="words of an instance", ylabel="hybrid is so many times as fast", xticks=words)
        axes.set_ylim(0, None)
        axes.axhline(1, color="grey", linewidth=0.8)
        axes.legend()
        axes.set_xticklabels(words)
        axes.minorticks_off()
        axes.invert_xaxis()
        axes.set_title(f"fewer words, fewer rows: {sweep[0]['hosts']} hosts, smaller model")
        axes.grid(alpha=0.3)
    figure.savefig(file, dpi=150)


if __name__ == "__main__":
    sys.exit(main())
