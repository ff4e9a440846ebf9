"""The language model side by side with PyTorch: one model, one machine, one sitting.

Purpose     words/s of `hybridmpi bench lm` (2 compute ranks and 1 server) beside every variant of peers/lm_ddp.py (2
            processes on gloo): dense and sparse gradients under DistributedDataParallel, and all-gather by hand
Environment a Python with hybridmpi runs this file; --torch-python names one with torch:
            python -m venv V && V/bin/pip install torch==2.13.0 numpy==2.4.6
Usage       python benchmarks/lm_against_torch.py --torch-python V/bin/python [--rounds 3] [--json]
Validated   by each program: a small model must end where one process ends, the replicas must agree, the loss must
            fall; a program whose result is wrong ends this one too, and nothing is reported
Time        each round runs every program once, one after the other, each with 3 untimed and 7 x 5 timed training steps
            of 2 x 32 x 20 words; all have one BLAS thread a process. The ratio is the median over the rounds of our
            median over that of the variant that was best in all. On a busy machine, compare "max".

What differs: torch's LSTM has two biases that are both trained, so its losses fall faster (with the second one frozen,
the same words, candidates and initial values give the same losses to six digits); ours draws the sampled classes once
for all ranks, torch's program once for each.
"""

from __future__ import annotations

import json
import statistics
import sys
from pathlib import Path

import programs

PEERS = Path(__file__).parent / "peers"
OURS = "hybridmpi"
VARIANTS = ("dense", "sparse", "allgather")
# A program takes about 20 s on two quiet cores.
TIMEOUT_SECONDS = 300


def main() -> int:
    """Run all programs in turn, print the table, and return the exit status."""
    options = programs.options_against_torch(__doc__)
    commands = {OURS: [sys.executable, "-m", "hybridmpi", "launch", "-n", "3", "--", "bench", "lm", "--json"]}
    for variant in VARIANTS:
        peer = [str(PEERS / "lm_ddp.py"), "--ranks", "2", "--grad", variant]
        commands[f"torch {variant}"] = [options.torch_python, *peer]
    runs = programs.run_in_turn(commands, options.rounds, TIMEOUT_SECONDS)
    summary = summarise(runs)
    print(as_table(summary))
    if options.json:
        print(json.dumps(summary))
    return 0


def summarise(runs: dict[str, list[dict]]) -> dict:
    """Return what the table shows, as one object in the form that `hybridmpi bench --json` has."""
    rows = {name: [run["results"][0] if name == OURS else run for run in found] for name, found in runs.items()}
    medians = {name: [row["median"] for row in found] for name, found in rows.items()}
    best = max((name for name in rows if name != OURS), key=lambda name: statistics.median(medians[name]))
    results = []
    for name, found in rows.items():
        results.append({
            "name": name,
            "median": statistics.median(medians[name]),
            "min": min(row["min"] for row in found),
            "max": max(row["max"] for row in found),
            "unit": "words/s",
            "repeats": len(found),
            "ratio": {best: _ratio(medians[name], medians[best])},
            "ratio_by_round": [round(a / b, 3) for a, b in zip(medians[name], medians[best], strict=True)],
        })  # fmt: skip
    ours = rows[OURS]
    phases = {
        phase: round(statistics.median(row["phases_ms"][phase] for row in ours), 3) for phase in ours[0]["phases_ms"]
    }
    return {
        "bench": "lm_against_torch",
        "params": runs[OURS][0]["params"],
        "machine": runs[OURS][0]["machine"] | {"torch": runs["torch dense"][0]["version"]},
        "validated": True,
        "best": best,
        "results": results,
        "phases_ms": phases,
        "bytes_per_step": ours[0]["bytes_per_step"],
        "load_average_by_round": [run["machine"]["load_average"][0] for run in runs[OURS]],
    }


def _ratio(ours: list[float], theirs: list[float]) -> float:
    return round(statistics.median(a / b for a, b in zip(ours, theirs, strict=True)), 3)


def as_table(summary: dict) -> str:
    """Return the summary for people."""
    lines = [f"{'words/s':<18}{'median':>10}{'min':>10}{'max':>10}   x {summary['best']} (by round)"]
    for row in summary["results"]:
        by_round = ", ".join(f"{value:.2f}" for value in row["ratio_by_round"])
        rates = "".join(f"{row[what]:>10,.0f}" for what in ("median", "min", "max"))
        lines.append(f"{row['name']:<18}{rates}   {row['ratio'][summary['best']]:.2f} ({by_round})")
    lines.append(
        "ours, ms of a step by phase (compute rank 0): "
        + ", ".join(f"{phase} {value:g}" for phase, value in summary["phases_ms"].items())
    )
    lines.append(
        "ours, bytes of a step (compute rank 0): "
        + ", ".join(f"{name} {value:,}" for name, value in summary["bytes_per_step"].items())
    )
    lines.append(
        f"load average at the end of our runs: {', '.join(map(str, summary['load_average_by_round']))} "
        f"on {summary['machine']['cores']} cores"
    )
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
