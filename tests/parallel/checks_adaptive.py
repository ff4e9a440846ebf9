"""Mode "hybrid" while it runs: tables leave their owners when steps touch most rows, and return; losses stay."""

import numpy as np
from checks_training import Regression

import hybridmpi as hm
from hybridmpi import optim
from hybridmpi.planning.machine import Machine
from hybridmpi.training.sparsity import Sparsity

ROWS, DIM, PHASE, LOOK = 240, 4, 12, 3
RULE = optim.Adam(0.01)


def batch_of(step, rank, ranks):
    """A share of all rows for PHASE steps, then of few, then of all again."""
    rng = np.random.default_rng([11, step])
    ids = np.arange(ROWS) if (step // PHASE) % 2 == 0 else rng.integers(0, 6, 24)
    ids = np.repeat(ids, ranks) if (step // PHASE) % 2 == 0 else ids
    targets = rng.standard_normal(len(ids))
    return ids[rank::ranks], targets[rank::ranks]


def train(comm, servers, adapt_every, measure=None, **options):
    def main(world):
        sparse = hm.SparseOptions(adapt_every=adapt_every)
        # One that need not be measured whenever a table moves.
        dense = hm.DenseOptions(algorithm="ring" if len(world.clients) > 1 else "auto")
        trainer = hm.Trainer(world, Regression(ROWS, dim=DIM), RULE, clip=0.5, dense=dense, sparse=sparse)
        assert trainer.adaptation._transport.algorithm == dense.algorithm, "it decides by another sum than it does"
        if measure is not None:
            trainer.adaptation.measure = measure
        rank, ranks = world.compute.Get_rank(), world.compute.Get_size()
        results = []
        batches = (batch_of(step, rank, ranks) for step in range(3 * PHASE))
        sent = []
        trainer.fit(batches, 3 * PHASE, lambda result: (results.append(result), sent.append(trainer.traffic())))
        # Also where a table moves, no byte that was counted is forgotten.
        assert all(b[way] >= a[way] for a, b in zip(sent, sent[1:], strict=False) for way in a)
        arrays = {name: array.copy() for name, array in trainer.dense_arrays()[0].items()}
        arrays["table"] = trainer.tables[0].pull(np.arange(ROWS))
        levels = trainer.sparsity.levels()
        everybody = world.gather((arrays["table"].tobytes(), [r.notes for r in results], levels))
        assert all(entry == everybody[0] for entry in everybody)
        return [r.loss for r in results], arrays, [note for r in results for note in r.notes]

    result = hm.run(main, servers=servers, comm=comm, **options)
    root = comm.allgather(result is not None).index(True)
    return comm.bcast(result, root)


def machine_of(world):
    """A machine whose links are all that counts: dense rows are cheaper summed, few rows cheaper at their owners."""
    nodes = range(world.nodes)
    return Machine(
        tuple(sum(world.node_of[rank] == node for rank in world.clients) for node in nodes),
        tuple(sum(world.node_of[rank] == node for rank in world.servers) for node in nodes),
        link_rate=1e6,
        latency=1e-7,
        message_seconds=1e-7,
        near_message_seconds=1e-7,
        notice_seconds=1e-7,
    )


def check_a_table_goes_and_returns(comm):
    for servers in sorted({0, comm.Get_size() // 2}):
        place = {"nodes_of_ranks": lambda rank: rank}
        losses, arrays, notes = train(comm, servers, LOOK, machine_of, **place)
        expected_losses, expected, _ = train(comm, servers, 0, **place)
        assert np.allclose(losses, expected_losses, rtol=1e-10), (servers, losses, expected_losses)
        for name, array in expected.items():
            assert np.allclose(arrays[name], array, rtol=1e-9, atol=1e-12), (servers, name)
        if comm.Get_size() - servers > 1:
            assert notes[0].startswith("table 'table' leaves ps") and "dense all-reduce" in notes[0], notes
            assert any("leaves allreduce" in note for note in notes[1:]), notes
            if servers == 0 and comm.Get_size() > 2:
                assert any("is below the crossover" in n and "rows to their owners" in n for n in notes), notes
                assert "dense all-reduce" in notes[-1], notes
        else:
            assert notes == []


def check_alpha_is_counted(comm):
    """Rows per rank and of all together, by hand."""

    def main(world, mode):
        trainer = hm.Trainer(world, Regression(20), optim.SGD(0.1), mode=mode)
        rank, ranks = world.compute.Get_rank(), world.compute.Get_size()
        for step in range(3):
            ids = np.array([0, 1, 1, 2 + (rank + step) % 5])  # two rows that all touch, one of its own
            trainer.train_step((ids, np.ones(4)))
        assert isinstance(trainer.sparsity, Sparsity)
        levels = trainer.sparsity.levels()["table"]
        assert np.isclose(levels.rank, 3 / 20) and np.isclose(levels.all, (2 + min(ranks, 5)) / 20), (mode, levels)
        assert levels.rank <= levels.node <= levels.all
        world.barrier()

    for mode in ("hybrid", "allreduce", "allgather"):
        hm.run(lambda w, m=mode: main(w, m), servers=min(1, comm.Get_size() - 1), comm=comm)


def check_alpha_of_nodes_is_counted(comm):
    """Where the ranks of a node push together; nodes of two ranks, a last one of one. By hand, and by any window."""

    def main(world):
        rank, ranks = world.compute.Get_rank(), world.compute.Get_size()
        sparse = hm.SparseOptions(aggregate="always")
        trainer = hm.Trainer(world, Regression(20), optim.SGD(0.1), mode="ps", sparse=sparse)

        def train(steps):
            for step in range(trainer.step, trainer.step + steps):
                ids = np.array([0, 1, 1, 2 + (rank + step) % 5])
                trainer.train_step((ids, np.ones(4)))

        mates = [2 if other // 2 * 2 + 1 < ranks else 1 for other in range(ranks)]
        expected = np.array([3, np.mean([2 + count for count in mates]), 2 + ranks]) / 20
        assert trainer.sparsity.so_far() == trainer.sparsity.lately() == {}
        train(3)
        assert np.allclose(trainer.sparsity.lately()["table"], expected), (trainer.sparsity.so_far(), expected)
        assert np.allclose(trainer.sparsity.levels()["table"], expected)
        trainer.repartition("table", kind="block")  # what was counted goes with the rows
        train(1)
        trainer.repartition("table", kind="cyclic")
        trainer.train_step((np.array([7]), np.ones(1)))  # every rank touches the same row
        alone = np.full(3, 1 / 20)
        assert np.allclose(trainer.sparsity.lately()["table"], (expected + alone) / 2)
        assert np.allclose(trainer.sparsity.so_far()["table"], (4 * expected + alone) / 5)
        assert trainer.sparsity.lately() == {}
        world.barrier()

    hm.run(main, servers=0, comm=comm, nodes_of_ranks=lambda rank: rank // 2)
