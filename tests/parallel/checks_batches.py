"""What a batch's examples are, on ranks that have unequal numbers of them, and steps without any."""

import dataclasses
import math
from collections import namedtuple

import numpy as np

import hybridmpi as hm
from hybridmpi import nn, optim
from hybridmpi.autograd import Tensor, mean
from hybridmpi.errors import HybridMPIError, RemoteError, UsageError

Pair = namedtuple("Pair", "x y")


@dataclasses.dataclass
class Columns:
    x: np.ndarray
    y: np.ndarray


@dataclasses.dataclass
class Bags:
    """Ids of all examples end to end: its arrays differ in length."""

    x: np.ndarray
    starts: np.ndarray

    @property
    def weight(self):
        return len(self.starts) - 1


CONTAINERS = {
    "array": (lambda x, y: x, lambda batch: batch),
    "tensor": (lambda x, y: Tensor(x), lambda batch: batch.data),
    "tuple": (lambda x, y: (x, y), lambda batch: batch[0]),
    "named tuple": (Pair, lambda batch: batch.x),
    "dict": (lambda x, y: {"x": x, "y": y}, lambda batch: batch["x"]),
    "dict of lists": (lambda x, y: {"x": x.tolist(), "y": y.tolist()}, lambda batch: batch["x"]),
    "dataclass": (Columns, lambda batch: batch.x),
    "list of pairs of arrays": (lambda x, y: list(zip(x, y, strict=True)), lambda batch: [x for x, _ in batch]),
    "list of pairs of numbers": (
        lambda x, y: list(zip(x[:, 0].tolist(), y.tolist(), strict=True)),
        lambda batch: [[x] for x, _ in batch],
    ),
    "list of dicts": (lambda x, y: [{"x": row} for row in x], lambda batch: [row["x"] for row in batch]),
    "weight": (lambda x, y: Bags(x, np.arange(len(x) + 1)), lambda batch: batch.x),
}


class Line(nn.Module):
    """The mean of a linear layer of one number, whose gradient is the mean of the numbers."""

    def __init__(self, take):
        self.linear, self.take = nn.Linear(1, 1), take

    def loss(self, batch):
        return mean(self.linear(Tensor(np.asarray(self.take(batch), np.float32))))


def servers_for(comm):
    return 1 if comm.Get_size() > 2 else 0


def part_of(world, x):
    """Return this rank's part of four examples: three on the first rank, one on the last, all on one alone."""
    rank, ranks = world.compute.Get_rank(), world.compute.Get_size()
    return x if ranks == 1 else x[:3] if rank == 0 else x[3:] if rank == ranks - 1 else x[:0]


def check_the_same_gradient_whatever_the_container(comm):
    """Three examples of 1.0 on one rank and one of 5.0 on another: the mean is 2.0, not 3.0."""

    def main(world):
        x, y = part_of(world, np.array([[1.0], [1.0], [1.0], [5.0]], np.float32)), part_of(world, np.arange(4))
        for name, (pack, take) in CONTAINERS.items():
            trainer = hm.Trainer(world, Line(take), optim.SGD(1.0))
            before = trainer.model.linear.weight.data.copy()
            result = trainer.train_step(pack(x, y))
            moved = float((before - trainer.model.linear.weight.data)[0, 0])
            assert result.examples == 4 and abs(moved - 2.0) < 1e-6, (name, result, moved)
            trainer.close()

    hm.run(main, servers=servers_for(comm), comm=comm)


def check_batches_without_a_plain_number_are_refused_on_all_ranks(comm):
    def main(world):
        trainer = hm.Trainer(world, Line(lambda batch: batch), optim.SGD(1.0))
        x = np.ones((2, 1), np.float32)
        for batch in ([x, x], (x, np.ones(3)), {"x": x, "y": None}, "abc", Columns(x, 3), np.float32(3)):
            mine = batch if world.compute.Get_rank() == 0 else x
            try:
                trainer.train_step(mine)
            except (UsageError, RemoteError) as error:
                assert "rank 0" in str(error) and "`weight`" in str(error), error
            else:
                raise AssertionError(f"{batch!r} was counted")
        assert trainer.step == 0 and trainer.train_step(x).examples == 2 * world.compute.Get_size()

    if comm.Get_size() > 1:
        hm.run(main, servers=servers_for(comm), comm=comm)


class Lookup(nn.Module):
    """Dense and sparse together."""

    def __init__(self):
        self.words, self.output = nn.Embedding(20, 4), nn.Linear(4, 3)

    def rows_wanted(self, batch):
        return {"words": batch[0]}

    def loss(self, batch):
        ids, classes = batch
        assert len(ids), "the loss of no examples was asked for"
        return nn.cross_entropy(self.output(self.words(ids)), classes)


