"""Models over graphs on many ranks against one: same losses, parameters and scores, however the graphs are dealt."""

import itertools

import numpy as np

import hybridmpi as hm
from hybridmpi import data
from hybridmpi.graphs import Graphs, from_parents
from hybridmpi.models.score import Score, score
from hybridmpi.models.sequence_lstm import SequenceLSTM
from hybridmpi.models.tree_lstm import TreeLSTM
from hybridmpi.models.two_way_graph import TwoWayGraphModel

WORDS, LABELS, KINDS, STEPS = 31, 4, 5, 4


def trees(count=40, seed=4):
    """Trees of 1 to 19 vertices with two children or none, some without any label; the last one far larger."""
    random = np.random.default_rng(seed)
    leaves = [*random.integers(1, 11, count - 1), 60]
    parents = []
    for number in leaves:
        parent = np.full(2 * number - 1, -1)
        roots = list(range(number))
        for vertex in range(number, len(parent)):
            for _ in range(2):
                parent[roots.pop(random.integers(len(roots)))] = vertex
            roots.append(vertex)
        parents.append(parent)
    return with_data(from_parents(parents), random)


def functions(count=24):
    """Graphs of types "node" and "variable" whose vertices share children."""
    random = np.random.default_rng(7)
    sizes = random.integers(2, 14, count)
    counts = np.concatenate([np.minimum(np.arange(size), random.integers(0, 4, size)) for size in sizes])
    starts = np.concatenate([[0], np.cumsum(sizes)])
    places = np.concatenate([np.arange(size) for size in sizes])
    children = [random.choice(place, n, replace=False) for place, n in zip(places, counts, strict=True) if n]
    first = np.repeat(np.repeat(starts[:-1], sizes), counts)
    slots = np.concatenate([np.arange(n) for n in counts])
    child_starts = np.concatenate([[0], np.cumsum(counts)])
    types = (counts == 0).astype(np.int32)
    graphs = Graphs(starts, types, child_starts, np.concatenate(children) + first, slots, ("node", "variable"))
    return with_data(graphs, random).with_data(kind=random.integers(0, KINDS, graphs.vertices))


def with_data(graphs, random):
    """Words at vertices without children, labels at two thirds of all vertices, none in the first two graphs."""
    label = random.integers(-2, LABELS, graphs.vertices).clip(-1)
    label[: graphs.starts[2]] = -1
    word = random.integers(0, WORDS, graphs.vertices)
    return graphs.with_data(label=label, word=np.where(np.diff(graphs.child_starts) == 0, word, -1))


def nary():
    return TreeLSTM(WORDS, LABELS, 5, 4, "nary", dtype=np.float64), trees()


def child_sum():
    return TreeLSTM(WORDS, LABELS, 5, 4, "sum", dtype=np.float64), trees()


def sequence():
    return SequenceLSTM(WORDS, LABELS, 5, 4, dtype=np.float64), data.leaf_chains(trees())


def two_way():
    return TwoWayGraphModel(WORDS, KINDS, LABELS, 5, 4, dtype=np.float64), functions()


def train(comm, servers, make, size, **options):
    """Return (losses and labels of the steps, parameters and tables by name, score) of a run on `comm`, the same on
    every rank; and how many steps some rank had no labels in."""

    def main(world):
        place = world.compute.Get_rank(), world.compute.Get_size()
        model, graphs = make()
        trainer = hm.Trainer(world, model, hm.optim.Adagrad(0.1, initial=1e-3), clip=0.5, **options)
        batches = data.GraphBatches(graphs, size, 2, *place)
        losses, empty = [], []

        def mine():
            for batch in batches:
                empty.append(not batch.weight)
                yield batch if batch.weight else None

        trainer.fit(mine(), STEPS, lambda result: losses.append((result.loss, result.examples)))
        arrays = {name: array.copy() for name, array in trainer.dense_arrays()[0].items()}
        arrays |= {table.name: table.pull(np.arange(table.rows)) for table in trainer.tables}
        model.eval()
        found = Score()
        for batch in data.held_out_graph_batches(graphs, 7, *place).one_pass():
            if batch.weight:
                found += score(batch.graphs, model.evaluate(batch), 1)
        total = sum(world.gather(found), start=Score())
        without = int(np.any(world.gather(empty[:STEPS]), axis=0).sum())
        world.barrier()
        return losses, arrays, total, without

    result = hm.run(main, servers=servers, comm=comm)
    root = comm.allgather(result is not None).index(True)
    return comm.bcast(result, root)


def assert_same(found, expected, where):
    """Fail unless two runs are the same to rounding."""
    assert np.allclose(found[0], expected[0], rtol=1e-10), (where, found[0], expected[0])
    for name, array in expected[1].items():
        assert np.allclose(found[1][name], array, rtol=1e-8, atol=1e-11), (where, name)
    counts = [(s.vertices, s.right, s.roots, s.roots_right, s.polar, s.polar_right) for s in (found[2], expected[2])]
    assert counts[0] == counts[1] and counts[0][0] > 0, (where, counts)
    assert np.isclose(found[2].loss, expected[2].loss, rtol=1e-9), where


def check_equals_one_process(comm):
    """Graphs dealt by their vertices, weighted by their labels, of a table at servers or on all ranks."""
    ways = itertools.cycle(("ps", "allreduce", "hybrid", "allgather"))
    for make in (nary, child_sum, sequence, two_way):
        expected = train(comm.Split(comm.Get_rank()), 0, make, 8)
        assert expected[0][0][0] != expected[0][1][0]
        for servers in sorted({0, min(1, comm.Get_size() - 1)}):
            mode = "ps" if servers else next(ways)
            assert_same(train(comm, servers, make, 8, mode=mode), expected, (make.__name__, servers, mode))


def check_fewer_graphs_than_ranks(comm):
    """Batches of two graphs, of which some have no labels: ranks without any take part in the step, with nothing."""
    for make, mode in ((nary, "hybrid"), (nary, "allreduce"), (two_way, "hybrid")):
        expected = train(comm.Split(comm.Get_rank()), 0, make, 2)
        found = train(comm, 0, make, 2, mode=mode)
        assert_same(found, expected, (make.__name__, mode))
        assert comm.Get_size() < 3 or found[3] == STEPS
