"""Tree-LSTM training side by side with its peers: one model, one file of trees, one machine, one sitting.

Purpose     trees/s of `hybridmpi bench dynamic` by batch size, beside peers/tree_torch.py (levels by hand),
            peers/tree_dynet.py (automatic batching) and peers/tree_dgl.py (message passing); what share each has of the
            rate that the model's matrix products alone would allow, from large ones timed in the same rounds
Environment a Python with hybridmpi runs this file; each peer has a Python of its own, named by an option, made as the
            header of its program says. A peer whose Python is not named is left out
Usage       python benchmarks/trees_against_peers.py --data FILE --torch-python V/bin/python [--dynet-python ...]
            [--dgl-python ...] [--cell nary|sum] [--threads 1|2] [--rounds 3] [--json]
Validated   by each program, before it is timed: loss and gradients; a program whose result is wrong ends this one too,
            and nothing is reported
Time        each round runs every program once, one after the other, each with all batch sizes: the same trees, SGD with
            the same tiny rate, the sum of the losses of all nodes (peers/tree_model.py). Ratios are taken within a
            round; the best peer is the one with the best median over all. On a busy machine, compare "max"
Targets     TARGETS below; the last line says which are missed

What differs: DyNet computes with one thread whatever --threads says. Its graph, and the batches of torch and DGL, are
made in the time; what a peer makes of a tree once (DGL: its graph) is not. The output layer, 1 % of the products, is
not counted in the limit.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable
from pathlib import Path

import programs
import rates_by_batch as rates

PEERS = Path(__file__).parent / "peers"
sys.path.insert(0, str(PEERS))

import sst  # noqa: E402
import tree_model  # noqa: E402

BATCHES = (1, 16, 64, 256)
WIDTH, HIDDEN = 300, 150
TARGETS = {rates.BEST: 1.15, rates.DYNET: 2.0}
TWO_THREADS = 2  # DyNet's target holds from 64 trees and two threads up
# A program takes 10 to 60 s on two quiet cores.
TIMEOUT_SECONDS = 600


def main() -> int:
    """Run all programs in turn, print the tables, and return the exit status."""
    options = programs.options_against_torch(__doc__, _add_arguments)
    try:
        trees, _ = sst.load(options.data)
    except (OSError, ValueError, IndexError) as error:
        sys.exit(
            f"--data {options.data}: expected binary trees in brackets, (label (label word) ...), one a line: {error}"
        )
    runs = programs.run_in_turn(commands(options, trees), options.rounds, TIMEOUT_SECONDS, threads=options.threads)
    flop = {batch: flop_of(trees[: tree_model.trees_of(batch)], options.cell) for batch in BATCHES}
    params = {
        "cell": options.cell,
        "threads": options.threads,
        "width": WIDTH,
        "hidden": HIDDEN,
        "rounds": options.rounds,
    }
    summary = {"bench": "trees_against_peers", "params": params}
    summary |= rates.summarise(runs, flop, lambda batch: targets(batch, options.threads))
    print(rates.as_text(summary))
    if options.json:
        print(json.dumps(summary))
    return 0


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--data", required=True, metavar="FILE", help="binary trees in brackets, one a line")
    parser.add_argument("--dynet-python", metavar="PATH", help="a Python interpreter that has DyNet")
    parser.add_argument("--dgl-python", metavar="PATH", help="a Python interpreter that has DGL")
    parser.add_argument("--cell", choices=("nary", "sum"), default="nary", help="default %(default)s")
    parser.add_argument("--threads", type=int, choices=(1, 2), default=1, help="of each program (default %(default)s)")


def commands(options: argparse.Namespace, trees: list[sst.Tree]) -> dict[str, list[str]]:
    """Return the command line of each program, by name."""
    about = ["--data", options.data, "--cell", options.cell]
    found = {rates.OURS: rates.ours(sys.executable, options.threads, BATCHES, *about)}
    peers = {
        "torch": (options.torch_python, "tree_torch.py"),
        rates.DYNET: (options.dynet_python, "tree_dynet.py"),
        "DGL": (options.dgl_python, "tree_dgl.py"),
    }
    sizes = ["--batch", *map(str, BATCHES), "--width", str(WIDTH), "--hidden", str(HIDDEN)]
    for name, (python, program) in peers.items():
        if python:
            threads = 1 if name == rates.DYNET else options.threads
            found[name] = [python, str(PEERS / program), *about, *sizes, "--threads", str(threads)]
    products = products_of(trees[: tree_model.trees_of(max(BATCHES))], options.cell)
    found[rates.LIMIT] = rates.limit(sys.executable, str(PEERS / "products.py"), options.threads, products)
    return found


def products_of(trees: Iterable[sst.Tree], cell: str) -> list[tuple[int, int, int]]:
    """Return rows, inputs and outputs of the products of a training step on these trees, all nodes at once."""
    nodes = leaves = 0
    for tree in trees:
        nodes, leaves = nodes + len(tree), leaves + int((tree.left < 0).sum())
    inner = nodes - leaves
    gates = [(leaves, WIDTH, 3 * HIDDEN)]
    if cell == "nary":
        return [*gates, (inner, 2 * HIDDEN, 5 * HIDDEN)]
    return [*gates, (inner, HIDDEN, 3 * HIDDEN), (2 * inner, HIDDEN, HIDDEN)]


def flop_of(trees: list[sst.Tree], cell: str) -> float:
    """Return the floating-point operations of a tree's products, forward and backward, on average."""
    return sum(6 * rows * inputs * outputs for rows, inputs, outputs in products_of(trees, cell)) / len(trees)


def targets(batch: int, threads: int) -> dict[str, float]:
    """Return how many times the rate of whom ours must have at least."""
    without = () if threads >= TWO_THREADS and batch >= 64 else (rates.DYNET,)
    return {name: least for name, least in TARGETS.items() if name not in without}


if __name__ == "__main__":
    sys.exit(main())
