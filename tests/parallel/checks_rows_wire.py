"""Rows in 16 bits between nodes, against a replica in which every rank sees what its wire leaves: the same bits."""

import itertools
from dataclasses import replace
from functools import partial

import numpy as np
from checks_clipping import contributions_of
from checks_sparse import Replica, on_world, server_counts, spec

import hybridmpi as hm
from hybridmpi import optim
from hybridmpi.errors import NonFiniteError, RemoteError, UsageError
from hybridmpi.planning.traffic import on_wire, pull_rows, push_rows, row_ids
from hybridmpi.sparse import exchange
from hybridmpi.sparse.cache import CacheOptions
from hybridmpi.sparse.reader import RowReader
from hybridmpi.sparse.service import Service

HALVES = ("bfloat16", "float16")
# How ranks are put on pretended nodes: all on one, each on its own, pairs.
PLACEMENTS = (lambda rank: 0, lambda rank: rank, lambda rank: rank // 2)


def rounded(values, wire):
    """Return float32 `values` as they come out of the wire. Other kinds come out as they went in."""
    if values.dtype != np.float32:
        return values
    if wire == "float16":  # numpy's own rounding
        return values.astype(np.float16).astype(np.float32)
    bits = values.view(np.uint32).astype(np.uint64)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16 << 16).astype(np.uint32).view(np.float32)


def seen(world, client, specs, table, ids, values, wire):
    """Return rows of a table as the wire between a client (its number) and their owners leaves them."""
    result = values.copy()
    for owner, (where, _) in enumerate(specs[table].map(len(world.owners)).split(ids)):
        if world.node_of[world.owners[owner]] != world.node_of[world.clients[client]]:
            result[where] = rounded(values[where], wire)
    return result


def train(world, specs, wire, path, slot_bytes):
    service = Service.open(world, specs, path, slot_bytes, wire=wire, aggregate="never")
    client, replica = service.client, Replica(specs)
    me = world.compute.Get_rank()
    for owner, way in zip(world.owners, client.paths, strict=True):
        assert world.same_node(owner) or way == "message"
    look = partial(seen, world, specs=specs, wire=wire)
    for step in range(4):
        contributions = contributions_of(step, specs, len(world.clients))
        for table, ids, _ in contributions[me][1]:
            expected = look(me, table=table, ids=ids, values=replica.values[table][ids])
            assert np.array_equal(client.pull(table, ids), expected), (step, table)
        client.push(contributions[me][1], contributions[me][0])
        sent = [
            (weight, [(t, ids, look(c, table=t, ids=ids, values=values)) for t, ids, values in gradients])
            for c, (weight, gradients) in enumerate(contributions)
        ]
        replica.step(step + 1, sent)
    for table, s in enumerate(specs):
        everything = np.arange(s.rows)
        expected = look(me, table=table, ids=everything, values=replica.values[table])
        assert np.array_equal(client.pull(table, everything), expected), s
    service.close()


def check_bits_are_those_of_a_rounded_replica(comm):
    """Both wires, float64 beside float32 tables, odd widths, rounds of tiny slots."""
    rule = optim.Adagrad(0.1)
    specs = [
        spec("odd", 101, 33, "block", rule),
        spec("thin", 97, 1, "cyclic", rule),
        spec("double", 40, 3, "cyclic", rule, "f8"),
    ]

    def main(world):
        train(world, specs, HALVES[0], "auto", 64)
        train(world, specs, HALVES[1], "message", None)

    for servers, node_of in itertools.product(server_counts(comm), PLACEMENTS[: comm.Get_size()]):
        on_world(comm, servers, main, nodes_of_ranks=node_of)


def check_many_rows_in_blocks_and_rounds(comm):
    """More rows than are rounded at once, and than fit into a reply slot."""
    specs = [spec("long", 20_000, 3, "cyclic", optim.SGD(0.1))]
    smallest, budget = exchange.SMALLEST_SLOT, exchange.REPLY_BUDGET
    exchange.SMALLEST_SLOT, exchange.REPLY_BUDGET = 1 << 13, 1 << 14
    try:
        for wire in HALVES:
            main = partial(train, specs=specs, wire=wire, path="auto", slot_bytes=None)
            on_world(comm, comm.Get_size() - 1, main, nodes_of_ranks=lambda rank: rank)
    finally:
        exchange.SMALLEST_SLOT, exchange.REPLY_BUDGET = smallest, budget


def check_bytes_equal_the_formulas(comm):
    def measure(world, wire, dtype):
        rows, dim, touched = 1000, 7, 100 + 10 * world.compute.Get_rank()
        s = spec("t", rows, dim, "cyclic", optim.SGD(0.1), dtype)
        service = Service.open(world, [s], wire=wire, aggregate="never")
        ids = np.sort(np.arange(touched) * 7 % rows)
        service.client.pull(0, ids)
        service.client.push([(0, ids, np.ones((touched, dim), s.dtype))], 1.0)
        service.client.wait_for_version()
        near = sum(
            len(local)
            for owner, (_, local) in zip(world.owners, s.map(len(world.owners)).split(ids), strict=True)
            if world.same_node(owner)
        )
        alpha, w, far = touched / rows, rows * dim * s.dtype.itemsize, 1 - near / touched
        counted, wide = service.client.traffic, on_wire(w, s.dtype, wire, far)
        assert counted.total("pull_rows") == round(pull_rows(alpha, wide)), (wire, dtype)
        assert counted.total("push_rows") == round(push_rows(alpha, wide)), (wire, dtype)
        assert counted.total("push_ids") == round(row_ids(alpha, rows))
        far_values = (touched - near) * dim * (2 if dtype == "f4" and wire != "float32" else s.dtype.itemsize)
        assert counted.network["push_rows"] == counted.network["pull_rows"] == far_values
        service.close()

    def main(world):
        for wire, dtype in (("float32", "f4"), ("float16", "f4"), ("bfloat16", "f4"), ("float16", "f8")):
            measure(world, wire, dtype)

    for servers, node_of in itertools.product(server_counts(comm), PLACEMENTS[1 : comm.Get_size()]):
        on_world(comm, servers, main, nodes_of_ranks=node_of)


