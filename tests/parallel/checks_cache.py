"""Rows that a rank keeps or asks for ahead, against pulls that know nothing: same bits, bounded age, exact bytes."""

import itertools
import shutil
import tempfile
import time
from dataclasses import replace
from unittest.mock import patch

import numpy as np
from checks_sparse import SEED, Replica, on_world, spec
from checks_training import RULES, Regression, model_of, streams_for

import hybridmpi as hm
from hybridmpi import optim
from hybridmpi.errors import HybridMPIError, SparseIndexError, UsageError
from hybridmpi.sparse import exchange
from hybridmpi.sparse.answering import Answering
from hybridmpi.sparse.cache import CacheOptions
from hybridmpi.sparse.reader import RowReader
from hybridmpi.sparse.requests import bitmap_bytes, since_bytes
from hybridmpi.sparse.service import Service


def alone_on_its_node(rank):
    return rank


def server_counts(comm):
    return sorted({0, min(2, comm.Get_size() - 1)})


def wanted_of(specs, step, client, share):
    """Return the rows of each table that a client reads and pushes in a step; for some tables none."""
    rng = np.random.default_rng([SEED, step, client])
    found = {}
    for table, s in enumerate(specs):
        count = 0 if (step + client + table) % 5 == 4 else int(share * s.rows)
        found[table] = np.sort(rng.choice(s.rows, min(count, s.rows), replace=False)).astype(np.int64)
    return found


def run_steps(world, specs, steps, cache=None, ahead=False, path="auto", share=0.4):
    """Read and push random rows; return (the reader, per step the rows read by table, all versions of all tables)."""
    service = Service.open(world, specs, path)
    replica, client = Replica(specs), service.client
    reader = RowReader(client, range(len(specs)), cache)
    me, clients = world.compute.Get_rank(), len(world.clients)
    versions, read = [[values.copy() for values in replica.values]], []
    for step in range(steps):
        everybody = [wanted_of(specs, step, c, share) for c in range(clients)]
        mine = everybody[me]
        # Some tables are known to be wanted at the start, others turn out to be.
        reader.begin({table: ids for table, ids in mine.items() if (step + table) % 3} if ahead else {})
        if ahead:
            reader.ask(wanted_of(specs, step + 1, me, share))
        read.append({table: (ids, reader.pull(table, ids).copy()) for table, ids in mine.items()})
        some = {table: ids[::2] for table, ids in mine.items()}
        for table, ids in some.items():
            assert np.array_equal(reader.pull(table, ids), read[-1][table][1][::2])
        reader.end()
        if step % 3 == 2:  # as an evaluation does, with questions under way
            for table, s in enumerate(specs):
                assert np.array_equal(client.pull(table, np.arange(s.rows)), replica.values[table])
        contributions = []
        for c in range(clients):
            rng = np.random.default_rng([SEED, step, c, 1])
            gradients = [
                (t, i, rng.standard_normal((len(i), specs[t].dim)).astype("f4")) for t, i in everybody[c].items()
            ]
            contributions.append((float(c + 1), gradients))
        client.push(contributions[me][1], contributions[me][0])
        replica.step(step + 1, contributions)
        versions.append([values.copy() for values in replica.values])
    reader.collect()
    service.close()
    return reader, read, versions


def check_reading_equals_plain_pulls(comm):
    """Whatever is kept or asked ahead, in rounds (slots of 8 KiB) or at once: with bound 0, what owners have now."""
    options = [(None, True), (CacheOptions(40), False), (CacheOptions(2000, "lfu"), True), (CacheOptions(1), True)]
    for number, (servers, partition) in enumerate(itertools.product(server_counts(comm), ("block", "cyclic"))):
        for path, (cache, ahead) in itertools.product(("message", "get", "auto"), options[number % 2 :: 2]):
            rule = RULES[(number + ahead) % len(RULES)]
            specs = [
                replace(spec("wide", 800, 33, partition, rule), clocks=True),
                replace(spec("thin", 97, 1, partition, rule), clocks=True),
                replace(spec("none", 0, 5, partition, rule), clocks=True),
                replace(spec("parts", 53, 6, partition, rule), clocks=True, homes=(0, 0, 0)),
            ]

            def main(world, s=specs, c=cache, a=ahead, p=path):
                _, read, versions = run_steps(world, s, 6, c, a, p)
                for step, tables in enumerate(read):
                    for table, (ids, values) in tables.items():
                        assert np.array_equal(values, versions[step][table][ids]), (step, table, c, a, p)

            with patch.object(exchange, "LARGEST_SLOT", 8 << 10 if ahead or not cache else exchange.LARGEST_SLOT):
                on_world(comm, servers, main, nodes_of_ranks=alone_on_its_node)


