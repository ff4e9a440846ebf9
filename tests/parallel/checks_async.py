"""Asynchronous and stale synchronous training: the bound holds, nobody blocks anybody, one rank alone is as ever."""

import itertools
import math
import shutil
import tempfile
import time

import numpy as np
from checks_training import RULES, Regression, examples_of, server_counts, train

import hybridmpi as hm
from hybridmpi import optim
from hybridmpi.errors import HybridMPIError, NonFiniteError, SparseIndexError, UsageError

ANY = math.inf
# Small steps: what is late grows without limit where the rate is large.
DESCENT = optim.SGD(0.02)


class Watched(Regression):
    """Notes when each step's forward began and ended, by a clock that all ranks share; may take its time."""

    def __init__(self, pause=0.0):
        super().__init__()
        self.pause, self.began, self.ended = pause, [], []

    def loss(self, batch):
        self.began.append(time.monotonic())
        time.sleep(self.pause)
        loss = super().loss(batch)
        self.ended.append(time.monotonic())
        return loss


def trainer_of(world, model=None, rule=DESCENT, **options):
    return hm.Trainer(world, model or Regression(), rule, mode="ps", **options)


def batches(world, steps=10**6, first=0):
    return (examples_of(100 * step + world.compute.Get_rank(), 8) for step in range(first, steps))


def pushes_of(world, steps):
    """How many pushes the owners see, of which each gets a part of every one."""
    return sum(world.gather(steps)) * len(world.owners)


def most(staleness, ranks):
    """The largest staleness that the bound s allows. A client in its step t saw t - s of another's pushes, or more. As
    long as its own push t is not applied, that other one is at most in its step t + s, whose push makes t + s + 1."""
    return (2 * staleness + 1) * (ranks - 1)


def check_one_rank_alone_has_the_same_bits(comm):
    if comm.Get_size() > 2:
        return
    alone = comm.Split(comm.Get_rank())
    where = [(alone, 0)] + ([(comm, 1)] if comm.Get_size() == 2 else [])
    for (ranks, servers), rule in itertools.product(where, RULES):
        found = [train(ranks, servers, softmax="sampled", rule=rule, mode="ps", staleness=s) for s in (0, 2, ANY)]
        for losses, arrays in found[1:]:
            assert losses == found[0][0], rule
            assert all(np.array_equal(array, found[0][1][name]) for name, array in arrays.items()), rule


def check_staleness_0_is_synchronous(comm):
    for servers in server_counts(comm):
        first, second = (train(comm, servers, mode="ps", **options) for options in ({}, {"staleness": 0}))
        assert first[0] == second[0]
        assert all(np.array_equal(array, second[1][name]) for name, array in first[1].items())


def race(world, staleness, steps, pause):
    """Train beside a last rank that takes its time; return how far ahead of its forwards the others were, at most."""
    rank, ranks = world.compute.Get_rank(), len(world.clients)
    model = Watched(pause if rank == ranks - 1 else 0.0)
    trainer = trainer_of(world, model, staleness=staleness)
    trainer.fit(batches(world), steps)
    counts = trainer.staleness()
    assert sum(counts.values()) == pushes_of(world, steps), counts
    assert max(counts) <= most(staleness, ranks), counts
    everybody = world.gather((model.began, model.ended))
    slow = np.array(everybody[-1][1])
    return max(step - int((slow <= at).sum()) for began, _ in everybody[:-1] for step, at in enumerate(began))


def check_no_rank_is_further_ahead_than_the_bound(comm):
    steps, pause = 5, 0.1
    for servers, staleness in itertools.product(server_counts(comm), (1, 2, ANY)):
        if comm.Get_size() - servers < 2:
            continue

        def main(world, staleness=staleness, servers=servers):
            ahead = race(world, staleness, steps, pause)
            assert ahead <= staleness, (staleness, ahead)
            if servers:  # a slow rank that holds rows itself keeps others waiting for these
                assert ahead >= min(staleness, 3), (staleness, ahead)

        hm.run(main, servers=servers, comm=comm)


