"""Training on many ranks against one rank, step by step: same losses, same parameters, same bits."""

import itertools
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np

import hybridmpi as hm
from hybridmpi import data, nn, optim
from hybridmpi.errors import HybridMPIError, NonFiniteError, RemoteError
from hybridmpi.models.lm import LanguageModel
from hybridmpi.planning.traffic import allreduce, pull_rows, push_rows, row_ids

VOCABULARY, STREAMS, WINDOW = 61, 12, 5
RULES = (optim.SGD(0.5), optim.Momentum(0.1), optim.Adagrad(0.2), optim.Adam(0.01))


def text(length=2000):
    """Tokens with a heavy head and some order, the same on every rank."""
    rng = np.random.default_rng(3)
    tokens = np.minimum((rng.pareto(1.1, length) * 3).astype(np.int32), VOCABULARY - 1)
    tokens[1::2] = (tokens[0::2] * 7 + 1)[: len(tokens[1::2])] % VOCABULARY
    return tokens


def model_of(softmax, dtype=np.float64):
    return LanguageModel(VOCABULARY, width=8, hidden=12, samples=16, softmax=softmax, dtype=dtype)


def streams_for(world):
    rank, ranks = world.compute.Get_rank(), world.compute.Get_size()
    return data.Streams(text(), STREAMS, WINDOW, rank, ranks)


def train(comm, servers, steps=6, softmax="full", dtype=np.float64, rule=RULES[2], **options):
    """Return (losses, parameters and tables by name) of a run on `comm`; the same on every rank of it."""

    def main(world):
        trainer = hm.Trainer(world, model_of(softmax, dtype), rule, **options)
        losses = []
        batches = (batch if batch.inputs.size else None for batch in streams_for(world))
        trainer.fit(batches, steps, lambda result: losses.append(result.loss))
        arrays = {name: array.copy() for name, array in trainer.dense_arrays()[0].items()}
        arrays |= {table.name: table.pull(np.arange(table.rows)) for table in trainer.tables}
        world.barrier()
        return losses, arrays

    result = hm.run(main, servers=servers, comm=comm)
    root = comm.allgather(result is not None).index(True)
    return comm.bcast(result, root)


def alone(comm, **options):
    """Return what the same training gives in one process: every rank does it for itself."""
    return train(comm.Split(comm.Get_rank()), 0, **options)


def server_counts(comm):
    return sorted({0, 1, 2, comm.Get_size() - 1} & set(range(comm.Get_size())))


def check_equals_one_process(comm):
    """Full softmax, same global batch: any number of compute ranks and servers, both partitions, to rounding."""
    expected_losses, expected = alone(comm)
    assert expected_losses[-1] < expected_losses[0]
    for servers, partition in itertools.product(server_counts(comm), ("block", "cyclic")):
        losses, arrays = train(comm, servers, sparse=hm.SparseOptions(partition=partition))
        assert np.allclose(losses, expected_losses, rtol=1e-10), (servers, partition, losses, expected_losses)
        for name, array in expected.items():
            assert np.allclose(arrays[name], array, rtol=1e-8, atol=1e-11), (servers, partition, name)


def check_every_optimizer_and_the_sampled_softmax(comm):
    for rule in RULES:
        expected_losses, expected = alone(comm, softmax="sampled", rule=rule, clip=0.3)
        losses, arrays = train(comm, min(1, comm.Get_size() - 1), softmax="sampled", rule=rule, clip=0.3)
        assert np.allclose(losses, expected_losses, rtol=1e-9), (rule, losses, expected_losses)
        for name, array in expected.items():
            assert np.allclose(arrays[name], array, rtol=1e-7, atol=1e-10), (rule, name)


def check_same_bits_twice(comm):
    for servers in server_counts(comm):
        first = train(comm, servers, softmax="sampled", dtype=np.float32)
        second = train(comm, servers, softmax="sampled", dtype=np.float32)
        assert first[0] == second[0]
        assert all(np.array_equal(first[1][name], second[1][name]) for name in first[1])