def check_what_float16_cannot_carry_is_found_before_anything_is_applied(comm):
    """70,000 in a gradient that goes to another node: named on all ranks, or skipped; within a node it is welcome."""

    def main(world, nonfinite):
        sparse = hm.SparseOptions(wire="float16")
        trainer = hm.Trainer(world, Wide(), optim.SGD(1e-6), nonfinite=nonfinite, sparse=sparse)
        last = len(world.clients) - 1
        factors = [1.0, 70_000.0 if world.compute.Get_rank() == last else 1.0, 2.0]
        ids = np.arange(6)
        results, error, held = [], None, []
        for factor in factors:
            try:
                results.append(trainer.train_step({"ids": ids, "factor": np.float32(factor), "weight": 6}).skipped)
            except (NonFiniteError, RemoteError) as caught:
                error = str(caught)
            held.append(trainer.tables[0].pull(np.arange(20)).tobytes())
        assert len(set(world.gather(error))) == 1
        across = [world.node_of[rank] != world.node_of[world.clients[last]] for rank in world.owners]
        if not any(across):
            assert error is None and results == [False] * 3
        elif nonfinite == "skip":
            assert error is None and results == [False, True, False] and held[0] == held[1] != held[2]
        else:
            assert results == [False, False] and held[0] == held[1] != held[2]
            for part in ("step 2: ", f"rank {world.clients[last]}: ", "in the gradient of 'table'", "float16's 65504"):
                assert part in error, error
        world.barrier()

    for servers, nonfinite in itertools.product(server_counts(comm), ("skip", "stop")):
        with hm.World(servers, comm, nodes_of_ranks=lambda rank: rank // 2) as world:
            if not world.is_server:
                main(world, nonfinite)


class Wide(hm.nn.Module):
    """A table whose rows' gradient is what the batch says."""

    def __init__(self):
        self.table = hm.nn.Embedding(20, 2, ("constant", 0.0))

    def loss(self, batch):
        return (self.table(batch["ids"]) * batch["factor"]).sum()


def check_rows_that_float16_cannot_carry_are_named(comm):
    def main(world):
        large = spec("large", 9, 2, "cyclic", optim.SGD(0.1), initial=("constant", 1e5))
        small = spec("small", 9, 2, "cyclic", optim.SGD(0.1))
        service = Service.open(world, [large, small], wire="float16", aggregate="never")
        far = [rank for rank in world.owners if not world.same_node(rank)]
        try:
            rows = service.client.pull(0, np.arange(9))
        except NonFiniteError as error:
            assert far and "table 'large'" in str(error) and f"(rank {far[0]})" in str(error)
            assert "65504, the largest that float16 carries" in str(error)
        else:
            assert not far and (rows == 1e5).all()
        assert np.isfinite(service.client.pull(1, np.arange(9))).all()  # and the exchange is in order
        service.close()

    for servers in server_counts(comm):
        on_world(comm, servers, main, nodes_of_ranks=lambda rank: rank)


def check_rows_that_float16_cannot_carry_are_named_to_who_keeps_rows(comm):
    """Read in the step itself, and asked for ahead: then too it is the step that wants them which hears of it."""

    def main(world):
        table = replace(spec("large", 9, 8, "cyclic", optim.SGD(0.1), initial=("constant", 1e5)), clocks=True)
        service = Service.open(world, [table], path="message", wire="float16", aggregate="never")
        far = any(not world.same_node(rank) for rank in world.owners)
        for ahead in (False, True):
            reader = RowReader(service.client, [0], CacheOptions(20))
            if ahead:
                reader.begin({})
                reader.ask({0: np.arange(9)})
                reader.end()
            try:
                reader.begin({0: np.arange(9)})
                rows = reader.pull(0, np.arange(9))
            except NonFiniteError as error:
                assert far and "table 'large'" in str(error) and "65504" in str(error), (ahead, str(error))
            else:
                assert not far and (rows == 1e5).all(), ahead
            reader.end()
            reader.collect()
        service.close()

    for servers in server_counts(comm):
        on_world(comm, servers, main, nodes_of_ranks=lambda rank: rank)


def check_wrong_wires_are_refused(comm):
    def expect(text, **options):
        try:
            Service.open(world, [spec("t", 3, 3, "block", optim.SGD(0.1))], **options)
        except UsageError as error:
            assert text in str(error), str(error)
        else:
            raise AssertionError(options)

    with hm.World(0, comm, nodes_of_ranks=lambda rank: rank) as world:
        expect("'int8': expected one of float32, bfloat16, float16", wire="int8")
        if world.nodes > 1:
            expect("path = 'auto' or 'message'", wire="float16", path="get")