def check_between_nodes(comm):
    """Every rank on a node of its own: owners' words come by Get, notices go by Put."""

    def main(world, staleness):
        race(world, staleness, 4, 0.01) if len(world.clients) > 1 else None
        trainer = trainer_of(world, staleness=staleness)
        trainer.stop_requested = lambda: world.on_root() and trainer.step >= 2
        trainer.fit(batches(world), 10**6)
        assert trainer.stopped

    for servers, staleness in itertools.product(server_counts(comm)[-1:] + [0], (1, ANY)):
        hm.run(lambda w, s=staleness: main(w, s), servers=servers, comm=comm, nodes_of_ranks=lambda rank: rank)


def check_all_converge(comm):
    """A value for each id, without noise: the loss falls to a tenth of that of a model that knows nothing, however the
    ranks' steps fall together; without a bound a rank may be done before others have begun, and it falls by half."""
    values = np.random.default_rng(5).standard_normal(20)

    def main(world, staleness):
        trainer = trainer_of(world, rule=optim.Adagrad(0.5), staleness=staleness)
        losses = []
        drawn = (ids for ids, _ in batches(world))
        trainer.fit(((ids, values[ids]) for ids in drawn), 25, lambda result: losses.append(result.loss))
        start, end = np.mean(values**2), np.mean(losses[-5:])
        assert end < (0.5 if staleness == ANY else 0.1) * start, (staleness, start, end)
        everybody = world.gather([array.tobytes() for array in trainer.dense_arrays()[0].values()])
        assert all(mine == everybody[0] for mine in everybody), "after fit all ranks see the same parameters"

    for servers, staleness in itertools.product(server_counts(comm)[:2], (0, 1, 3, ANY)):
        hm.run(lambda w, s=staleness: main(w, s), servers=servers, comm=comm)


def check_a_rank_that_ends_early_blocks_nobody(comm):
    """Rank r has data for 3 r steps: the first has none at all."""

    def main(world, staleness):
        rank, ranks = world.compute.Get_rank(), len(world.clients)
        trainer = trainer_of(world, staleness=staleness)
        results = []
        last = trainer.fit(batches(world, 3 * rank), 100, results.append)
        assert len(results) == 3 * rank and (last is None) == (rank == 0)
        assert trainer.step == 3 * (ranks - 1) and not trainer.stopped
        assert sum(trainer.staleness().values()) == pushes_of(world, 3 * rank)
        # All are level again, and a bound holds from here on.
        trainer.fit(batches(world), trainer.step + 4)
        assert sum(trainer.staleness().values()) == pushes_of(world, 3 * rank + 4)
        # By hand: one closes, the others go on.
        for batch in batches(world, 1 if rank == 0 else 6):
            trainer.train_step(batch)
        if rank == ranks - 1:
            assert trainer.train_step(None) is None
        trainer.close()

    for servers, staleness in itertools.product(server_counts(comm), (1, ANY)):
        hm.run(lambda w, s=staleness: main(w, s), servers=servers, comm=comm)


def check_a_stop_reaches_all_wherever_it_lands(comm):
    def main(world, staleness, where, has_data):
        trainer = trainer_of(world, staleness=staleness)
        mine = world.compute.Get_rank() == where % len(world.clients)
        began = time.monotonic()
        if mine:
            # Asked once, as a signal is seen: in a step, or long after this rank has run out of data.
            answers = iter([False, False, True])
            trainer.stop_requested = lambda: time.monotonic() > began + 0.05 and next(answers, False)
        steps = None if mine and not has_data else 10**6
        trainer.fit(batches(world, steps or 0), 10**6)
        assert trainer.stopped
        # What was asked for then does not stop what comes later.
        trainer.fit(batches(world), trainer.step + 2)
        assert not trainer.stopped

    for servers, (staleness, where, has_data) in itertools.product(
        server_counts(comm)[:2], [(1, 0, True), (ANY, -1, True), (2, -1, False), (ANY, 0, False)]
    ):
        if has_data or comm.Get_size() - servers > 1:
            hm.run(lambda w, a=(staleness, where, has_data): main(w, *a), servers=servers, comm=comm)


