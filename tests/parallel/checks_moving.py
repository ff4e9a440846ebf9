"""Rows that move between owners, or from owners to replicas and back, in a running job: same state, same bits."""

import itertools
import time
from dataclasses import replace
from unittest import mock

import numpy as np
from checks_sparse import SEED, Replica, on_world, server_counts, spec

from hybridmpi import optim
from hybridmpi.errors import UsageError
from hybridmpi.sparse.moving import move
from hybridmpi.sparse.partition import Partition
from hybridmpi.sparse.server import Server
from hybridmpi.sparse.service import Service
from hybridmpi.sparse.transfers import Layout
from hybridmpi.traffic import Traffic

RULES = (optim.SGD(0.1), optim.Momentum(0.1), optim.Adagrad(0.1), optim.Adam(0.01))


def tables():
    """All optimisers, both dtypes, no rows, one row, fewer rows than parts."""
    specs = [spec(rule.name, 61, 5, "cyclic", rule) for rule in RULES]
    return [
        *specs,
        spec("wide", 40, 33, "block", optim.Adagrad(0.1), "f8", "sum"),
        spec("none", 0, 3, "block", optim.Adam(0.1)),
        spec("one", 1, 3, "cyclic", optim.Adagrad(0.1)),
        spec("two", 2, 1, "block", optim.Momentum(0.1)),
    ]


def dealt_anew(old, owners, rng):
    """The same table with another partition: up to three parts for each owner, somewhere."""
    kind = ("block", "cyclic")[rng.integers(2)]
    parts = int(rng.integers(1, 3 * owners + 1))
    homes = tuple(int(home) for home in rng.integers(0, owners, parts))
    return replace(old, partition=kind, homes=None if rng.random() < 0.2 else homes)


def rows_that_travel(old, new, owners):
    """How many rows lie at another owner than before: the formula, from the maps alone."""
    at = []
    for s in (old, new):
        home = np.empty(s.rows, np.int64)
        for owner in range(owners):
            home[s.map(owners).rows_at(owner)] = owner
        at.append(home)
    return int((at[0] != at[1]).sum())


def train_and_move(world, path, seed, steps=4):
    """Random steps, and between them random partitions; every pull equals the replica's. Runs on the compute ranks."""
    specs = tables()
    service = Service.open(world, specs, path)
    client, replica = service.client, Replica(specs)
    me, owners = world.compute.Get_rank(), len(world.owners)
    moved = 0
    for step in range(steps):
        contributions = []
        for c in range(len(world.clients)):
            rng = np.random.default_rng([SEED, seed, step, c])
            gradients = []
            for table, s in enumerate(specs):
                ids = np.flatnonzero(rng.random(s.rows) < rng.random())
                gradients.append((table, ids, rng.standard_normal((len(ids), s.dim)).astype(s.dtype)))
            contributions.append((float(c + 1), gradients))
        for table in range(len(specs)):
            ids = contributions[me][1][table][1]
            assert np.array_equal(client.pull(table, ids), replica.values[table][ids])
        client.push(contributions[me][1], contributions[me][0])
        replica.step(step + 1, contributions)
        rng = np.random.default_rng([SEED, seed, step])
        for table in rng.permutation(len(specs))[: rng.integers(0, len(specs) + 1)].tolist():
            old = service.specs[table]
            new = dealt_anew(old, owners, rng)
            sent = service.relayout(table, new)
            assert sent == new.held_bytes * rows_that_travel(old, new, owners), (old, new, sent)
            moved += sent
    for table, s in enumerate(specs):
        assert np.array_equal(client.pull(table, np.arange(s.rows)), replica.values[table]), s
    rows = np.sum([answer["rows"] for answer in service.call("statistics")], axis=0)
    assert rows.tolist() == [s.rows for s in specs]
    # Servers count for themselves; compute ranks that hold rows count with the rest of their bytes.
    counted = sum(world.gather(client.traffic.total("moved")))
    assert counted == (moved if world.embedded else 0)
    service.close()


def check_training_goes_on_as_if_nothing_moved(comm):
    cases = itertools.product(server_counts(comm), ("shared", "message", "get"))
    for seed, (servers, path) in enumerate(cases):
        on_world(comm, servers, lambda world, p=path, s=seed: train_and_move(world, p, s))


