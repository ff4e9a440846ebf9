"""The click model on many ranks against one: same losses, same rows, from both kinds of logs."""

import itertools

import numpy as np

import hybridmpi as hm
from hybridmpi import data, optim
from hybridmpi.models.ctr import ClickModel

BATCH, STEPS = 21, 5


def generated():
    return data.GeneratedClicks(divide=500_000, exponent=1.1, bag=2, held_out=10, seed=3)


def read():
    """A log with bags of 0 to 4 ids, two of them of one table's."""
    random = np.random.default_rng(4)
    lengths = [random.integers(0, 5, 60), np.ones(60, int), random.integers(0, 3, 60)]
    starts = tuple(np.cumsum([0, *length]) for length in lengths)
    rows = {"item": 13, "user": 5, "before": 13}
    ids = tuple(random.integers(0, n, s[-1]) for n, s in zip(rows.values(), starts, strict=True))
    numbers = random.standard_normal((60, 3)).astype(np.float32)
    labels = (numbers[:, 0] > 0.5).astype(np.float32)
    return data.OpenBandit(rows, numbers, ids, starts, labels, held_out=7, seed=2)


def train(comm, servers, log, **options):
    """Return (losses, held-out logits, parameters and tables by name) of a run on `comm`, the same on every rank."""

    def main(world):
        clicks = log()
        model = ClickModel(clicks.tables, clicks.features, width=3, bottom=(4,), top=(5,), dtype=np.float64)
        trainer = hm.Trainer(world, model, optim.Adagrad(0.1), **options)
        rank, ranks = world.compute.Get_rank(), world.compute.Get_size()
        losses = []
        batches = data.training_batches(clicks, BATCH, 0, rank, ranks)
        trainer.fit(batches, STEPS, lambda result: losses.append((result.loss, result.examples)))
        model.eval()
        mine = [model.evaluate(batch) for batch in data.held_out_batches(clicks, 3, rank, ranks)]
        logits = np.concatenate([part for parts in world.gather(mine) for part in parts])
        arrays = {name: array.copy() for name, array in trainer.dense_arrays()[0].items()}
        arrays |= {table.name: table.pull(np.arange(table.rows)) for table in trainer.tables}
        world.barrier()
        return losses, logits, arrays

    result = hm.run(main, servers=servers, comm=comm)
    root = comm.allgather(result is not None).index(True)
    return comm.bcast(result, root)


def check_equals_one_process(comm):
    for log in (generated, read):
        expected, expected_logits, expected_arrays = train(comm.Split(comm.Get_rank()), 0, log, clip=1.0)
        assert len(set(expected)) == STEPS and all(examples == BATCH for _, examples in expected)
        counts = sorted({0, 1, comm.Get_size() - 1} & set(range(comm.Get_size())))
        for servers, partition in zip(counts, itertools.cycle(("cyclic", "block"))):
            losses, logits, arrays = train(comm, servers, log, sparse=hm.SparseOptions(partition=partition), clip=1.0)
            where = (log.__name__, servers, partition)
            assert np.allclose(losses, expected, rtol=1e-10), (where, losses, expected)
            assert len(logits) == log().held_out and np.allclose(logits, expected_logits, rtol=1e-8), where
            for name, array in expected_arrays.items():
                assert np.allclose(arrays[name], array, rtol=1e-8, atol=1e-11), (where, name)