def check_an_error_is_of_one_rank_and_leaves_out_one_step(comm):
    """A bad id on the last rank, which catches the error and goes on."""

    def main(world):
        trainer = trainer_of(world, staleness=1)
        last = world.compute.Get_rank() == len(world.clients) - 1
        for step, (ids, targets) in enumerate(batches(world, 4)):
            if last and step == 1:
                ids[4] = 20
            try:
                trainer.train_step((ids, targets))
            except SparseIndexError as error:
                assert f"rank {world.rank}, step 2: table 'table': id 20 at position 4" in str(error) and last
        assert trainer.step == (3 if last else 4)
        assert sum(trainer.staleness().values()) == pushes_of(world, 3 if last else 4)

    for servers in server_counts(comm):
        hm.run(main, servers=servers, comm=comm)


def check_what_is_not_finite_stays_with_its_rank(comm):
    """A NaN target on the last rank in its step 2."""

    def main(world, nonfinite):
        trainer = trainer_of(world, staleness=1, nonfinite=nonfinite)
        last = world.compute.Get_rank() == len(world.clients) - 1
        results = []
        for step, (ids, targets) in enumerate(batches(world, 4)):
            if last and step == 1:
                targets[3] = np.nan
            try:
                results.append(trainer.train_step((ids, targets)))
            except NonFiniteError as error:
                text = str(error)
                assert last and nonfinite == "stop"
                assert text.startswith(f"step 2: rank {world.rank}: the loss is nan")
                assert "'table' are not" in text and "'linear.weight' are not" in text, text
                break
        trainer.settle()
        assert np.isfinite(trainer.tables[0].pull(np.arange(20))).all()
        assert all(np.isfinite(array).all() for array in trainer.dense_arrays()[0].values())
        if nonfinite == "skip":
            assert [r.skipped for r in results] == [False, last, False, False]
            assert trainer.skipped == 1 and trainer.step == 4
            assert sum(trainer.staleness().values()) == pushes_of(world, 3 if last else 4)

    for servers, nonfinite in itertools.product(server_counts(comm), ("skip", "stop")):
        hm.run(lambda w, n=nonfinite: main(w, n), servers=servers, comm=comm)


def check_empty_batches_count_as_steps_that_change_nothing(comm):
    def main(world):
        trainer = trainer_of(world, rule=RULES[3], staleness=1)
        before = trainer.tables[0].pull(np.arange(20))
        world.barrier()
        for _ in range(3):
            result = trainer.train_step((np.empty(0, np.int64), np.empty(0)))
            assert result.examples == 0 and not result.skipped
        trainer.settle()
        assert trainer.step == 3 and trainer.staleness() == {}
        assert np.array_equal(trainer.tables[0].pull(np.arange(20)), before)

    for servers in server_counts(comm):
        hm.run(main, servers=servers, comm=comm)


def check_clip_limits_the_norm_of_a_rank_s_own_gradient(comm):
    def moved(world, clip):
        trainer = trainer_of(world, rule=optim.SGD(1.0), staleness=ANY, clip=clip)

        def values():
            return np.concatenate(
                [a.ravel() for a in [*trainer.dense_arrays()[0].values(), trainer.tables[0].pull(np.arange(20))]]
            )

        before = values()
        world.barrier()
        if world.on_root():
            trainer.train_step(examples_of(3, 12))
        trainer.settle()
        return values() - before

    def main(world):
        whole, clipped = moved(world, 0.0), moved(world, 0.25)
        norm = np.linalg.norm(whole)
        assert norm > 0.25 and np.allclose(clipped, whole * (0.25 / norm), rtol=1e-12, atol=1e-14)
        assert np.array_equal(moved(world, 2 * norm), whole)

    hm.run(main, servers=server_counts(comm)[-1], comm=comm)


class TwoTables(hm.nn.Module):
    """The sum of two tables' rows: one gradient, which both may have as it is."""

    def __init__(self):
        self.first = hm.nn.Embedding(20, 4, dtype=np.float64)
        self.second = hm.nn.Embedding(20, 4, dtype=np.float64)

    def loss(self, batch):
        both = self.first.rows_of(batch) + self.second.rows_of(batch)  # what backward has is handed on as it is
        return (both * both).mean() + both.sum()


def check_a_gradient_that_two_tables_share_is_clipped_once(comm):
    def main(world):
        trainer = trainer_of(world, TwoTables(), optim.SGD(1.0), staleness=ANY, clip=0.25)

        def values():
            return np.concatenate([table.pull(np.arange(20)).ravel() for table in trainer.tables])

        before = values()
        world.barrier()
        if world.on_root():
            trainer.train_step(np.arange(8))
        trainer.settle()
        moved = values() - before
        assert abs(np.linalg.norm(moved) - 0.25) < 1e-12, np.linalg.norm(moved)
        trainer.close()

    hm.run(main, servers=server_counts(comm)[-1], comm=comm)


