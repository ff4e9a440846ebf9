"""A small training program in which one rank fails: python faulty.py FOLDER FAULT RANK [options].

It is what a user would write: a table, a layer, a loop over batches. In step FAULTY_STEP world rank RANK does what
FAULT says. Every rank leaves its process id in FOLDER, the faulty one also the time of the fault. With --report a
compute rank survives what `fit` raises and writes what it saw: the error, and the state of its parameters after every
step.
"""

import argparse
import json
import os
import signal
import sys
import time
import zlib
from pathlib import Path
from typing import NamedTuple

import numpy as np

import hybridmpi as hm
from hybridmpi.errors import HybridMPIError
from hybridmpi.sparse.shard import Shard

ROWS, DIM, WORDS = 100, 8, 16
FAULTY_STEP = 5
EVERY_RANK = -1
ENDLESS = 1_000_000  # steps: the ranks are at work when the fault comes, and would go on for long


def strike(folder):
    """Note the time of the fault."""
    (folder / "struck").write_text(repr(time.time()))


def fail(fault, folder):
    """Do what `fault` says, somewhere in a rank's own work."""
    strike(folder)
    if fault == "exception":
        raise ZeroDivisionError("a fault of the user's own")
    if fault == "unpicklable":

        class LocalError(Exception):
            pass

        raise LocalError("of a class that other ranks cannot know")
    if fault.startswith("exit"):
        sys.exit(int(fault.removeprefix("exit")))
    if fault == "interrupt":
        raise KeyboardInterrupt
    if fault == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError(f"no fault is named {fault}")


class Batch(NamedTuple):
    """Examples, and what shall go wrong with them."""

    ids: np.ndarray
    fault: str
    folder: Path

    @property
    def weight(self):
        return len(self.ids)


class Model(hm.nn.Module):
    """The mean square of a linear map of rows: one table and a dense layer."""

    def __init__(self):
        self.rows = hm.nn.Embedding(ROWS, DIM)
        self.linear = hm.nn.Linear(DIM, 1)

    def loss(self, batch):
        ids, fault, folder = batch
        if fault == "id":
            strike(folder)
            ids = ids.copy()
            ids[11] = ROWS
        elif fault not in ("", "nan"):
            fail(fault, folder)
        outputs = self.linear(self.rows(ids))
        loss = hm.autograd.mean(outputs * outputs)
        if fault == "nan":  # the root of nothing: a finite loss, a gradient that is not
            strike(folder)
            loss = loss + hm.autograd.sum(hm.autograd.power(outputs * 0.0, 0.5))
        return loss


def batches(world, options):
    """Batches of random ids, other ones on every rank; the faulty rank's carries the fault in the faulty step."""
    random = np.random.default_rng([3, world.rank])
    where, _, fault = options.fault.rpartition(":")
    for step in range(1, options.steps + 1):
        faulty = options.rank in (world.rank, EVERY_RANK) and step == FAULTY_STEP
        if faulty and where == "reader":
            fail(fault, options.folder)
        ids = random.integers(0, ROWS, WORDS)
        yield Batch(ids, fault if faulty and where == "" else "", options.folder)


def fail_in_update(fault, folder):
    """Make the row update of this server rank fail in the faulty step."""
    update = Shard.update

    def faulty(shard, step, scale=1.0):
        if step == FAULTY_STEP:
            fail(fault, folder)
        return update(shard, step, scale)

    Shard.update = faulty


def digest(trainer):
    """Return a number that tells whether two compute ranks see the same parameters, dense and sparse."""
    parameters, _ = trainer.dense_arrays()
    arrays = [parameters[name] for name in sorted(parameters)] + [trainer.tables[0].pull(np.arange(ROWS))]
    return zlib.crc32(b"".join(array.tobytes() for array in arrays))


def train(world, options):
    """Train on this compute rank."""
    mode = "ps" if options.staleness else "hybrid"
    trainer = hm.Trainer(
        world, Model(), hm.optim.Adagrad(0.1), mode=mode, nonfinite=options.nonfinite, staleness=options.staleness
    )
    if not options.report:
        trainer.fit(batches(world, options), options.steps)
        print("trained to the end", flush=True)
        return
    seen = {"error": None, "digests": [], "skipped": []}

    def note(result):
        seen["digests"].append(digest(trainer))
        if result.skipped:
            seen["skipped"].append(result.step)

    source = batches(world, options)
    while trainer.step < options.steps:
        try:
            trainer.fit(source, options.steps, note)
        except (HybridMPIError, ZeroDivisionError) as error:
            seen["error"] = [type(error).__name__, str(error)]
            note(argparse.Namespace(skipped=False))
            # Its batch is gone; fit goes on with the next one. The step has not been taken.
            options.steps -= 1
    (options.folder / f"report{world.rank}.json").write_text(json.dumps(seen))


def start(world, options):
    """Leave this rank's process id, and prepare the fault of a server."""
    (options.folder / f"rank{world.rank}").write_text(str(os.getpid()))
    where, _, fault = options.fault.rpartition(":")
    if where == "server" and world.rank == options.rank:
        fail_in_update(fault, options.folder)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("fault", help="what, in the model; or reader:what, server:what")
    parser.add_argument("rank", type=int)
    parser.add_argument("--servers", type=int, default=1)
    parser.add_argument("--by", choices=["run", "with", "world"], default="run")
    parser.add_argument("--steps", type=int, default=ENDLESS)
    parser.add_argument("--nonfinite", default="stop")
    parser.add_argument("--staleness", type=float, default=0.0)
    parser.add_argument("--report", action="store_true")
    options = parser.parse_args()

    if options.by == "run":
        # The servers of `run` never come into our code: prepare them when their world is made.
        made = hm.World.__init__

        def make_and_start(world, *arguments, **others):
            made(world, *arguments, **others)
            start(world, options)

        hm.World.__init__ = make_and_start
        hm.run(lambda world: train(world, options), servers=options.servers)
    elif options.by == "with":
        with hm.World(options.servers) as world:
            start(world, options)
            if not world.is_server:
                train(world, options)
    else:
        world = hm.World(options.servers)
        start(world, options)
        if not world.is_server:
            train(world, options)
        world.close()


if __name__ == "__main__":
    main()
