"""Training of recursive functions on many ranks against one: what is known beforehand, and what values decide."""

import numpy as np

import hybridmpi as hm
from hybridmpi import autograd, nn
from hybridmpi.dynamic import push, recursive

WORDS, WIDTH, HIDDEN, BATCH, STEPS = 23, 3, 4, 7, 4


def trees(count=20):
    """Trees (word, *children) of 1 to 12 vertices with up to three children."""
    random = np.random.default_rng(5)
    found = []
    for number in range(count):
        made = []
        for _ in range(1 + number * 7 % 12):
            vertex = [int(random.integers(WORDS))]
            parents = [parent for parent in made if len(parent) < 4]
            if made:
                parents[int(random.integers(len(parents)))].append(vertex)
            made.append(vertex)
        found.append(made[0])
    return found


class Batch:
    """A rank's share of a batch: its trees or what they were lowered to, and how many vertices they have."""

    def __init__(self, roots, weight, waits):
        self.roots, self.weight, self.waits = roots, weight, waits


class Model(nn.Module):
    """Two tables, tensors passed down, and vertices cut off by values if it waits."""

    def __init__(self):
        self.words = nn.Embedding(WORDS, WIDTH, dtype=np.float64)
        self.bias = nn.Embedding(WORDS, 1, dtype=np.float64)
        self.cell = nn.Linear(WIDTH + HIDDEN, HIDDEN, dtype=np.float64)
        self.start = nn.Linear(1, HIDDEN, dtype=np.float64).bias

    def below(self, word, h):
        return autograd.tanh(self.cell(autograd.concatenate([self.words(word), h], axis=1)))

    @recursive
    def known(self, tree):
        return self.visit(tree, self.start)

    @recursive
    def visit(self, tree, h):
        word, *children = tree
        h = self.below(word, h)
        push(h=h, bias=self.bias(word), word=word)
        return sum((self.visit(child, h) for child in children), h)

    @recursive
    def decided(self, tree):
        return self.walk(tree, self.start)

    @recursive
    async def walk(self, tree, h):
        word, *children = tree
        h = self.below(word, h)
        push(h=h, bias=self.bias(word), word=word)
        for child in children:
            total = self.walk(child, h)
            h = h + total if np.sin(100.0 * (await total).sum()) > -0.5 else h * self.words(child[0])[:, :1]
        return h

    def loss(self, batch):
        outputs = (self.decided if batch.waits else self.known).over(batch.roots)
        error = outputs.h[:, :1] + outputs.bias - autograd.Tensor((outputs.word[:, None] % 3).astype(np.float64))
        return ((error * error).sum() + 0.1 * (outputs.results**2).sum()) * (1.0 / batch.weight)


def size(tree):
    """Return the number of vertices."""
    return 1 + sum(map(size, tree[1:]))


def train(comm, servers, waits, **options):
    """Return (losses, parameters and tables by name) of a run on `comm`; the same on every rank of it."""

    def main(world):
        rank, ranks = world.compute.Get_rank(), world.compute.Get_size()
        model, data = Model(), trees()
        trainer = hm.Trainer(world, model, hm.optim.Adagrad(0.1, initial=1e-3), **options)
        lowered = None if waits else model.known.lower(data)
        losses = []

        def mine():
            for step in range(STEPS + 1):
                count = BATCH if step != 2 else 1  # fewer than ranks
                numbers = [(step * BATCH + place) % len(data) for place in range(count)][rank::ranks]
                roots = [data[n] for n in numbers] if waits else lowered.select(numbers)
                yield Batch(roots, sum(size(data[n]) for n in numbers), waits) if numbers else None

        trainer.fit(mine(), STEPS, lambda result: losses.append(result.loss))
        arrays = {name: array.copy() for name, array in trainer.dense_arrays()[0].items()}
        arrays |= {table.name: table.pull(np.arange(table.rows)) for table in trainer.tables}
        world.barrier()
        return losses, arrays

    result = hm.run(main, servers=servers, comm=comm)
    root = comm.allgather(result is not None).index(True)
    return comm.bcast(result, root)


def check_equals_one_process(comm):
    """Trees dealt out one by one, tables on all ranks or at a server; a step with fewer trees than ranks."""
    for waits in (False, True):
        losses, arrays = train(comm.Split(comm.Get_rank()), 0, waits)
        assert len(losses) == STEPS and losses[-1] != losses[0]
        for servers in sorted({0, min(1, comm.Get_size() - 1)}):
            found = train(comm, servers, waits)
            assert np.allclose(found[0], losses, rtol=1e-10), (waits, servers, found[0], losses)
            for name, array in arrays.items():
                assert np.allclose(found[1][name], array, rtol=1e-8, atol=1e-11), (waits, servers, name)