def check_between_nodes(comm):
    for servers in server_counts(comm):
        on_world(comm, servers, lambda world: train_and_move(world, "auto", 99), nodes_of_ranks=lambda rank: rank)


def check_owners_and_readers_that_are_late(comm):
    """Owners have yet to take a step in when its rows are to move; and one rank still reads where they lie."""
    progress, until = Server.progress, {}

    def late(self):
        if (self._push_sent != self._pushes).any():
            until.setdefault(self.applied, time.perf_counter() + 0.1)
        return time.perf_counter() > until.get(self.applied, 0) and progress(self)

    def main(world):
        old = spec("t", 30, 2, "cyclic", optim.Adagrad(0.1))
        service, oracle = Service.open(world, [old], "message"), Replica([old])
        ids, ones, clients = np.arange(0, 30, 2), np.ones((15, 2), np.float32), len(world.clients)
        for step, partition in enumerate(("block", "cyclic", "block")):
            service.client.push([(0, ids, ones)], 1.0)
            oracle.step(step + 1, [(1.0, [(0, ids, ones)])] * clients)
            if step == 1:
                if world.rank == world.clients[-1]:
                    time.sleep(0.3)
                assert np.array_equal(service.client.pull(0, ids), oracle.values[0][ids])
            service.relayout(0, replace(old, partition=partition))
        assert np.array_equal(service.client.pull(0, np.arange(30)), oracle.values[0])
        service.close()

    for servers in server_counts(comm):
        until.clear()
        with mock.patch.object(Server, "progress", late):
            on_world(comm, servers, main)


def check_rows_that_change_places_at_their_owner(comm):
    """None of them travels: who has heard of the move asks an owner that has yet to take the last step in."""
    progress, until = Server.progress, {}

    def late(self):
        if (self._push_sent != self._pushes).any():
            until.setdefault(self.applied, time.perf_counter() + 0.1)
        return time.perf_counter() > until.get(self.applied, 0) and progress(self)

    def main(world):
        old = replace(spec("t", 30, 2, "block", optim.Adagrad(0.1)), homes=(0, 0))
        service, oracle = Service.open(world, [old], "message"), Replica([old])
        ids, ones = np.arange(0, 30, 2), np.ones((15, 2), np.float32)
        for step, partition in enumerate(("cyclic", "block")):
            service.client.push([(0, ids, ones)], 1.0)
            oracle.step(step + 1, [(1.0, [(0, ids, ones)])] * len(world.clients))
            assert service.relayout(0, replace(old, partition=partition)) == 0
            assert np.array_equal(service.client.pull(0, np.arange(30)), oracle.values[0])
        service.close()

    for servers in server_counts(comm):
        until.clear()
        with mock.patch.object(Server, "progress", late):
            on_world(comm, servers, main, nodes_of_ranks=lambda rank: rank)


def check_a_table_becomes_a_replica_and_returns(comm):
    """Steps at owners, with a replica on every compute rank, and at owners again: values and state come along."""

    def main(world):
        rule = optim.Adam(0.01)
        specs = [spec("t", 41, 3, "cyclic", rule), spec("other", 5, 2, "block", rule)]
        service, oracle = Service.open(world, specs), Replica(specs)
        values = np.zeros((41, 3), np.float32)
        replica = [values, *rule.new_state(values).values()]
        state = dict(zip(rule.slots, replica[1:], strict=True))
        ids, ones = np.arange(0, 41, 3), np.ones((14, 3), np.float32)
        total = float(len(world.clients))
        for step in range(6):
            if step == 2:
                service.relayout(0, replace(service.specs[0], homes=()), replica)
            if step == 4:
                homes = tuple(part % len(world.owners) for part in range(3))
                service.relayout(0, replace(service.specs[0], homes=homes, partition="block"), replica)
            if 2 <= step < 4:
                assert np.array_equal(values, oracle.values[0])
                service.client.push([], 1.0)
                rule.update_rows(values, state, ids, ones, step + 1)
            else:
                assert np.array_equal(service.client.pull(0, np.arange(41)), oracle.values[0])
                service.client.push([(0, ids, ones * (world.compute.Get_rank() == 0) * total)], 1.0)
            oracle.step(step + 1, [(1.0, [(0, ids, ones)])])
        assert np.array_equal(service.client.pull(0, np.arange(41)), oracle.values[0])
        for wrong in (
            lambda: service.relayout(0, service.specs[0], replica),
            lambda: service.relayout(0, replace(service.specs[0], homes=())),
        ):
            try:
                wrong()
            except UsageError as error:
                assert "a replica" in str(error)
            else:
                raise AssertionError("moved without a place to go to")
        service.close()

    for servers in server_counts(comm):
        on_world(comm, servers, main)


