"""A program of a user's own, as the README shows it, that trains until a signal comes: python thirty_lines.py FOLDER.

With --without-trainer it only waits; with --never-looks it has a Trainer and then waits.
"""

import sys
import time
from pathlib import Path

import numpy as np

import hybridmpi as hm

folder = Path(sys.argv[1])


class Bigram(hm.nn.Module):
    def __init__(self, words, width):
        self.embedding = hm.nn.Embedding(words, width)
        self.output = hm.nn.Linear(width, words)

    def loss(self, batch):
        words, following = batch
        return hm.nn.cross_entropy(self.output(self.embedding(words)), following)


def wait():
    (folder / "ready").touch()
    time.sleep(60)


def main(world):
    if "--without-trainer" in sys.argv:
        wait()
    trainer = hm.Trainer(world, Bigram(100, 16), hm.optim.Adagrad(0.5))
    if "--never-looks" in sys.argv:
        wait()
    if (folder / "saved").exists():
        trainer.load(folder / "saved")
    random = np.random.default_rng(world.rank)
    drawn = (random.integers(0, 100, 256) for _ in range(1_000_000))
    batches = ((words, words * 7 % 100) for words in drawn)
    first = trainer.step
    for epoch in range(3):  # a stop ends every further fit before it begins
        last = trainer.fit(batches, 400_000 * (epoch + 1), lambda result: (folder / "ready").touch())
    if trainer.stopped:
        trainer.save(folder / "saved")
    if world.on_root():
        print(f"from {first} to {trainer.step}, last {last.step}, stopped {trainer.stopped}", flush=True)


hm.run(main)
print("behind run", flush=True)