def check_no_row_is_older_than_allowed(comm):
    """Every row changes in every step, so that its values say how old they are."""
    for servers, staleness in itertools.product(server_counts(comm), (0, 1, 3)):
        specs = [replace(spec("t", 60, 5, "cyclic", optim.SGD(0.1)), clocks=True)]

        def main(world, s=specs, bound=staleness):
            _, read, versions = run_steps(world, s, 9, CacheOptions(30, staleness=bound), True, "message", share=1.0)
            ages = set()
            for step, tables in enumerate(read):
                for ids, values in tables.values():
                    for i, value in zip(ids, values, strict=True):
                        held = [v for v in range(step + 1) if np.array_equal(versions[v][0][i], value)]
                        assert held, (step, i)
                        ages.add(step - max(held))
            assert max(ages) <= bound and (0 in ages) and (bound in ages or bound > 1), (ages, bound)

        on_world(comm, servers, main)


def check_bytes_of_conditional_pulls(comm):
    """Rows that have not changed cost their ids and versions; those that have, their values too."""
    rows, dim = 300, 8

    def main(world):
        service = Service.open(world, [replace(spec("t", rows, dim, "block", optim.SGD(0.1)), clocks=True)], "message")
        client, owners = service.client, len(world.owners)
        reader = RowReader(client, [0], CacheOptions(rows))
        ids, touched = np.arange(0, rows, 2), np.arange(0, rows, 10)

        def read():
            before = client.traffic.snapshot()
            reader.begin({0: ids})
            reader.end()
            after = client.traffic.snapshot()
            return {name: after[name] - before[name] for name in after}

        per_owner = [len(local) for _, local in client.split(0, ids)]
        asked = sum(count > 0 for count in per_owner)
        first = read()
        assert (first["pull_ids"], first["pull_rows"]) == (8 * len(ids), len(ids) * dim * 4)
        assert first["control"] == asked * (8 + 24 + 8)
        again = read()
        assert (again["pull_ids"], again["pull_rows"], again["control"]) == (0, 0, 0)  # nothing can have changed
        gradient = np.ones((len(touched), dim), np.float32)
        client.push([(0, touched, gradient)], 1.0)
        third = read()
        ids_bytes = 8 * len(ids) + sum(since_bytes(count) + bitmap_bytes(count) for count in per_owner)
        assert third["pull_ids"] == ids_bytes
        assert third["pull_rows"] == len(touched) * dim * 4
        counts = reader.counts
        assert counts["wanted"] == 3 * len(ids) and counts["used"] == len(ids) and counts["fetched"] == len(ids)
        assert counts["changed"] == len(touched) and counts["unchanged"] == len(ids) - len(touched)
        plain = 3 * len(ids) * (8 + dim * 4)
        moved = sum(part[name] for part in (first, again, third) for name in ("pull_ids", "pull_rows"))
        assert counts["bytes_saved"] == plain - moved
        assert owners >= asked
        service.close()

    for servers in server_counts(comm):
        on_world(comm, servers, main)


def fit(comm, servers, rule, softmax, sparse, steps=5, dtype=np.float32):
    """Return (losses, what tables hold after each step, the sums of pulled bytes and of row counts) of a training."""

    def main(world):
        # The same sums each time, and nothing to measure.
        dense = hm.DenseOptions(algorithm="recursive_doubling" if len(world.clients) > 1 else "auto")
        trainer = hm.Trainer(world, model_of(softmax, dtype), rule, sparse=sparse, dense=dense, clip=0.5)
        losses, held, pulled, rows = [], [], 0, {}

        def on_step(result):
            nonlocal pulled
            losses.append(result.loss)
            held.append([table.pull(np.arange(table.rows)) for table in trainer.tables])
            pulled += result.bytes["pull_ids"] + result.bytes["pull_rows"]
            for name, count in result.rows.items():
                rows[name] = rows.get(name, 0) + count

        trainer.fit((batch if batch.inputs.size else None for batch in streams_for(world)), steps, on_step)
        world.barrier()
        return losses, held, pulled, rows

    return hm.run(main, servers=servers, comm=comm, nodes_of_ranks=alone_on_its_node)