def check_pull_paths_give_the_same_bits(comm):
    servers = min(1, comm.Get_size() - 1)
    runs = [
        train(comm, servers, dtype=np.float32, sparse=hm.SparseOptions(pull_path=path))
        for path in ("shared", "message", "get")
    ]
    for losses, arrays in runs[1:]:
        assert losses == runs[0][0]
        assert all(np.array_equal(array, runs[0][1][name]) for name, array in arrays.items())


class Regression(nn.Module):
    """Dense and sparse together: an embedding bag of one and a linear layer, squared error."""

    def __init__(self, rows=20, reduction="mean", dim=4):
        self.table = nn.Embedding(rows, dim, reduction=reduction, dtype=np.float64)
        self.linear = nn.Linear(dim, 1, dtype=np.float64)

    def loss(self, batch):
        ids, targets = batch
        difference = self.linear(self.table(ids)) - targets[:, None]
        return (difference * difference).mean()


def examples_of(step, count):
    rng = np.random.default_rng([9, step])
    return rng.integers(0, 20, count), rng.standard_normal(count)


class Weighted(NamedTuple):
    """Examples that count as `weight`."""

    ids: np.ndarray
    targets: np.ndarray
    weight: float


def check_the_order_of_arrival_changes_no_bits(comm):
    """Weights whose sum depends on the order in which they are added; in each run another rank is late."""

    class Late(Regression):
        late = False

        def loss(self, batch):
            if self.late:
                time.sleep(0.005)
            return super().loss((batch.ids, batch.targets))

    def main(world, late):
        model = Late()
        trainer = hm.Trainer(world, model, optim.SGD(0.1))
        rank = world.compute.Get_rank()
        model.late = rank == late
        for step in range(8):
            trainer.train_step(Weighted(*examples_of(10 * step + rank, 8), weight=0.1 * (rank + 1)))
        dense, _ = trainer.dense_arrays()
        arrays = [*dense.values(), trainer.tables[0].pull(np.arange(20))]
        trainer.close()
        return b"".join(array.tobytes() for array in arrays)

    for servers in {0, 1} & set(range(comm.Get_size())):
        ranks = range(comm.Get_size() - servers)
        found = [hm.run(lambda world, late=late: main(world, late), servers=servers, comm=comm) for late in ranks]
        assert len(set(found)) == 1, f"{servers} servers: other bits where another rank is late"


def regress(comm, servers, parts, reduction="mean", **options):
    """Train on batches of which compute rank r gets the examples parts(step, ranks)[r]; return losses and arrays."""

    def main(world):
        trainer = hm.Trainer(world, Regression(reduction=reduction), optim.SGD(0.1), **options)
        rank, ranks = world.compute.Get_rank(), world.compute.Get_size()

        def batches():
            for step in range(8):
                places = parts(step, ranks)[rank]
                if places is None:
                    return
                ids, targets = examples_of(step, 24)
                yield ids[places], targets[places]

        losses = []
        trainer.fit(batches(), 100, lambda result: losses.append(result.loss))
        arrays = {n: a.copy() for n, a in trainer.dense_arrays()[0].items()}
        arrays["table"] = trainer.tables[0].pull(np.arange(20))
        world.barrier()
        return losses, arrays

    result = hm.run(main, servers=servers, comm=comm)
    root = comm.allgather(result is not None).index(True)
    return comm.bcast(result, root)


def check_unequal_batches_are_weighted_by_examples(comm):
    """Parts of 1, 2, 3, ... examples, some empty: the mean over all examples, as in one process."""

    def unequal(step, ranks):
        cuts = [0, *sorted(np.random.default_rng([step, ranks]).integers(0, 25, ranks - 1)), 24]
        return [slice(a, b) for a, b in zip(cuts[:-1], cuts[1:], strict=True)]

    expected = regress(comm.Split(comm.Get_rank()), 0, lambda step, ranks: [slice(None)])
    for servers in server_counts(comm):
        losses, arrays = regress(comm, servers, unequal)
        assert np.allclose(losses, expected[0]) and len(losses) == 8
        assert all(np.allclose(arrays[name], array) for name, array in expected[1].items())


