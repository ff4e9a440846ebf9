"""Local aggregation: nodes of unequal size that sum their rows before they push them, against the replica."""

import itertools
import time
from dataclasses import replace
from unittest import mock

import numpy as np
from checks_sparse import SEED, Replica, homes_of, on_world, server_counts, spec

from hybridmpi import optim
from hybridmpi.errors import UsageError
from hybridmpi.planning.traffic import aggregate, node_messages, push_rows, row_ids
from hybridmpi.sparse import node_sum
from hybridmpi.sparse.server import Server
from hybridmpi.sparse.service import Service
from hybridmpi.sparse.wire import HEADER_BYTES, PIECE_BYTES

# Worlds of pretended nodes, by rank: one node, pairs, one rank alone and the others together, odd ranks and even ones.
NODES = {
    "one": lambda rank: 0,
    "pairs": lambda rank: rank // 2,
    "uneven": lambda rank: min(rank, 1),
    "interleaved": lambda rank: rank % 2,
}


def contributions_of(specs, clients, step, most=None):
    """Return every client's (weight, gradients); some have no rows of some tables, no rows at all, or no examples."""
    result = []
    for c in range(clients):
        rng = np.random.default_rng([SEED, step, c])
        idle = (step + c) % 5 == 4
        gradients = []
        for table, s in enumerate(specs):
            empty = idle or (step + c + table) % 4 == 3
            count = 0 if empty else rng.integers(0, min(s.rows, most or s.rows) + 1)
            ids = np.sort(rng.choice(s.rows, count, replace=False)).astype(np.int64)
            gradients.append((table, ids, rng.standard_normal((count, s.dim)).astype(s.dtype)))
        result.append((0.0 if idle else float(c + 1), [g for g in gradients if len(g[1]) or not idle]))
    return result


def by_node(world, specs, contributions):
    """Return the contributions of nodes, as what the ranks of each would send together."""
    result = []
    nodes = [world.node_of[rank] for rank in world.clients]
    for node in sorted(set(nodes)):
        ranks = [c for c, n in enumerate(nodes) if n == node]
        total = sum(contributions[c][0] for c in ranks)
        gradients = []
        for table, s in enumerate(specs):
            sums, touched = np.zeros((s.rows, s.dim), s.dtype), np.zeros(s.rows, bool)
            for c in ranks:
                weight, mine = contributions[c]
                scale = 1.0 if s.reduction == "sum" else weight / total if total else 0.0
                for t, ids, values in mine:
                    if t == table:
                        sums[ids] += s.dtype.type(scale) * values
                        touched[ids] = True
            rows = np.flatnonzero(touched)
            if len(rows):
                gradients.append((table, rows, sums[rows]))
        result.append((total, gradients))
    return result


def train(world, specs, steps, exact, slot_bytes=None, most=None):
    """Push random rows for some steps; compare every pull with the replica, bit for bit where the nodes' ranks are
    neighbours; return (the tables at the end, how often this node's rows did not fit)."""
    service = Service.open(world, specs, slot_bytes=slot_bytes, aggregate="always")
    client, replica = service.client, Replica(specs)
    me, clients = world.compute.Get_rank(), len(world.clients)
    mates = [c for c in range(clients) if world.same_node(world.clients[c])]
    assert (client.node_sum is None) == (len(mates) == 1)

    def same(found, expected):
        return np.array_equal(found, expected) if exact else np.allclose(found, expected, rtol=1e-5, atol=1e-5)

    for step in range(steps):
        contributions = contributions_of(specs, clients, step, most)
        for table, s in enumerate(specs):
            ids = np.unique(np.concatenate([g[1] for _, gs in contributions for g in gs if g[0] == table] or [[]]))
            found = client.pull(table, ids.astype(np.int64))
            assert same(found, replica.values[table][ids.astype(np.int64)]), (step, s)
        overflows = client.node_sum.overflows if client.node_sum else 0
        client.push(contributions[me][1], contributions[me][0])
        if client.node_sum and client.node_sum.overflows == overflows:
            found = [set() for _ in specs]
            for c in mates:
                for table, ids, _ in contributions[c][1]:
                    found[table] |= set(ids.tolist())
            assert client.node_sum.distinct_rows().tolist() == [len(rows) for rows in found]
        elif client.node_sum:
            assert client.node_sum.distinct_rows() is None
        replica.step(step + 1, by_node(world, specs, contributions))
    tables = [client.pull(table, np.arange(s.rows)) for table, s in enumerate(specs)]
    for found, expected, s in zip(tables, replica.values, specs, strict=True):
        assert same(found, expected), (s, np.abs(found - expected).max())
    overflows = client.node_sum.overflows if client.node_sum else 0
    service.close()
    return tables, overflows


