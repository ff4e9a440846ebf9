"""Tree-FC training side by side with its peers: one model, one machine, one sitting.

Purpose     trees/s of `hybridmpi bench dynamic --model tree-fc` by batch size on complete binary trees of 256 leaves,
            256 wide, beside peers/tree_fc_torch.py (levels by hand, two ways) and peers/tree_fc_dynet.py (automatic
            batching); what share each has of the rate that the matrix products alone would allow, from large ones timed
            in the same rounds
Environment a Python with hybridmpi runs this file; each peer has a Python of its own, named by an option, made as the
            header of its program says. DyNet is left out where its Python is not named
Usage       python benchmarks/tree_fc_against_peers.py --torch-python V/bin/python [--dynet-python ...]
            [--threads 1|2] [--rounds 3] [--json]
Validated   by each program, before it is timed: loss and gradients; a program whose result is wrong ends this one too,
            and nothing is reported
Time        each round runs every program once, one after the other, each with all batch sizes: the model, the loss and
            the rate of peers/tree_fc_model.py. Ratios are taken within a round; the best peer is the one with the best
            median over all. On a busy machine, compare "max"
Targets     TARGETS below; the last line says which are missed

What differs: DyNet computes with one thread whatever --threads says. "torch reshape" knows that the trees are complete
and gathers nothing: no peer in the sense of the others, but what batching by levels could reach.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import programs
import rates_by_batch as rates

PEERS = Path(__file__).parent / "peers"
BATCHES = (1, 16, 64, 128)
LEAVES, HIDDEN = 256, 256
TARGETS = {rates.DYNET: 2.0}
LARGE = 64  # trees whose inner nodes make the rows of the large products
# A program takes 5 to 20 s on two quiet cores.
TIMEOUT_SECONDS = 300


def main() -> int:
    """Run all programs in turn, print the tables, and return the exit status."""
    options = programs.options_against_torch(__doc__, _add_arguments)
    runs = programs.run_in_turn(commands(options), options.rounds, TIMEOUT_SECONDS, threads=options.threads)
    params = {"threads": options.threads, "leaves": LEAVES, "hidden": HIDDEN, "rounds": options.rounds}
    summary = {"bench": "tree_fc_against_peers", "params": params}
    summary |= rates.summarise(runs, dict.fromkeys(BATCHES, flop()), lambda batch: TARGETS)
    print(rates.as_text(summary))
    if options.json:
        print(json.dumps(summary))
    return 0


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--dynet-python", metavar="PATH", help="a Python interpreter that has DyNet")
    parser.add_argument("--threads", type=int, choices=(1, 2), default=1, help="of each program (default %(default)s)")


def commands(options: argparse.Namespace) -> dict[str, list[str]]:
    """Return the command line of each program, by name."""
    shape = ["--leaves", str(LEAVES), "--hidden", str(HIDDEN)]
    found = {rates.OURS: rates.ours(sys.executable, options.threads, BATCHES, "--model", "tree-fc")}
    sizes = ["--batch", *map(str, BATCHES), *shape]
    for mode in ("gather", "reshape"):
        peer = [options.torch_python, str(PEERS / "tree_fc_torch.py"), "--mode", mode, *sizes]
        found[f"torch {mode}"] = [*peer, "--threads", str(options.threads)]
    if options.dynet_python:
        found[rates.DYNET] = [options.dynet_python, str(PEERS / "tree_fc_dynet.py"), *sizes, "--threads", "1"]
    products = [(LARGE * (LEAVES - 1), 2 * HIDDEN, HIDDEN)]
    found[rates.LIMIT] = rates.limit(sys.executable, str(PEERS / "products.py"), options.threads, products)
    return found


def flop() -> int:
    """Return the floating-point operations of a tree's products: y, and of y's gradient that of W in every inner node,
    that of the children in those above the lowest, whose children are not trained."""
    inner, above_the_lowest = LEAVES - 1, LEAVES // 2 - 1
    return 2 * (2 * HIDDEN) * HIDDEN * (2 * inner + above_the_lowest)


if __name__ == "__main__":
    sys.exit(main())