def check_training_gives_the_same_bits(comm):
    options = [
        {"prefetch": True},
        {"cache": CacheOptions(30)},
        {"prefetch": True, "cache": CacheOptions(10, "lfu")},
        {"cache": CacheOptions(61, "lfu")},
    ]
    for number, (rule, option) in enumerate(zip(RULES, options, strict=True)):
        servers, softmax = server_counts(comm)[number % 2 - 1], ("sampled", "full")[number == 2]
        plain = fit(comm, servers, rule, softmax, hm.SparseOptions(pull_path="message"))
        found = fit(comm, servers, rule, softmax, hm.SparseOptions(pull_path="message", **option))
        auto = fit(comm, servers, rule, softmax, hm.SparseOptions(**option))
        if plain is None:  # a server
            continue
        assert found[0] == plain[0], (rule, option)
        for mine, expected in zip(found[1], plain[1], strict=True):
            assert all(np.array_equal(a, b) for a, b in zip(mine, expected, strict=True)), (rule, option)
        rows = found[3]
        assert rows["wanted"] == rows["used"] + rows["unchanged"] + rows["changed"] + rows["fetched"] > 0
        assert rows["bytes_saved"] == plain[2] - found[2]  # every pull goes by message, in both
        assert (rows["ahead"] > 0) == option.get("prefetch", False)
        assert (rows["unchanged"] + rows["changed"] > 0) or softmax == "full"
        assert auto[0] == plain[0]


def check_rows_that_move_and_rows_in_sixteen_bits(comm):
    """A table is dealt anew, leaves its owners and returns, while rows are kept and asked for ahead."""

    def main(world, options):
        sparse = hm.SparseOptions(pull_path="message", adapt_every=0, **options)
        dense = hm.DenseOptions(algorithm="recursive_doubling" if len(world.clients) > 1 else "auto")
        trainer = hm.Trainer(world, model_of("sampled", np.float32), RULES[2], sparse=sparse, dense=dense)
        losses = []

        def on_step(result):
            losses.append(result.loss)
            if result.step == 2:
                trainer.repartition("embedding", parts=3, kind="block")
            elif result.step in (3, 6):
                trainer.exchange.change_ways({"output": "allreduce" if result.step == 3 else "ps"})

        trainer.fit((batch if batch.inputs.size else None for batch in streams_for(world)), 9, on_step)
        world.barrier()
        return losses, [table.pull(np.arange(table.rows)) for table in trainer.tables]

    kept = {"prefetch": True, "cache": CacheOptions(40)}
    for servers, wire in itertools.product(server_counts(comm), ("float32", "bfloat16")):
        runs = [
            hm.run(lambda w, o=o: main(w, o), servers=servers, comm=comm, nodes_of_ranks=alone_on_its_node)
            for o in ({"wire": wire}, {"wire": wire, **kept})
        ]
        if runs[0] is not None:
            assert runs[0][0] == runs[1][0], (servers, wire, runs[0][0], runs[1][0])
            assert all(np.array_equal(a, b) for a, b in zip(runs[0][1], runs[1][1], strict=True))


def check_stale_ranks_keep_nothing(comm):
    def main(world):
        for options in ({"prefetch": True}, {"cache": CacheOptions(3)}):
            try:
                hm.Trainer(world, Foreseeing(), RULES[0], mode="ps", staleness=2, sparse=hm.SparseOptions(**options))
            except UsageError as error:
                assert "staleness = 2 with prefetch or a cache" in str(error)
            else:
                raise AssertionError(options)
        world.barrier()

    hm.run(main, servers=0, comm=comm)