def check_nodes_owners_partitions_and_rounds(comm):
    ways = itertools.cycle([("block", None), ("cyclic", 64), ("cyclic", None), ("block", 64), ("cyclic", 64)])
    for (name, nodes), servers in itertools.product(NODES.items(), server_counts(comm)):
        partition, slot = next(ways)
        specs = [
            spec("wide", 301, 33, partition, optim.Adagrad(0.1)),
            spec("thin", 97, 1, partition, optim.Adagrad(0.1), reduction="sum"),
            spec("double", 40, 5, partition, optim.SGD(0.1), dtype="f8"),
            spec("one", 1, 2, partition, optim.SGD(0.1)),
            spec("none", 0, 2, partition, optim.SGD(0.1)),
        ]
        homes = homes_of(servers or comm.Get_size())
        specs.append(replace(spec("parts", 53, 3, partition, optim.Adagrad(0.1)), homes=homes))
        exact = name != "interleaved"
        on_world(comm, servers, lambda w, s=specs, b=slot, e=exact: train(w, s, 5, e, b), nodes_of_ranks=nodes)


def check_steps_back_to_back(comm):
    """Nobody pulls in between, and owners take their time: no rank lays rows out before all have sent the last ones."""
    progress, until = Server.progress, {}

    def late(self):
        if (self._push_sent != self._pushes).any():
            until.setdefault(self.applied, time.perf_counter() + 0.05)
        return time.perf_counter() > until.get(self.applied, 0) and progress(self)

    def main(world):
        specs = [spec("t", 200, 6, "cyclic", optim.Adagrad(0.1)), spec("sum", 90, 1, "block", optim.SGD(0.1))]
        service, replica = Service.open(world, specs, slot_bytes=512, aggregate="always"), Replica(specs)
        for step in range(4):
            contributions = contributions_of(specs, len(world.clients), step)
            weight, gradients = contributions[world.compute.Get_rank()]
            service.client.push(gradients, weight)
            replica.step(step + 1, by_node(world, specs, contributions))
        for table, (s, expected) in enumerate(zip(specs, replica.values, strict=True)):
            assert np.allclose(service.client.pull(table, np.arange(s.rows)), expected, rtol=1e-5, atol=1e-5)
        service.close()

    for nodes, servers in itertools.product(("one", "pairs", "interleaved"), server_counts(comm)):
        until.clear()
        with mock.patch.object(Server, "progress", late):
            on_world(comm, servers, main, nodes_of_ranks=NODES[nodes])


def check_the_same_bits_twice(comm):
    """Odd and even ranks: the order in which messages come is left to chance."""
    specs = [spec("table", 500, 16, "cyclic", optim.Adagrad(0.1))]
    found = []

    def main(world):
        found.append(train(world, specs, 4, exact=False)[0])

    for _ in range(2):
        on_world(comm, 0, main, nodes_of_ranks=NODES["interleaved"])
    assert all(np.array_equal(a, b) for a, b in zip(*found, strict=True))


def check_rows_that_do_not_fit_are_pushed_rank_by_rank(comm):
    """Steps of more rows than the node has room for, between steps that fit."""
    specs = [spec("table", 400, 16, "cyclic", optim.Adagrad(0.1)), spec("sum", 400, 1, "block", optim.SGD(0.1))]
    steps, room = 6, 200 * 90
    for nodes, servers in itertools.product(("one", "uneven"), server_counts(comm)):

        def main(world):
            _, overflows = train(world, specs, steps, exact=False)
            every = world.gather((world.node_of[world.rank], overflows))
            crowded = {node for node, _ in every if [n for n, _ in every].count(node) > 1}
            for node in crowded:
                counts = {count for n, count in every if n == node}
                assert len(counts) == 1 and 0 < counts.pop() < steps, every

        with mock.patch.object(node_sum, "LARGEST_REGION", room):
            on_world(comm, servers, main, nodes_of_ranks=NODES[nodes])


