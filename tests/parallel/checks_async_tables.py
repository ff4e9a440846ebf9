"""Tables under asynchronous clients: every path, pushes in rounds that come in turn, how stale each push was."""

import itertools
import math

import numpy as np
from checks_sparse import on_world, server_counts, spec

from hybridmpi import optim
from hybridmpi.sparse.service import Service
from hybridmpi.sparse.shard import initialise

ANY = math.inf


def check_every_path_and_rounds_of_many_pushes_at_once(comm):
    """Slots of a few rows: rounds of several clients come in turn. Plain descent adds up, in whatever order."""
    rate, steps = 0.125, 4

    def main(world, path, slot):
        specs = [
            spec("wide", 61, 7, "cyclic", optim.SGD(rate), "f8"),
            spec("thin", 40, 1, "block", optim.SGD(rate), "f8", "sum"),
        ]
        service = Service.open(world, specs, path, slot, staleness=1)
        client, me = service.client, world.compute.Get_rank()
        expected = [np.empty((s.rows, s.dim)) for s in specs]
        for values, s in zip(expected, specs, strict=True):
            initialise(values, s, 0, 1)
        for step, rank in itertools.product(range(steps), range(len(world.clients))):
            rng = np.random.default_rng([step, rank])
            gradients = []
            for table, s in enumerate(specs):
                ids = np.sort(rng.choice(s.rows, rng.integers(0, s.rows), replace=False))
                gradients.append((table, ids, rng.standard_normal((len(ids), s.dim))))
                expected[table][ids] -= rate * gradients[-1][2]
            if rank == me:
                client.wait_for_turn()
                client.pull(0, np.arange(5))
                client.push(gradients, 1.0 + rank)
        client.leave()
        client.wait_for_version()
        world.barrier()
        for table, s in enumerate(specs):
            assert np.allclose(client.pull(table, np.arange(s.rows)), expected[table], atol=1e-12), (path, slot)
        service.close()

    for servers, path, slot in itertools.product(server_counts(comm), ("shared", "message", "get"), (None, 64)):
        on_world(comm, servers, lambda world, p=path, b=slot: main(world, p, b))


def check_staleness_counts_updates_of_others_since_the_pull(comm):
    """One client looks, the others push three times each, one after another, and then it pushes."""

    def main(world):
        service = Service.open(world, [spec("t", 20, 2, "cyclic", optim.SGD(0.1))], staleness=ANY)
        client, me, ranks = service.client, world.compute.Get_rank(), len(world.clients)
        rows = [(0, np.arange(3), np.ones((3, 2), np.float32))]
        client.wait_for_turn()
        world.barrier()
        for turn in range(1, ranks):
            for _ in range(3 * (turn == me)):
                client.wait_for_turn()
                client.push(rows, 1.0)
                client.wait_for_version()
            world.barrier()
        if me == 0:
            client.push(rows, 1.0)
            client.wait_for_version()
        world.barrier()
        others = 3 * (ranks - 1)
        expected = {others: 1} | ({0: others} if others else {})
        assert service.call("staleness") == [expected] * len(world.owners)
        service.close()

    for servers in server_counts(comm):
        on_world(comm, servers, main)