def check_a_stale_cache_is_learnt_with(comm):
    """Rows up to two steps old: other losses, the same ones twice, and rows used without asking."""
    sparse = hm.SparseOptions(cache=CacheOptions(61, staleness=2), pull_path="message")
    servers = server_counts(comm)[-1]
    plain = fit(comm, servers, RULES[2], "full", hm.SparseOptions(), steps=8)
    first, second = (fit(comm, servers, RULES[2], "full", sparse, steps=8) for _ in range(2))
    if plain is not None:
        assert first[0] == second[0] and first[0] != plain[0] and first[0][-1] < first[0][0]
        assert first[3]["used"] > 0.4 * first[3]["wanted"]


class Counted:
    """An iterator that says how far it was read."""

    def __init__(self, batches):
        self.batches, self.read = batches, 0

    def __iter__(self):
        return self

    def __next__(self):
        if self.read == len(self.batches):
            raise StopIteration
        batch = self.batches[self.read]
        self.read += 1
        if isinstance(batch, Exception):
            raise batch
        return batch


class Foreseeing(Regression):
    """A regression that says which rows a batch wants."""

    def rows_wanted(self, batch):
        return {"table": batch[0]}


def batches_of(rank, steps=6):
    rng = np.random.default_rng([4, rank])
    return [(rng.integers(0, 20, 5), rng.standard_normal(5)) for _ in range(steps)]


def check_a_batch_read_ahead_is_not_lost(comm):
    def main(world, prefetch):
        rank = world.compute.Get_rank()
        sparse = hm.SparseOptions(prefetch=prefetch, pull_path="message")
        trainer = hm.Trainer(world, Foreseeing(), RULES[1], sparse=sparse)
        batches, losses = Counted(batches_of(rank)), []

        def on_step(result):
            losses.append(result.loss)

        trainer.fit(batches, 2, on_step)
        assert batches.read == 2  # the last step of a fit reads nothing ahead
        trainer.stop_requested = lambda: rank == 0
        trainer.fit(batches, 6, on_step)
        assert trainer.stopped and trainer.step == 3 and batches.read == 3 + prefetch
        trainer.stop_requested = lambda: False
        trainer.fit(batches, 6, on_step)
        assert trainer.step == 6 and batches.read == 6
        trainer.fit(batches, 9, on_step)
        world.barrier()
        return losses

    for servers in server_counts(comm):
        plain, ahead = (hm.run(lambda w, p=p: main(w, p), servers=servers, comm=comm) for p in (False, True))
        assert plain == ahead and (plain is None or len(plain) == 6)


def check_another_batch_than_was_foreseen(comm):
    """What was asked for ahead is of no use then; the step reads what its own batch wants, and nothing else."""

    def main(world):
        sparse = hm.SparseOptions(prefetch=True, pull_path="message")
        trainer = hm.Trainer(world, Foreseeing(), RULES[1], sparse=sparse)
        first, foreseen, other = (((np.arange(5) + start) % 20, np.ones(5)) for start in (0, 5, 10))
        assert trainer.train_step(first, foreseen).rows["ahead"] == 5
        assert trainer.train_step(other).rows["wanted"] == 5
        assert trainer.train_step(foreseen, other).rows["wanted"] == 5
        assert trainer.train_step(other).rows["wanted"] == 5

    for servers in server_counts(comm):
        hm.run(main, servers=servers, comm=comm)


def check_ranks_without_batches(comm):
    """Some have fewer than others, one has none."""

    def main(world, prefetch):
        rank = world.compute.Get_rank()
        sparse = hm.SparseOptions(prefetch=prefetch, pull_path="message", cache=CacheOptions(7) if prefetch else None)
        trainer, losses = hm.Trainer(world, Foreseeing(), RULES[2], sparse=sparse), []
        mine = batches_of(rank)[: (6, 3, 0, 1)[rank % 4]]
        trainer.fit(iter(mine), 100, lambda result: losses.append(result.loss))
        world.barrier()
        return losses

    for servers in server_counts(comm):
        plain, ahead = (hm.run(lambda w, p=p: main(w, p), servers=servers, comm=comm) for p in (False, True))
        assert plain == ahead and (plain is None or len(plain) == 6)


