"""Predicted bytes against counted ones: a step of pulls and pushes on every placement of ranks."""

import numpy as np

from hybridmpi import optim
from hybridmpi.planning.costs import Transport
from hybridmpi.planning.machine import Machine
from hybridmpi.planning.predict import predict
from hybridmpi.planning.workload import Sparse, Touched, Workload
from hybridmpi.sparse.service import Service
from hybridmpi.sparse.spec import TableSpec
from hybridmpi.world import World

SIZES = {"wide": (600, 24), "narrow": (90, 1)}


def check_counted_bytes_equal_predicted_ones(comm):
    """One node, two, and every rank on one of its own; with servers, and with rows on the compute ranks."""
    size = comm.Get_size()
    placements = [lambda rank: 0, lambda rank: rank * 2 // size, lambda rank: rank]
    for nodes_of_ranks in placements:
        for servers in {0, min(2, size - 1)}:
            with World(servers, comm, nodes_of_ranks) as world:
                if not world.is_server:
                    compare(world, size)


def compare(world, size):
    specs = [
        TableSpec(name, rows, dim, np.dtype("f4"), ("constant", 0.0), "sum", "cyclic", optim.SGD(0.1), 1)
        for name, (rows, dim) in SIZES.items()
    ]
    service = Service.open(world, specs, "message" if world.nodes > 1 else "auto")
    client = service.client
    client.paths = ["shared" if world.same_node(rank) else "message" for rank in world.owners]
    before = client.traffic.snapshot()
    random = np.random.default_rng(world.rank)
    gradients = []
    for table, spec in enumerate(specs):
        ids = np.sort(random.choice(spec.rows, spec.rows // 5, replace=False))
        client.pull(table, ids)
        gradients.append((table, ids, np.ones((len(ids), spec.dim), np.float32)))
    client.push(gradients, 1.0)
    counted = {category: client.traffic.total(category) - before[category] for category in before}
    everybody = world.gather((counted, gradients, world.node_of[world.rank]))
    service.close()
    nodes = sorted(set(world.node_of))
    compute = tuple(sum(world.node_of[rank] == node for rank in world.clients) for node in nodes)
    machine = Machine(compute, tuple(sum(world.node_of[rank] == node for rank in world.servers) for node in nodes))
    tables, touched = [], {}
    for table, spec in enumerate(specs):
        ids = [gradients[table][1] for _, gradients, _ in everybody]
        owners = len(world.owners)
        at_owner = np.bincount(np.concatenate(ids) % owners, minlength=owners)
        tables.append(Sparse(spec.name, spec.rows, spec.dim))
        touched[spec.name] = Touched(
            float(np.mean([len(i) for i in ids])),
            (0.0,) * len(nodes),
            len(np.unique(np.concatenate(ids))),
            tuple(at_owner / at_owner.sum()),
            (0.0,) * owners,
        )
    workload = Workload((), tuple(tables), touched, 0.0)
    expected = predict(workload, dict.fromkeys(SIZES, "ps"), machine, Transport()).bytes.counted
    for category in ("push_ids", "push_rows", "pull_rows", "control"):
        mean = np.mean([counts[category] for counts, _, _ in everybody])
        assert np.isclose(mean, expected[category]), (category, mean, expected)
    # Which rank's rows lie where is not in the shares of all ranks: asked for are only those on other nodes.
    mean = np.mean([counts["pull_ids"] for counts, _, _ in everybody])
    assert abs(mean - expected["pull_ids"]) <= 0.2 * max(expected["pull_ids"], 1), (mean, expected)
