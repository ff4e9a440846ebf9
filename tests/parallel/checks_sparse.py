"""Tables on owners against a replica that every rank keeps: pulls, pushes, every path, partition and optimiser."""

import itertools
import time
from dataclasses import replace

import numpy as np

from hybridmpi import optim
from hybridmpi.errors import HybridMPIError, LaunchError, UsageError
from hybridmpi.sparse.exchange import slot_sizes
from hybridmpi.sparse.requests import PIECE_HEAD, REPLY_HEAD, REQUEST_HEAD
from hybridmpi.sparse.service import Service
from hybridmpi.sparse.shard import initialise
from hybridmpi.sparse.spec import TableSpec
from hybridmpi.sparse.wire import HEADER_BYTES, PIECE_BYTES
from hybridmpi.world import World

SEED = 5


def spec(name, rows, dim, partition, optimizer, dtype="f4", reduction="mean", initial=("uniform", -0.1, 0.1)):
    return TableSpec(name, rows, dim, np.dtype(dtype), initial, reduction, partition, optimizer, SEED)


class Replica:
    """The oracle: whole tables in every rank's memory, gradients of all ranks added in rank order."""

    def __init__(self, specs):
        self.specs = specs
        self.values = [np.empty((s.rows, s.dim), s.dtype) for s in specs]
        for values, s in zip(self.values, specs, strict=True):
            initialise(values, s, 0, 1)
        self.state = [s.optimizer.new_state(v) for s, v in zip(specs, self.values, strict=True)]

    def step(self, number, contributions):
        """contributions: per client (weight, [(table, ids, values)])."""
        total = sum(weight for weight, _ in contributions)
        for table, s in enumerate(self.specs):
            sums = np.zeros((s.rows, s.dim), s.dtype)
            touched = np.zeros(s.rows, bool)
            for weight, gradients in contributions:
                for t, ids, values in gradients:
                    if t == table:
                        scale = 1.0 if s.reduction == "sum" else weight / total
                        sums[ids] += s.dtype.type(scale) * values
                        touched[ids] = True
            rows = np.flatnonzero(touched)
            s.optimizer.update_rows(self.values[table], self.state[table], rows, sums[rows], number)


def train(world, specs, steps, path="auto", slot_bytes=None, uneven=True):
    """Push random rows for some steps; compare every pull with the replica. Runs on the compute ranks."""
    service = Service.open(world, specs, path, slot_bytes)
    client, replica = service.client, Replica(specs)
    me, clients = world.compute.Get_rank(), len(world.clients)
    for step in range(steps):
        contributions = []
        for c in range(clients):
            rng = np.random.default_rng([SEED, step, c])
            weight = float(c + 1) if uneven else 1.0
            gradients = []
            for table, s in enumerate(specs):
                # Some ranks have nothing for some tables in some steps.
                most = 0 if (step + c + table) % 4 == 3 else s.rows
                count = rng.integers(0, most + 1)
                ids = np.sort(rng.choice(s.rows, count, replace=False)).astype(np.int64)
                gradients.append((table, ids, rng.standard_normal((count, s.dim)).astype(s.dtype)))
            contributions.append((weight, gradients))
        for table, s in enumerate(specs):
            ids = contributions[me][1][table][1]
            assert np.array_equal(client.pull(table, ids), replica.values[table][ids]), (step, s)
        client.push(contributions[me][1], contributions[me][0])
        replica.step(step + 1, contributions)
    for table, s in enumerate(specs):
        everything = client.pull(table, np.arange(s.rows))
        assert everything.shape == (s.rows, s.dim) and everything.dtype == s.dtype
        assert np.array_equal(everything, replica.values[table]), (s, np.abs(everything - replica.values[table]).max())
    service.close()


def on_world(comm, servers, main, **options):
    with World(servers, comm, **options) as world:
        if not world.is_server:
            main(world)


def server_counts(comm):
    return sorted({0, 1, comm.Get_size() - 1} & set(range(comm.Get_size())))