def check_what_is_wrong_ahead_shows_in_its_own_step(comm):
    bad_ids = (np.array([1, 99]), np.zeros(2))

    def main(world, wrong, text):
        rank, last = world.compute.Get_rank(), len(world.clients) - 1
        trainer = hm.Trainer(world, Foreseeing(), RULES[0], sparse=hm.SparseOptions(prefetch=True, pull_path="message"))
        mine = batches_of(rank)
        mine[3] = wrong if rank == last else mine[3]
        try:
            trainer.fit(Counted(mine), 6)
        except (HybridMPIError, SparseIndexError, OSError) as error:
            assert text in str(error), error
        else:
            raise AssertionError("no error")
        assert trainer.step == 3
        world.barrier()
        trainer.fit(iter(batches_of(rank)), 5)  # and training can go on
        assert trainer.step == 5

    for wrong, text in ((bad_ids, "outside [0, 20)"), (OSError("cannot be read"), "cannot be read")):
        hm.run(lambda w, a=wrong, b=text: main(w, a, b), servers=0, comm=comm)


def check_a_checkpoint_empties_the_cache(comm):
    folder = comm.bcast(tempfile.mkdtemp() if comm.Get_rank() == 0 else None)

    def main(world):
        rank = world.compute.Get_rank()
        sparse = hm.SparseOptions(prefetch=True, cache=CacheOptions(20, staleness=50), pull_path="message")
        trainer = hm.Trainer(world, Foreseeing(), RULES[3], sparse=sparse)
        trainer.fit(iter(batches_of(rank)), 2)
        directory = trainer.save(folder)
        trainer.fit(iter(batches_of(rank + 50)), 5)
        trainer.load(directory)
        losses = []
        trainer.fit(iter(batches_of(rank)), 3, lambda result: losses.append(result.loss))
        fresh = hm.Trainer(world, Foreseeing(), RULES[3], sparse=hm.SparseOptions(), seed=8)
        fresh.load(directory)
        fresh.fit(iter(batches_of(rank)), 3, lambda result: losses.append(result.loss))
        assert losses[0] == losses[1], losses
        world.barrier()

    hm.run(main, servers=server_counts(comm)[-1], comm=comm)
    comm.Barrier()
    if comm.Get_rank() == 0:
        shutil.rmtree(folder)


def check_what_was_asked_ahead_is_taken_in_before_rows_move(comm):
    """Owners that answer late: a question in numbers of the old layout is not answered with rows of the new one."""
    if comm.Get_size() < 2:
        return

    def main(world):
        table = replace(spec("t", 300, 8, "block", optim.SGD(0.1)), clocks=True)
        service = Service.open(world, [table], path="message", aggregate="never")
        ids = np.arange(0, 300, 7)
        right = service.client.pull(0, ids)
        reader = RowReader(service.client, [0], CacheOptions(20))
        progress, begun = Answering.progress, time.perf_counter()

        def late(self, version):
            return time.perf_counter() > begun + 0.5 and progress(self, version)

        with patch.object(Answering, "progress", late):
            reader.begin({})
            reader.ask({0: ids})
            reader.end()
            service.relayout(0, replace(table, partition="cyclic"))
            reader.begin({0: ids})
            assert np.array_equal(reader.pull(0, ids), right)
            reader.end()
            reader.collect()
        service.close()

    on_world(comm, 0, main, nodes_of_ranks=alone_on_its_node)


def check_what_was_asked_ahead_is_forgotten_too(comm):
    """Rows become others, of an older version, such as by a load: those that are still on their way are not used."""

    def main(world):
        table = replace(spec("t", 60, 8, "cyclic", optim.SGD(0.1)), clocks=True)
        service = Service.open(world, [table], path="message", aggregate="never")
        client, server, ids = service.client, service.server, np.arange(60)
        reader = RowReader(client, [0])
        for _ in range(3):
            client.push([(0, ids, np.ones((60, 8), np.float32))], 1.0)
        client.wait_for_version()
        reader.begin({})
        reader.ask({0: ids})
        reader.end()
        world.barrier()
        server.applied = client.pushed = 0
        for shard in server.shards:
            shard.values[:] = 7
            shard.replaced(0)
        server.publish()
        reader.forget()
        world.barrier()
        reader.begin({0: ids})
        assert (reader.pull(0, ids) == 7).all()
        reader.end()
        service.close()

    on_world(comm, 0, main, nodes_of_ranks=alone_on_its_node)
