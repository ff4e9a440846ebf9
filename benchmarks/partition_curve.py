"""The time of a step over the number of parts of its tables, and the numbers that the search finds, in one job.

Purpose     median seconds of a training step of the language model with every table in P parts, for each P of a list,
            and with the parts that training/partition_search.py settles on; the ratio of that to the best P of the list
Environment any launch with several owners; made for emulated hosts:
            python benchmarks/emulated_cluster --hosts 8 --ranks 24 --rate 100mbit -- \\
              python benchmarks/partition_curve.py --plot docs/partitions.svg
Validated   the loss of every step must be, to rounding, that of a run whose tables never move
Time        the P are tried in turn, --rounds times; of each try some steps warm up and some count, on the slowest rank
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Iterator

import numpy as np

import hybridmpi as hm
from hybridmpi.bench.measure import machine, require
from hybridmpi.data import Batch, ZipfStreams
from hybridmpi.models.lm import LanguageModel
from hybridmpi.training.partition_search import PartitionTuning
from hybridmpi.world import World

WARM_UP, TIMED = 2, 5


def main(world: World) -> None:
    """Measure, and print on rank 0. Collective over compute."""
    options = _options()
    if len(world.owners) < 2:
        raise hm.errors.UsageError("one owner has all parts, however many: start a job with two servers or more")
    trainer, losses = _trainer(world, options), []
    batches = _words(world, options)
    names = [table.name for table in trainer.tables]

    def timed(steps: int) -> float:
        results = [trainer.train_step(next(batches)) for _ in range(steps)]
        losses.extend(result.loss for result in results)
        return statistics.median(result.total_seconds for result in results)

    curve: dict[int, list[float]] = {parts: [] for parts in options.parts}
    for _ in range(options.rounds):
        for parts in options.parts:
            for name in names:
                trainer.repartition(name, parts)
            timed(WARM_UP)
            curve[parts].append(max(world.gather(timed(TIMED))))
    for name in names:
        trainer.repartition(name, len(world.owners))
    tuning, said = PartitionTuning(trainer, warm_up=WARM_UP, timed=TIMED), []
    while not tuning.settled:
        result = trainer.train_step(next(batches))
        losses.append(result.loss)
        said.append(tuning.step(result))
    best = min(curve, key=lambda parts: statistics.median(curve[parts]))
    found, again = [], []
    searched = {name: trainer.exchange.specs[names.index(name)].map(len(world.owners)).parts for name in names}
    for _ in range(options.rounds):
        for where, parts in ((found, searched), (again, dict.fromkeys(names, best))):
            for name in names:
                trainer.repartition(name, parts[name])
            timed(WARM_UP)
            where.append(max(world.gather(timed(TIMED))))
    require(world, _same_losses(world, options, losses), "the losses are not those of a run whose tables do not move")
    summary = {
        "bench": "partition_curve",
        "params": {name: getattr(options, name) for name in ("vocab", "width", "hidden", "samples", "batch", "steps")},
        "machine": machine(world),
        "validated": True,
        "found": searched,
        "best": best,
        "seconds_found": statistics.median(found),
        "seconds_best": statistics.median(again),
        "ratio": round(statistics.median(a / b for a, b in zip(found, again, strict=True)), 3),
        "results": [
            {"name": f"{parts} parts", "n": parts, "median": statistics.median(seconds), "min": min(seconds),
             "max": max(seconds), "unit": "s", "repeats": len(seconds)}
            for parts, seconds in curve.items()
        ],
    }  # fmt: skip
    if world.on_root():
        for row in summary["results"]:
            print(
                f"{row['n']:>5} parts: {row['median'] * 1e3:8.1f} ms ({row['min'] * 1e3:.1f} to {row['max'] * 1e3:.1f})"
            )
        print("\n".join(filter(None, said)))
        print(f"found {searched}: {summary['ratio']} times the step with {best} parts, the best of the list")
        if options.plot:
            draw(options.plot, summary)
        print(json.dumps(summary), flush=True)
    trainer.close()


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--parts", type=lambda text: [int(n) for n in text.split(",")], default=[1, 2, 4, 8, 16, 32, 64]
    )
    for name, default in (("vocab", 20_000), ("width", 128), ("hidden", 64), ("samples", 1024), ("batch", 16)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--steps", type=int, default=20, help="words of a stream in a step (default %(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="tries of each number of parts (default %(default)s)")
    parser.add_argument("--plot", metavar="FILE", help="draw the curve")
    return parser.parse_args()


def _trainer(world: World, options: argparse.Namespace) -> hm.Trainer:
    model = LanguageModel(options.vocab, options.width, options.hidden, options.samples)
    return hm.Trainer(world, model, hm.optim.Adagrad(0.1), sparse=hm.SparseOptions(adapt_every=0))


def _words(world: World, options: argparse.Namespace) -> Iterator[Batch]:
    rank, ranks = world.compute.Get_rank(), world.compute.Get_size()
    return iter(ZipfStreams(options.vocab, 1.1, ranks * options.batch, options.steps, 1, rank, ranks))


def _same_losses(world: World, options: argparse.Namespace, losses: list[float]) -> bool:
    """Return whether a few steps of an undisturbed run give the losses that were seen."""
    trainer, batches = _trainer(world, options), _words(world, options)
    expected = [trainer.train_step(next(batches)).loss for _ in range(min(len(losses), 40))]
    trainer.close()
    return np.allclose(losses[: len(expected)], expected, rtol=1e-4)


def draw(file: str, summary: dict) -> None:
    """Draw the curve, and what the search found."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.5, 4.5), layout="constrained")
    axes = figure.add_subplot()
    parts = [row["n"] for row in summary["results"]]
    seconds = np.array([[row["median"], row["min"], row["max"]] for row in summary["results"]]) * 1e3
    axes.fill_between(parts, seconds[:, 1], seconds[:, 2], color="black", alpha=0.1)
    axes.plot(parts, seconds[:, 0], color="black", marker="o", label="every table in P parts")
    # Measured after the curve, in turns with each other.
    for name, color, label in (
        ("seconds_found", "tab:red", "parts that the search found"),
        ("seconds_best", "tab:blue", f"{summary['best']} parts again, in turns with these"),
    ):
        axes.axhline(summary[name] * 1e3, color=color, linestyle="--", label=label)
    axes.set(xscale="log", xlabel="parts", ylabel="ms of a step", xticks=parts, xticklabels=parts, ylim=(0, None))
    axes.minorticks_off()
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(file, dpi=150)


if __name__ == "__main__":
    sys.exit(hm.run(main))
