"""Rows that a node pulls once for its ranks, against each rank's own pulls: the same bits; bytes as the formulas."""

import itertools
import time
from dataclasses import replace
from unittest import mock

import numpy as np
from checks_aggregation import NODES, contributions_of
from checks_sparse import homes_of, on_world, server_counts, spec
from checks_training import RULES, model_of, streams_for

import hybridmpi as hm
from hybridmpi import optim
from hybridmpi.errors import HybridMPIError, NonFiniteError, RemoteError
from hybridmpi.models.lm import LanguageModel
from hybridmpi.planning.traffic import pull_rows, pulled_together, row_ids
from hybridmpi.sparse import node_pull
from hybridmpi.sparse.node_memory import sharers_of
from hybridmpi.sparse.requests import PIECE_HEAD, REPLY_HEAD, REQUEST_HEAD
from hybridmpi.sparse.service import Service


def apart(world):
    """Return (this node's compute ranks; the owners on other nodes)."""
    mates = [rank for rank in world.clients if world.same_node(rank)]
    return mates, [owner for owner, rank in enumerate(world.owners) if not world.same_node(rank)]


def train(world, specs, steps, path="auto", wire="float32", slots=None):
    """Pull rows together and once more alone, for some steps; return how often something did not fit, None
    where each rank pulls for itself. Some ranks announce nothing, or other rows than they pull."""
    service = Service.open(world, specs, path, slots, wire=wire, aggregate="always")
    service.open_node_pull()
    client, clients = service.client, len(world.clients)
    mates, far = apart(world)
    assert (client.node_pull is None) == (len(mates) == 1 or not far)
    for step in range(steps):
        weight, mine = contributions_of(specs, clients, step)[world.compute.Get_rank()]
        ids = {table: found for table, found, _ in mine}
        wanted = {table: found for table, found in ids.items() if (step + table) % 4}
        if step == 2:
            wanted = {table: np.unique(np.append(found[::2], found[:1] // 2)) for table, found in wanted.items()}
        together = client.node_pull
        if together is not None:
            together.pull(wanted)
        found = {table: client.pull(table, ids[table]) for table in ids}
        if together is not None:
            assert together.active
            together.end()
        before = client.traffic.snapshot()
        for table, rows in found.items():
            assert np.array_equal(rows, client.pull(table, ids[table])), (step, specs[table].name)
        assert client.traffic.snapshot()["aggregate"] == before["aggregate"]
        client.push(mine, weight)
    crowded = together.crowded if together is not None else None
    service.close()
    return crowded


def tables(partition, owners, rows=301):
    return [
        spec("wide", rows, 33, partition, optim.Adagrad(0.1)),
        spec("thin", 97, 1, partition, optim.Adagrad(0.1), reduction="sum"),
        spec("double", 40, 5, partition, optim.SGD(0.1), dtype="f8"),
        spec("one", 1, 2, partition, optim.SGD(0.1)),
        spec("none", 0, 2, partition, optim.SGD(0.1)),
        replace(spec("parts", 53, 3, partition, optim.Adagrad(0.1)), homes=homes_of(owners)),
    ]


def check_nodes_owners_paths_and_wires(comm):
    ways = itertools.cycle([
        ("block", "auto", "float32"), ("cyclic", "message", "bfloat16"), ("cyclic", "get", "float32"),
        ("block", "message", "float32"), ("cyclic", "auto", "float16"),
    ])  # fmt: skip
    for nodes, servers in itertools.product(NODES, server_counts(comm)):
        partition, path, wire = next(ways)
        specs = tables(partition, servers or comm.Get_size())
        on_world(comm, servers, lambda w, s=specs, p=path, f=wire: train(w, s, 5, p, f), nodes_of_ranks=NODES[nodes])


def check_small_slots_go_in_rounds(comm):
    specs = tables("cyclic", comm.Get_size())
    with (
        mock.patch("hybridmpi.sparse.exchange.SMALLEST_SLOT", 64),
        mock.patch("hybridmpi.sparse.exchange.LARGEST_SLOT", 300),
    ):
        on_world(comm, 0, lambda world: train(world, specs, 5, "message"), nodes_of_ranks=NODES["uneven"])


def check_what_does_not_fit_is_pulled_rank_by_rank(comm):
    """Regions with room for some of the numbers, for these and some of the rows, and for nearly all."""
    for room, servers in itertools.product((100, 5000, 40000), server_counts(comm)):
        crowded = []
        specs = tables("cyclic", servers or comm.Get_size(), rows=3000)
        with mock.patch.object(node_pull, "LARGEST_REGION", room):
            on_world(
                comm, servers, lambda w, s=specs, c=crowded: c.append(train(w, s, 5)), nodes_of_ranks=NODES["uneven"]
            )
        counts = [count for count in comm.allgather(crowded[0] if crowded else None) if count is not None]
        assert room > 100 or not counts or sum(counts), (servers, counts)


class Shy(LanguageModel):
    """Announces half of the rows that it wants of one table, and rows that it does not want."""

    def rows_wanted(self, batch):
        return {"output": batch.inputs[:, ::2]}


def losses_and_tables(comm, servers, nodes, together, model=LanguageModel, wire="float32", mode="hybrid"):
    """Train on streams of which some ranks may have none, and no batch in some steps."""
    found = []

    def main(world):
        network = model(61, width=8, hidden=12, samples=16, dtype=np.float32 if wire != "float32" else np.float64)
        sparse = hm.SparseOptions(aggregate="always", wire=wire, adapt_every=0)
        with mock.patch.object(Service, "open_node_pull", Service.open_node_pull if together else lambda self: False):
            trainer = hm.Trainer(world, network, RULES[2], sparse=sparse, mode=mode)
        mates, far = apart(world)
        assert (trainer.service.client.node_pull is not None) == (together and len(mates) > 1 and bool(far))
        batches, losses = streams_for(world), []
        for step, batch in zip(range(5), batches, strict=False):
            idle = not batch.inputs.size or (step + world.rank) % 4 == 3
            result = trainer.train_step(None if idle else batch)
            losses.append(result.loss if result is not None else None)
        arrays = [array.copy() for array in trainer.dense_arrays()[0].values()]
        arrays += [table.pull(np.arange(table.rows)) for table in trainer.tables]
        found.extend([losses, arrays, trainer.service.client.traffic.network["pull_rows"]])
        world.barrier()

    hm.run(main, servers=servers, comm=comm, nodes_of_ranks=NODES[nodes])
    return found


def check_training_is_the_same_bits(comm):
    cases = itertools.cycle([
        (LanguageModel, "float32", "hybrid"), (Shy, "float32", "hybrid"), (LanguageModel, "bfloat16", "ps"),
        (LanguageModel, "float32", "allreduce"),
    ])  # fmt: skip
    for nodes, servers in itertools.product(("pairs", "uneven"), server_counts(comm)):
        case = next(cases)
        alone, together = (losses_and_tables(comm, servers, nodes, way, *case) for way in (False, True))
        if not alone:
            continue  # a server
        assert alone[0] == together[0], (nodes, servers, case)
        assert all(np.array_equal(a, b) for a, b in zip(alone[1], together[1], strict=True)), (nodes, servers, case)


def check_failures_reach_all_ranks(comm):
    """A word outside the vocabulary, then a rank that closes its trainer while others train: nobody waits for ever."""

    def main(world):
        # Without sums of dense gradients: those that a rank has left would never end.
        sparse = hm.SparseOptions(aggregate="always")
        trainer = hm.Trainer(world, model_of("sampled"), RULES[0], mode="ps", sparse=sparse)
        last = world.rank == world.clients[-1]
        batch = next(iter(streams_for(world)))
        trainer.train_step(batch)
        if last:
            batch.inputs[0, 0] = 61
        try:
            trainer.train_step(batch)
        except (IndexError, RemoteError) as error:
            assert f"rank {world.clients[-1]}, step 2" in str(error) and "id 61" in str(error), error
        else:
            raise AssertionError("a word outside the vocabulary, and nobody noticed")
        batch.inputs[0, 0] = 0
        trainer.train_step(batch)
        if len(world.clients) > 1:
            try:
                trainer.close() if last else trainer.train_step(batch)
            except HybridMPIError as error:
                assert f"rank {world.clients[-1]} in Trainer.close" in str(error)
            else:
                raise AssertionError("a rank left and nobody noticed")
        world.barrier()

    for nodes, servers in itertools.product(("pairs", "uneven"), server_counts(comm)[:2]):
        hm.run(main, servers=servers, comm=comm, nodes_of_ranks=NODES[nodes])


def check_rows_that_16_bits_do_not_carry(comm):
    """The rank that pulls them, or each that wants them, raises; nobody waits for ever."""

    def main(world):
        specs = [spec("large", 40, 3, "cyclic", optim.SGD(1.0), initial=("constant", 70000.0))]
        service = Service.open(world, specs, "auto", wire="float16", aggregate="always")
        service.open_node_pull()
        client, ids, failed = service.client, np.arange(40), False
        _, far = apart(world)
        try:
            if client.node_pull is not None:
                client.node_pull.pull({0: ids})
            client.pull(0, ids)
        except NonFiniteError as error:
            failed = True
            assert "table 'large'" in str(error)
        assert failed == bool(far)
        world.barrier()
        service.close()

    for nodes, servers in itertools.product(("pairs", "uneven"), server_counts(comm)[:2]):
        on_world(comm, servers, main, nodes_of_ranks=NODES[nodes])


def check_bytes_equal_the_formulas(comm):
    """Of other nodes' rows each comes once; the ranks that divide an owner's rows ask for a part each."""
    dims = itertools.cycle([1, 32, 5])
    for nodes, servers in itertools.product(NODES, server_counts(comm)):
        dim = next(dims)

        def main(world, dim=dim):
            rows, owners = 1200, len(world.owners)
            service = Service.open(world, [spec("t", rows, dim, "cyclic", optim.SGD(0.1))], aggregate="always")
            service.open_node_pull()
            client = service.client
            client.paths = ["shared" if path == "shared" else "message" for path in client.paths]
            client.wait_for_version()
            ids = np.arange(0, 600 + 120 * world.compute.Get_rank())
            mates, far = apart(world)
            start = client.traffic.snapshot()
            if client.node_pull is not None:
                client.node_pull.pull({0: ids})
            client.pull(0, ids)
            counted = {key: count - start[key] for key, count in client.traffic.snapshot().items()}
            lists = world.gather((counted, ids))
            here = [lists[world.clients.index(rank)] for rank in mates]
            wanted = [sum(int((ids % owners == owner).sum()) for owner in far) for _, ids in here]
            near = [len(ids) - count for (_, ids), count in zip(here, wanted, strict=True)]
            w, pulled, together = rows * dim * 4, max(wanted), len(mates) > 1 and far
            found = {key: sum(counts[key] for counts, _ in here) for key in counted}
            assert found["pull_rows"] == sum(pull_rows(n / rows, w) for n in [*near, pulled])
            assert found["pull_ids"] == row_ids(pulled / rows, rows)
            asked = [sharers_of(place, len(far), len(mates)) for place in range(len(far))]
            assert found["control"] == (REQUEST_HEAD + PIECE_HEAD + REPLY_HEAD) * sum(asked)
            assert found["aggregate"] == (pulled_together(sum(wanted), pulled, dim * 4) if together else 0)
            assert client.traffic.network["aggregate"] == 0
            service.close()

        on_world(comm, servers, main, nodes_of_ranks=NODES[nodes])


def check_when_it_is_used(comm):
    class Silent(LanguageModel):
        rows_wanted = property()  # hasattr: no

    def main(world):
        mates, far = apart(world)
        for model, options, on in (
            (LanguageModel, {}, True),
            (LanguageModel, {"aggregate": "never"}, False),
            (LanguageModel, {"prefetch": True}, False),
            (Silent, {}, False),
        ):
            trainer = hm.Trainer(world, model(61, 8, 12, 16), RULES[0], sparse=hm.SparseOptions(**options))
            expected = on and len(mates) > 1 and bool(far)
            assert (trainer.service.client.node_pull is not None) == expected, (model, options)
            trainer.close()

    hm.run(main, servers=0, comm=comm, nodes_of_ranks=NODES["uneven"])


def check_a_rank_that_still_reads_is_waited_for(comm):
    """Two ranks of a node pull from a third: what one of them has yet to take is not written over by the next pull."""
    if comm.Get_size() != 3:
        return

    def main(world):
        service = Service.open(world, [spec("t", 300, 4, "block", optim.SGD(0.1))], path="message", aggregate="always")
        service.open_node_pull()
        pulls, rank, ids = service.client.node_pull, world.compute.Get_rank(), np.arange(210, 220)
        right = service.client.pull(0, ids)
        take = node_pull.take
        if rank == 2:
            world.barrier()
            service.close()
            return

        def late(*arguments):
            time.sleep(0.3)
            take(*arguments)

        pulls.pull({0: ids})
        if rank == 1:
            with mock.patch.object(node_pull, "take", late):
                found = service.client.pull(0, ids)
            pulls.end()
            assert np.array_equal(found, right), found
        else:
            time.sleep(0.1)  # the other one knows by then where rows lie, and has yet to take them
        pulls.pull({0: np.arange(200, 250)})
        pulls.end()
        world.barrier()
        service.close()

    on_world(comm, 0, main, nodes_of_ranks=lambda rank: 0 if rank < 2 else 1)