def check_ranks_that_run_out_take_part_with_weight_0(comm):
    """Rank r has data for 3 + r steps; all stop together when the last has none."""

    def uneven(step, ranks):
        return [slice(r, None, ranks) if step < 3 + r else None for r in range(ranks)]

    for servers in server_counts(comm):
        losses, _ = regress(comm, servers, uneven)
        assert len(losses) == 3 + comm.Get_size() - servers - 1 and np.isfinite(losses).all()


def check_sum_reduction_adds_what_the_ranks_send(comm):
    """With the same examples on p ranks, a summed table moves p times as far in a step as an averaged one."""
    servers = min(1, comm.Get_size() - 1)
    ranks = comm.Get_size() - servers

    def one_step(step, ranks):
        return [slice(0, 8) if step == 0 else None] * ranks

    start = regress(comm, servers, lambda step, ranks: [None] * ranks)[1]["table"]
    mean = regress(comm, servers, one_step)[1]["table"] - start
    total = regress(comm, servers, one_step, reduction="sum")[1]["table"] - start
    assert np.abs(mean).max() > 0 and np.allclose(total, ranks * mean)


def check_nonfinite_steps_are_skipped_or_stop_all(comm):
    """A NaN target on the last compute rank in step 2."""

    def main(world, nonfinite):
        trainer = hm.Trainer(world, Regression(), optim.SGD(0.1), nonfinite=nonfinite)
        last = world.compute.Get_rank() == world.compute.Get_size() - 1
        results = []

        def batches():
            for step in range(4):
                ids, targets = examples_of(step, 6)
                if step == 1 and last:
                    targets[3] = np.nan
                yield ids, targets

        error = None
        try:
            trainer.fit(batches(), 4, results.append)
        except (NonFiniteError, RemoteError) as caught:
            error = str(caught)
        arrays = [a.copy() for a in trainer.dense_arrays()[0].values()] + [trainer.tables[0].pull(np.arange(20))]
        everybody = world.gather((error, [a.tobytes() for a in arrays]))
        assert all(entry == everybody[0] for entry in everybody)
        assert all(np.isfinite(array).all() for array in arrays)
        if nonfinite == "skip":
            assert error is None and [r.skipped for r in results] == [False, True, False, False]
            assert [np.isnan(r.loss) for r in results] == [False, True, False, False]  # of all ranks it is not known
            assert trainer.skipped == 1 and trainer.service.client.pushed == 3
        else:
            rank = world.clients[-1]
            assert len(results) == 1 and error.startswith("step 2:") and f"rank {rank}: the loss is nan" in error
            assert "gradient of 'linear.weight' are not finite" in error and "gradient of 'table'" in error

    for servers, nonfinite in itertools.product(server_counts(comm), ("skip", "stop")):
        hm.run(lambda world, n=nonfinite: main(world, n), servers=servers, comm=comm)


def check_a_failing_rank_changes_nothing_and_all_hear(comm):
    """An id out of range on the last compute rank: the same text everywhere, parameters as before the step."""

    def main(world):
        trainer = hm.Trainer(world, Regression(), optim.SGD(0.1))
        last = world.compute.Get_rank() == world.compute.Get_size() - 1
        ids, targets = examples_of(0, 6)
        trainer.train_step((ids, targets))
        before = [a.copy() for a in trainer.dense_arrays()[0].values()] + [trainer.tables[0].pull(np.arange(20))]
        if last:
            ids = ids.copy()
            ids[4] = 20
        try:
            trainer.train_step((ids, targets))
        except (IndexError, RemoteError) as error:
            message = str(error)
        texts = world.gather(message)
        assert texts == [texts[0]] * len(texts)
        for part in (f"rank {world.clients[-1]}, step 2", "table 'table'", "id 20 at position 4", "[0, 20)"):
            assert part in message, message
        after = [*trainer.dense_arrays()[0].values(), trainer.tables[0].pull(np.arange(20))]
        assert all(np.array_equal(a, b) for a, b in zip(before, after, strict=True))
        trainer.train_step(examples_of(1, 6))  # and all can go on
        world.barrier()

    for servers in server_counts(comm):
        hm.run(main, servers=servers, comm=comm)