def homes_of(owners):
    """More parts than owners, not in turn; where there are several owners, one has none."""
    return tuple((3 * part + part // 3) % max(1, owners - 1) for part in range(2 * owners + 1))


def check_every_path_partition_and_round(comm):
    for servers, partition, path in itertools.product(
        server_counts(comm), ("block", "cyclic"), ("shared", "message", "get")
    ):
        specs = [
            spec("wide", 301, 33, partition, optim.Adagrad(0.1)),
            spec("thin", 97, 1, partition, optim.Adagrad(0.1)),
            replace(spec("parts", 53, 3, partition, optim.Adagrad(0.1)), homes=homes_of(servers or comm.Get_size())),
        ]
        for slot in (None, 64):
            on_world(comm, servers, lambda world, s=specs, p=path, b=slot: train(world, s, 4, p, b))


def check_optimizers_dtypes_and_reductions(comm):
    rules = [optim.SGD(0.1), optim.Momentum(0.1), optim.Adagrad(0.1), optim.Adam(0.01)]
    specs = [
        spec(f"{rule.describe()}{dtype}{reduction}", 50, 7, "cyclic", rule, dtype, reduction)
        for rule, dtype, reduction in itertools.product(rules, ("f4", "f8"), ("mean", "sum"))
    ]
    on_world(comm, min(1, comm.Get_size() - 1), lambda world: train(world, specs, 5))


def check_odd_shapes(comm):
    """No rows, one row, fewer rows than owners, and no table at all."""
    for servers, partition in itertools.product(server_counts(comm), ("block", "cyclic")):
        specs = [
            spec("none", 0, 3, partition, optim.SGD(0.1)),
            spec("one", 1, 5, partition, optim.SGD(0.1)),
            spec("two", 2, 1, partition, optim.SGD(0.1)),
        ]
        on_world(comm, servers, lambda world, s=specs: train(world, s, 3))
        on_world(comm, servers, lambda world: train(world, [], 2))


def check_pretended_nodes(comm):
    """Every rank on a node of its own: between them, the calibrated choice of message or get."""
    specs = [spec("table", 5000, 16, "block", optim.Adagrad(0.1)), spec("bias", 5000, 1, "block", optim.Adagrad(0.1))]
    for servers in server_counts(comm):

        def main(world):
            service = Service.open(world, specs)
            alone = world.owners == [world.rank]
            paths = zip(service.client.paths, world.owners, strict=True)
            assert all(path in ("message", "get") for path, owner in paths if owner != world.rank)
            assert alone or world.nodes == world.size
            service.close()
            train(world, specs, 3)

        on_world(comm, servers, main, nodes_of_ranks=lambda rank: rank)


def check_initial_values_do_not_depend_on_servers(comm):
    found = []
    for servers, partition in itertools.product(server_counts(comm), ("block", "cyclic")):

        def main(world, partition=partition):
            kinds = [("uniform", -1.0, 1.0), ("normal", 0.0, 2.0), ("constant", 3.0)]
            specs = [spec(k[0], 143, 9, partition, optim.SGD(0.1), initial=k) for k in kinds]
            service = Service.open(world, specs)
            found.append([service.client.pull(t, np.arange(143)) for t in range(3)])
            service.close()

        on_world(comm, servers, main)
    for tables in found[1:]:
        for first, other in zip(found[0], tables, strict=True):
            assert np.array_equal(first, other)
    if found:
        uniform, normal, constant = found[0]
        assert uniform.min() >= -1 and uniform.max() < 1 and abs(uniform.mean()) < 0.1 and abs(normal.std() - 2) < 0.2
        assert (constant == 3).all()


def check_byte_counters_equal_the_formulas(comm):
    """Per client: pulls alpha w, pushes alpha w and 8 bytes a row, for several ranks, owners and dims."""
    for servers, dim, path in itertools.product(server_counts(comm), (1, 6, 32), ("shared", "message")):

        def main(world, dim=dim, path=path):
            rows, touched = 1000, 100 + 10 * world.compute.Get_rank()
            service = Service.open(world, [spec("t", rows, dim, "cyclic", optim.SGD(0.1))], path)
            ids = np.arange(touched) * 7 % rows
            ids.sort()
            service.client.pull(0, ids)
            service.client.push([(0, ids, np.ones((touched, dim), np.float32))], 1.0)
            counted = service.client.traffic.snapshot()
            alpha, w = touched / rows, rows * dim * 4
            owners = len(world.owners)
            assert counted["pull_rows"] == round(alpha * w)
            assert counted["push_rows"] == round(alpha * w)
            assert counted["push_ids"] == 8 * touched
            assert counted["pull_ids"] == (8 * touched if path == "message" else 0)
            # A push's header and one piece for each owner; the heads of a request, of its one piece, and of its reply.
            requests = owners * (REQUEST_HEAD + PIECE_HEAD + REPLY_HEAD) if path == "message" else 0
            assert counted["control"] == owners * (HEADER_BYTES + PIECE_BYTES) + requests
            assert counted["allreduce"] == 0
            total = sum(world.gather(counted["push_rows"]))
            if path == "message":
                service.client.wait_for_version()
            assert total == sum((100 + 10 * r) * dim * 4 for r in range(len(world.clients)))
            service.close()

        on_world(comm, servers, main)


def check_mailbox_memory_is_bounded(comm):
    for clients in (1, 8, 64, 512):
        sizes = slot_sizes(clients, 8, 1024, replies=True)
        assert clients * sizes.push <= max(64 << 20, clients * (64 << 10)), sizes
        for peers in (clients, 8):
            assert peers * sizes.request <= max(16 << 20, peers * (64 << 10)), sizes
            assert peers * sizes.reply <= max(64 << 20, peers * (64 << 10)), sizes
    wide = slot_sizes(1, 1, 1 << 24, replies=True)
    assert min(wide.push, wide.request, wide.reply) >= 1 << 24


def check_wrong_requests_are_refused(comm):
    size = comm.Get_size()

    def expect(kind, text, function):
        try:
            function()
        except kind as error:
            assert text in str(error), str(error)
            return
        raise AssertionError(f"no {kind.__name__} with '{text}'")

    expect(LaunchError, "at least one rank must compute", lambda: World(size, comm))
    expect(UsageError, "per-node", lambda: World(-1, comm))
    expect(UsageError, "per-node", lambda: World("all", comm))
    twice = [spec("t", 3, 3, "block", optim.SGD(0.1))] * 2

    def main(world):
        expect(UsageError, "two tables are named 't'", lambda: Service.open(world, twice))
        expect(UsageError, "'block' or 'cyclic'", lambda: spec("t", 3, 3, "striped", optim.SGD(0.1)).map(2))

    on_world(comm, 0, main)


def check_commands_and_their_errors(comm):
    def main(world):
        service = Service.open(world, [spec("t", 10, 2, "block", optim.SGD(0.1))])
        rows = [answer["rows"][0] for answer in service.call("statistics")]
        assert sum(rows) == 10 and len(rows) == len(world.owners)
        try:
            service.call("nonsense")
        except HybridMPIError as error:
            assert "nonsense" in str(error) and "rank" in str(error)
        else:
            raise AssertionError("an unknown command was carried out")
        assert len(service.call("statistics")) == len(world.owners)
        service.close()

    for servers in server_counts(comm):
        on_world(comm, servers, main)


def check_commands_come_after_what_was_pushed(comm):
    """One rank pushes late, and others are at the command before: every owner has applied the step first."""

    def main(world):
        service = Service.open(world, [spec("t", 10, 2, "block", optim.SGD(0.1))])
        for late in world.clients:
            if world.rank == late:
                time.sleep(0.1)
            service.client.push([(0, np.arange(10), np.ones((10, 2), np.float32))], 1.0)
            assert sum(touched for (touched,) in service.call("touched")) == 10
        service.close()

    for servers in server_counts(comm):
        on_world(comm, servers, main)