def check_checkpoints_pass_to_and_from_synchronous_training(comm):
    folder = comm.bcast(tempfile.mkdtemp() if comm.Get_rank() == 0 else None)

    def values(trainer):
        arrays = {name: array.copy() for name, array in trainer.dense_arrays()[0].items()}
        return arrays | {table.name: table.pull(np.arange(table.rows)) for table in trainer.tables}

    def main(world, wrote, reads):
        trainer = trainer_of(world, rule=RULES[3], staleness=wrote)
        trainer.fit(batches(world), 3)
        saved, updates = values(trainer), trainer.exchange.updates
        assert updates == (3 if wrote == 0 else 3 * len(world.clients))
        trainer.save(f"{folder}/{world.size}-{wrote}-{reads}")
        again = trainer_of(world, rule=RULES[3], seed=2, staleness=reads)
        again.fit(batches(world), 1)  # what it knows is forgotten
        again.load(f"{folder}/{world.size}-{wrote}-{reads}")
        assert again.step == 3 and again.exchange.updates == updates
        assert all(np.array_equal(array, saved[name]) for name, array in values(again).items())
        moved = again.repartition("table", parts=2 * len(world.owners))
        assert moved >= 0 and np.array_equal(values(again)["table"], saved["table"])
        world.barrier()  # until all have looked
        again.fit(batches(world), 6)
        assert again.step == 6
        assert again.exchange.updates == updates + (3 if reads == 0 else 3 * len(world.clients))
        world.barrier()

    for servers, (wrote, reads) in itertools.product(server_counts(comm)[:2], [(0, 2), (ANY, 0), (1, ANY)]):
        hm.run(lambda w, a=wrote, b=reads: main(w, a, b), servers=servers, comm=comm)
    comm.Barrier()
    if comm.Get_rank() == 0:
        shutil.rmtree(folder)


def check_bytes_are_those_of_a_synchronous_step(comm):
    def main(world):
        found = []
        for staleness in (0, 1):
            trainer = trainer_of(world, staleness=staleness)
            found.append(
                trainer.train_step((np.arange(3 + world.compute.Get_rank()), np.ones(3 + world.compute.Get_rank())))
            )
            trainer.settle()
        assert found[0].bytes == found[1].bytes, found
        assert abs(sum(found[1].seconds.values()) - found[1].total_seconds) < 0.2 * found[1].total_seconds + 1e-3

    for servers in server_counts(comm):
        hm.run(main, servers=servers, comm=comm)


def check_a_rank_that_closes_where_others_settle_is_named(comm):
    def main(world):
        trainer = trainer_of(world, staleness=1)
        last = world.compute.Get_rank() == len(world.clients) - 1
        trainer.train_step(examples_of(0, 6))
        if len(world.clients) > 1:
            try:
                trainer.close() if last else trainer.settle()
            except HybridMPIError as error:
                assert f"rank {world.clients[-1]} in Trainer.close" in str(error)
            else:
                raise AssertionError("a rank left and nobody noticed")
        world.barrier()

    hm.run(main, servers=server_counts(comm)[-1], comm=comm)


def check_wrong_bounds_are_refused(comm):
    def main(world):
        for options, text in (
            ({"staleness": -1}, "expected a whole number, at least 0 or math.inf"),
            ({"staleness": 1.5}, "or math.inf"),
            ({"staleness": math.nan}, "or math.inf"),
            ({"staleness": True}, "staleness = True"),
            ({"staleness": "async"}, 'staleness = "async"'),
            ({"staleness": 2, "mode": "hybrid"}, "'linear.weight' (allreduce), 'linear.bias' (allreduce)"),
            ({"staleness": ANY, "modes": {"table": "allgather"}}, "'table' (allgather): these parameters need every"),
        ):
            try:
                hm.Trainer(world, Regression(), RULES[0], **({"mode": "ps"} | options))
            except UsageError as error:
                assert text in str(error), error
            else:
                raise AssertionError(options)

    hm.run(main, servers=0, comm=comm)