def check_a_rank_that_leaves_early_is_named(comm):
    """The last compute rank closes its trainer after a step, the others go on: all hear of it, nobody hangs."""

    def main(world):
        trainer = hm.Trainer(world, Regression(), optim.SGD(0.1))
        last = world.compute.Get_rank() == world.compute.Get_size() - 1
        trainer.train_step(examples_of(0, 6))
        if len(world.clients) > 1:
            try:
                trainer.close() if last else trainer.train_step(examples_of(1, 6))
            except HybridMPIError as error:
                assert f"rank {world.clients[-1]} in Trainer.close" in str(error)
            else:
                raise AssertionError("a rank left and nobody noticed")
        world.barrier()

    for servers in server_counts(comm):
        hm.run(main, servers=servers, comm=comm)


def check_bytes_of_a_step_equal_the_formulas(comm):
    def main(world):
        dense = hm.DenseOptions(algorithm="shared")  # MPI's own counts nothing
        trainer = hm.Trainer(world, Regression(), optim.SGD(0.1), dense=dense)
        ranks = len(world.clients)
        ids = np.arange(3 + world.compute.Get_rank()) % 20
        result = trainer.train_step((np.repeat(ids, 2), np.ones(2 * len(ids))))
        alpha, w = len(ids) / 20, 20 * 4 * 8
        assert result.bytes["pull_rows"] == pull_rows(alpha, w) == push_rows(alpha, w) == result.bytes["push_rows"]
        assert result.bytes["push_ids"] == row_ids(alpha, 20) and result.bytes["pull_ids"] == 0
        nbytes = sum(bucket.gradients.nbytes for bucket in trainer.buckets)
        assert sum(world.gather(result.bytes["allreduce"])) == ranks * allreduce(nbytes, ranks)
        wide = hm.Trainer(world, Regression(dim=3001), optim.SGD(0.1), dense=dense)
        result = wide.train_step((ids, np.ones(len(ids))))
        nbytes = sum(bucket.gradients.nbytes for bucket in wide.buckets)
        assert sum(world.gather(result.bytes["allreduce"])) == ranks * allreduce(nbytes, ranks)
        assert abs(sum(result.seconds.values()) - result.total_seconds) < 0.2 * result.total_seconds + 1e-3

    for servers in server_counts(comm):
        hm.run(main, servers=servers, comm=comm)


def check_a_checkpoint_continues_on_other_ranks(comm):
    """Three steps, a checkpoint, three more elsewhere: as six in one go."""
    folder = comm.bcast(tempfile.mkdtemp() if comm.Get_rank() == 0 else None)
    expected, _ = alone(comm, rule=RULES[3])
    sub = comm.Split(0 if comm.Get_rank() < max(1, comm.Get_size() - 1) else 1)
    worlds = [(comm, s, p) for s, p in itertools.product(server_counts(comm), ("block", "cyclic"))]
    worlds.append((sub, 0, "block"))

    def first(world):
        trainer = hm.Trainer(world, model_of("full"), RULES[3])
        trainer.fit((b if b.inputs.size else None for b in streams_for(world)), 3)
        trainer.save(folder, meta={"note": "half"}, words=["a", "é"])
        world.barrier()

    def second(world, partition):
        trainer = hm.Trainer(world, model_of("full"), RULES[3], seed=2, sparse=hm.SparseOptions(partition=partition))
        meta = trainer.load(folder)
        assert meta["note"] == "half" and trainer.step == 3
        streams = streams_for(world)
        streams.position = 3
        losses = []
        trainer.fit((b if b.inputs.size else None for b in streams), 6, lambda r: losses.append(r.loss))
        assert np.allclose(losses, expected[3:], rtol=1e-10), (losses, expected)
        world.barrier()

    hm.run(first, servers=server_counts(comm)[-1], comm=comm)
    for where, servers, partition in worlds:
        if where is not sub or comm.Get_rank() < max(1, comm.Get_size() - 1):
            hm.run(lambda world, p=partition: second(world, p), servers=min(servers, where.Get_size() - 1), comm=where)
    comm.Barrier()
    if comm.Get_rank() == 0:
        for path in sorted(Path(folder).rglob("*"), reverse=True):
            path.rmdir() if path.is_dir() else path.unlink()
        Path(folder).rmdir()