def check_bytes_equal_the_formulas(comm):
    """A node pushes its different rows once, in owners + ranks - gcd messages; a rank lays its own rows out."""
    dims = itertools.cycle([1, 32, 5])
    for nodes, servers in itertools.product(NODES, server_counts(comm)):
        dim = next(dims)

        def main(world, dim=dim):
            rows, owners = 1200, len(world.owners)
            service = Service.open(world, [spec("t", rows, dim, "cyclic", optim.SGD(0.1))], aggregate="always")
            ids = np.arange(0, 600 + 120 * world.compute.Get_rank())
            before = service.client.traffic.snapshot()  # what the choice of a way to pull took
            service.client.push([(0, ids, np.ones((len(ids), dim), np.float32))], 1.0)
            counted = {key: count - before[key] for key, count in service.client.traffic.snapshot().items()}
            mates = [c for c, rank in enumerate(world.clients) if world.same_node(rank)]
            every = world.gather(counted)
            pushed = {key: sum(every[c][key] for c in mates) for key in counted}
            w, alpha = rows * dim * 4, (600 + 120 * mates[-1]) / rows
            assert pushed["push_rows"] == push_rows(alpha, w)
            assert pushed["push_ids"] == row_ids(alpha, rows)
            assert pushed["control"] == node_messages(owners, len(mates)) * (HEADER_BYTES + PIECE_BYTES)
            alone = len(mates) == 1
            assert counted["aggregate"] == (0 if alone else aggregate(len(ids) / rows, w, rows))
            assert service.client.traffic.network["aggregate"] == 0
            if not alone:
                assert service.client.node_sum.distinct_rows().tolist() == [alpha * rows]
            service.close()

        on_world(comm, servers, main, nodes_of_ranks=NODES[nodes])


def check_rows_in_16_bits(comm):
    """A node's sums are rounded, not what goes into them; what a sum of its ranks could exceed is refused before."""
    rows = np.arange(200)

    def main(world):
        specs = [
            spec("mean", 200, 6, "cyclic", optim.SGD(1.0), initial=("constant", 0.0)),
            spec("sum", 200, 6, "block", optim.SGD(1.0), reduction="sum", initial=("constant", 0.0)),
        ]
        service = Service.open(world, specs, wire="float16", aggregate="always")
        client, me = service.client, world.compute.Get_rank()
        # One node's own sum is a number that float16 carries; its parts are not.
        client.push([(t, rows, np.full((200, 6), 1 + (me + 1) / 4096, np.float32)) for t in range(2)], 1.0)
        nodes = [world.node_of[rank] for rank in world.clients]
        expected = np.zeros(2)
        for node in set(nodes):
            values = [1 + (c + 1) / 4096 for c, n in enumerate(nodes) if n == node]
            expected += np.mean(values) * len(values) / len(nodes), np.sum(values)
        for table, total in enumerate(expected):
            found = -client.pull(table, rows)
            assert np.allclose(found, total, rtol=2e-3), (table, total, found)
        mates = nodes.count(world.node_of[world.rank])
        far = any(not world.same_node(rank) for rank in world.owners)
        most = 65504 / mates if far else np.inf
        for value in (40000.0, 30000.0, 65504.0):
            large = np.full((200, 6), value, np.float32)
            assert not client.unfit(0, rows, large)
            assert bool(client.unfit(1, rows, large)) == (value > most), (value, most)
        service.close()

    for nodes, servers in itertools.product(("pairs", "uneven"), server_counts(comm)):
        on_world(comm, servers, main, nodes_of_ranks=NODES[nodes])


def check_when_it_is_used(comm):
    specs = [spec("t", 10, 2, "block", optim.SGD(0.1))]

    def main(world):
        clients = [world.node_of[rank] for rank in world.clients]
        mates = clients.count(world.node_of[world.rank])
        nodes = {*clients, *(world.node_of[rank] for rank in world.owners)}
        for option, on in (("auto", len(nodes) > 1 and mates > 1), ("always", mates > 1), ("never", False)):
            service = Service.open(world, specs, aggregate=option)
            assert (service.client.node_sum is not None) == on, option
            service.close()
        service = Service.open(world, [], aggregate="always")
        service.client.push([], 1.0)
        service.client.wait_for_version()
        service.close()
        service = Service.open(world, specs, staleness=1)
        assert service.client.node_sum is None
        service.close()
        try:
            Service.open(world, specs, aggregate="yes")
        except UsageError as error:
            assert "aggregate = 'yes'" in str(error)
        else:
            raise AssertionError("'yes' was taken")

    for nodes, servers in itertools.product(("one", "uneven"), server_counts(comm)[:2]):
        on_world(comm, servers, main, nodes_of_ranks=NODES[nodes])