def check_replicas_and_owners_in_rounds(comm):
    """To a copy on every compute rank and back, in rounds of one row and more; bytes equal those of the rows."""
    rows, dim = 57, 3
    for servers, round_bytes in itertools.product(server_counts(comm), (1, 300, 1 << 20)):

        def main(world, round_bytes=round_bytes):
            owners = len(world.owners)
            dealt = Layout.of_owners(world, Partition.even(rows, owners, "cyclic", 2 * owners + 1))
            other = Layout.of_owners(world, Partition.even(rows, owners, "block", 3))
            copies = Layout.of_replicas(world, rows)
            traffic = Traffic()
            held, sent = arrays_of(dealt, world.rank, dim), 0
            for old, new in itertools.pairwise([dealt, copies, other, dealt, dealt, copies, copies]):
                filled = [np.full_like(array, -1) for array in arrays_of(new, world.rank, dim)]
                sent += move(world, old, new, 2 * dim * 8, held, filled, traffic, round_bytes)
                for found, expected in zip(filled, arrays_of(new, world.rank, dim), strict=True):
                    assert np.array_equal(found, expected)
                held = filled
            assert world.comm.allreduce(traffic.total("moved")) == sent

        everywhere(comm, servers, main)


def everywhere(comm, servers, main):
    """Run `main(world)` on all ranks: the servers too take part in a move."""
    from hybridmpi.world import World

    with World(servers, comm) as world:
        main(world)


def arrays_of(layout, rank, dim):
    """What a rank holds: two slots that tell their row, [n, dim] float64 each; nothing where it holds no rows."""
    held = [first + stride * np.arange(count) for first, stride, count in layout.held[rank]]
    ids = np.concatenate(held) if held else np.empty(0, np.int64)
    return [slot + np.arange(dim) + 10.0 * ids[:, None] for slot in (0.25, 0.5)]


def check_accesses_are_counted_by_part(comm):
    for servers in server_counts(comm):

        def main(world):
            owners = len(world.owners)
            homes = tuple((2 * part + 1) % owners for part in range(3))
            service = Service.open(world, [replace(spec("t", 30, 2, "cyclic", optim.SGD(0.1)), homes=homes)])
            ids = np.array([0, 1, 3, 6, 9])
            for _ in range(4):
                service.client.push([(0, ids, np.ones((5, 2), np.float32))], 1.0)
            assert accesses(service) == {0: 16 * len(world.clients), 1: 4 * len(world.clients), 2: 0}
            service.call("forget_accesses")
            assert accesses(service) == {0: 0, 1: 0, 2: 0}
            service.relayout(0, replace(service.specs[0], partition="block", homes=None))
            service.client.push([(0, ids, np.ones((5, 2), np.float32))], 1.0)
            block = Partition.even(30, owners, "block")
            at = [int(np.isin(ids, block.rows_at(owner)).sum()) * len(world.clients) for owner in range(owners)]
            assert accesses(service) == dict(enumerate(at))
            service.close()

        on_world(comm, servers, main)


def accesses(service):
    found = {}
    for answer in service.call("statistics"):
        found |= answer["accesses"][0]
    return found


def check_wrong_layouts_change_nothing(comm):
    def main(world):
        service = Service.open(world, [spec("t", 30, 2, "cyclic", optim.SGD(0.1))])
        old = service.specs[0]
        for wrong in (replace(old, rows=31), replace(old, homes=(9,)), replace(old, optimizer=optim.Adagrad(0.1))):
            try:
                service.relayout(0, wrong)
            except UsageError as error:
                assert "homes" in str(error) or "an owner from 0 to" in str(error), str(error)
            else:
                raise AssertionError(f"{wrong} was accepted")
        assert service.client.pull(0, np.arange(30)).shape == (30, 2)
        service.close()

    for servers in server_counts(comm):
        on_world(comm, servers, main)
