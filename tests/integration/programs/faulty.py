"""A small training program in which one rank fails: python faulty.py FOLDER FAULT RANK [--servers N] [--by WAY].

It is what a user would write: a table, a layer, a loop over batches. In step FAULTY_STEP world rank RANK does what
FAULT says. Every rank leaves its process id in FOLDER, the faulty one the time of the fault.
"""

import argparse
import os
import signal
import sys
import time
from pathlib import Path

import numpy as np

import hybridmpi as hm

ROWS, DIM, WORDS = 100, 8, 16
FAULTY_STEP = 5
STEPS = 2000  # more than a test waits for: the ranks are at work when the fault comes


class Model(hm.nn.Module):
    """The mean square of a linear map of rows: just enough for one dense parameter and one table."""

    def __init__(self, fault):
        self.rows = hm.nn.Embedding(ROWS, DIM)
        self.linear = hm.nn.Linear(DIM, 1)
        self.fault = fault

    def loss(self, ids):
        if (ids == ids.dtype.type(-7)).all():  # the batch that marks the faulty step on the faulty rank
            ids = self.fault(ids)
        outputs = self.linear(self.rows(ids))
        return hm.autograd.mean(outputs * outputs)


class Faults:
    """What can go wrong, each a method; `strike` notes the time first."""

    def __init__(self, folder, kind):
        self.folder, self.kind = folder, kind

    def strike(self):
        (self.folder / "struck").write_text(repr(time.time()))

    def in_model(self, ids):
        """What the model does instead of working with the marked batch; returns ids to go on with."""
        self.strike()
        if self.kind == "model":
            raise ZeroDivisionError("a fault of the user's own")
        if self.kind == "exit":
            sys.exit(3)
        if self.kind == "interrupt":
            raise KeyboardInterrupt
        if self.kind == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        ids = np.arange(WORDS)
        if self.kind == "id":
            ids[11] = ROWS
        return ids

    def in_server(self):
        """Make the row update of this server rank fail in the faulty step."""
        from hybridmpi.sparse.shard import Shard

        apply = Shard.apply

        def faulty(shard, weights, step):
            if step == FAULTY_STEP:
                self.strike()
                if self.kind == "kill":
                    os.kill(os.getpid(), signal.SIGKILL)
                raise ArithmeticError("a fault in the row update")
            return apply(shard, weights, step)

        Shard.apply = faulty


def batches(world, faults, faulty):
    """Batches of random ids, other ones on every rank; the faulty step's is marked."""
    random = np.random.default_rng([3, world.rank])
    for step in range(1, STEPS + 1):
        if faulty and step == FAULTY_STEP and faults.kind == "batches":
            faults.strike()
            raise OSError("a fault in the reader")
        yield np.full(WORDS, -7) if faulty and step == FAULTY_STEP else random.integers(0, ROWS, WORDS)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("fault")
    parser.add_argument("rank", type=int)
    parser.add_argument("--servers", type=int, default=1)
    parser.add_argument("--by", choices=["run", "world", "bare"], default="run")
    options = parser.parse_args()
    faults = Faults(options.folder, options.fault)

    def train(world):
        faulty = world.rank == options.rank
        trainer = hm.Trainer(world, Model(faults.in_model), hm.optim.Adagrad(0.1))
        if world.on_root():
            print(f"training on {len(world.clients)} compute ranks", flush=True)
        trainer.fit(batches(world, faults, faulty), STEPS)
        print("trained to the end", flush=True)

    def note_and_train(world):
        (options.folder / f"rank{world.rank}").write_text(str(os.getpid()))
        if world.is_server and world.rank == options.rank:
            faults.in_server()
        if not world.is_server:
            train(world)

    if options.by == "run":  # the server ranks never come into train
        original = hm.World.__init__

        def noting(world, *arguments, **others):
            original(world, *arguments, **others)
            (options.folder / f"rank{world.rank}").write_text(str(os.getpid()))
            if world.is_server and world.rank == options.rank:
                faults.in_server()

        hm.World.__init__ = noting
        hm.run(train, servers=options.servers)
    elif options.by == "world":
        with hm.World(options.servers) as world:
            note_and_train(world)
    else:
        world = hm.World(options.servers)
        note_and_train(world)
        world.close()


if __name__ == "__main__":
    main()