def trained(comm, sizes, rule, **options):
    """Return (results, what was learned, the number of updates) on batches of so many examples for each rank."""

    def main(world):
        random = np.random.default_rng(world.compute.Get_rank())
        mine = [size[world.compute.Get_rank() % len(size)] if isinstance(size, tuple) else size for size in sizes]
        batches = [(random.integers(0, 20, size), random.integers(0, 3, size)) for size in mine]
        trainer, results = hm.Trainer(world, Lookup(), rule, **options), []
        last = trainer.fit(iter(batches), len(sizes), results.append)
        assert last is results[-1] and trainer.step == len(sizes)
        trainer.fit([], 99)  # the end of the data is an end
        assert trainer.step == len(sizes)
        learned = {name: array.copy() for name, array in trainer.dense_arrays()[0].items()}
        learned["words"] = trainer.model.words(np.arange(20)).data.copy()
        return results, learned

    result = hm.run(main, servers=servers_for(comm), comm=comm)
    return comm.bcast(result, comm.allgather(result is not None).index(True))


def check_a_batch_without_examples_is_a_step_that_changes_nothing(comm):
    """On all ranks at once: as if it had not been there, but for the number of steps, whatever the way of gradients."""
    with_empty, without = (5, 5, 5, 0, 5, 0, 0, 5), (5, 5, 5, 5, 5)
    for options in (
        {},
        {"mode": "ps", "clip": 0.5},
        {"mode": "allreduce"},
        {"mode": "allgather", "clip": 0.5},
        {"sparse": hm.SparseOptions(prefetch=True, pull_path="message")},
    ):
        results, learned = trained(comm, with_empty, optim.Adam(0.05), **options)
        others, expected = trained(comm, without, optim.Adam(0.05), **options)
        assert [result.step for result in results] == list(range(1, 9))
        assert not any(result.skipped for result in results)
        empty = [result for result in results if not result.examples]
        assert [result.step for result in empty] == [4, 6, 7] and all(math.isnan(result.loss) for result in empty)
        losses = [result.loss for result in results if result.examples]
        assert losses == [result.loss for result in others], options
        assert all(np.array_equal(learned[name], array) for name, array in expected.items()), options


def check_a_rank_without_examples_takes_part(comm):
    """On some ranks, and with ranks that do not wait for each other."""
    uneven = (5, (0, 5), (5, 0), 5)
    results, _ = trained(comm, uneven, optim.SGD(0.1))
    ranks = max(1, comm.Get_size() - servers_for(comm))
    assert [result.examples for result in results] == [
        sum((size if isinstance(size, int) else size[rank % 2]) for rank in range(ranks)) for size in uneven
    ]
    results, _ = trained(comm, (5, 0, 5), optim.SGD(0.1), mode="ps", staleness=1)
    assert [result.examples for result in results] == [5, 0, 5] and math.isnan(results[1].loss)


def check_losses_models_and_optimisers_of_other_kinds_are_refused(comm):
    class Told(nn.Module):
        def __init__(self):
            self.linear = nn.Linear(1, 1)

        def loss(self, batch):
            return batch["loss"](self.linear(Tensor(np.ones((2, 1), np.float32))))

    def main(world):
        trainer = hm.Trainer(world, Told(), optim.SGD(0.1))
        for loss in (
            lambda y: None,
            lambda y: float(y.mean()),
            lambda y: y,
            lambda y: (y.mean(), 1),
            lambda y: y.mean().data,
            lambda y: Tensor(np.array(3)),
        ):
            try:
                trainer.train_step({"loss": loss, "weight": 2})
            except (UsageError, RemoteError) as error:
                assert "Told.loss(batch) returned" in str(error) or "depends on nothing" in str(error), error
            else:
                raise AssertionError("a loss of another kind was taken")
        assert trainer.train_step({"loss": lambda y: y.mean(), "weight": 2}).step == 1
        for model, rule in (
            (Told(), "adam"),
            (Told(), optim.Adam),
            (Told(), None),
            (Told, optim.SGD(0.1)),
            (nn.Linear(1, 1), optim.SGD(0.1)),
            (None, optim.SGD(0.1)),
        ):
            try:
                hm.Trainer(world, model, rule)
            except UsageError as error:
                assert "Trainer of" in str(error), error
            else:
                raise AssertionError(f"a Trainer of {model!r}, {rule!r}")
        for batches in (None, "abc", {"x": 1}):
            try:
                trainer.fit(batches, 5)
            except HybridMPIError as error:
                assert "an iterable of batches" in str(error), error
            else:
                raise AssertionError(f"batches {batches!r}")

    hm.run(main, servers=servers_for(comm), comm=comm)
