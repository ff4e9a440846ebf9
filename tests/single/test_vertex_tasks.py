"""What jobs of trees and graphs have of their own: scores, sequences of leaves, data and models of every cell."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_graphs import as_lists, graphs

from hybridmpi import data
from hybridmpi.graphs import Graphs, from_nested
from hybridmpi.models.score import Score, score
from hybridmpi.models.sequence_lstm import SequenceLSTM
from hybridmpi.models.tree_lstm import SumInner, TreeLSTM
from hybridmpi.training.growing import bracketed
from hybridmpi.training.job import default_job, read_job
from hybridmpi.training.kinds import task_of


@settings(max_examples=60)
@given(graphs(), st.integers(0, 2**16), st.sampled_from([None, 1, 2]))
def test_scores_count_vertices_one_by_one(some, seed, neutral):
    logits = np.random.default_rng(seed).normal(size=(some.vertices, 5)).astype(np.float32)
    expected, roots = Score(), set(some.roots().tolist())
    for v, label in enumerate(some.data["label"].tolist()):
        if label < 0:
            continue
        p = np.exp(logits[v].astype(float))
        root, right = v in roots, int(logits[v].argmax()) == label
        polar = root and neutral is not None and label != neutral
        side = polar and (p[neutral + 1 :].sum() > p[:neutral].sum()) == (label > neutral)
        expected += Score(-np.log(p[label] / p.sum()), 1, right, root, root and right, polar, side)
    found = score(some, logits, neutral)
    np.testing.assert_allclose(found.loss, expected.loss, rtol=1e-5)
    assert replace(found, loss=0) == replace(expected, loss=0)


def test_leaves_of_trees_as_chains():
    trees = from_nested([((4, 2), (7, (8, 1))), 5, (3,)])
    trees = trees.with_data(label=np.arange(trees.vertices))
    found = data.leaf_chains(trees)
    words = [[vertex[2]["word"] for vertex in chain] for chain in as_lists(found)]
    assert words == [[4, 2, 7, 8, 1], [5], [3]] and found.type_names == ("step",)
    roots = trees.starts[1:] - 1  # in post-order
    labels = [[vertex[2]["label"] for vertex in chain] for chain in as_lists(found)]
    assert labels == [[-1, -1, -1, -1, roots[0]], [roots[1]], [roots[2]]]
    nothing = data.leaf_chains(trees.select([]))
    assert len(nothing) == 0 and nothing.data["label"].dtype == found.data["label"].dtype
    empty = Graphs([0, 0], [], [0], [], [], trees.type_names, {name: [] for name in trees.data})
    assert len(data.leaf_chains(empty)) == 1


TREES = "(3 (2 good) (3 (2 and) (4 warm)))\n(1 (0 bad) (2 day))\n(2 (2 a) (2 a) (2 a))\n" * 4


@pytest.fixture
def bank(tmp_path):
    for name in ("train.txt", "dev.txt"):
        (tmp_path / name).write_text(TREES)
    return tmp_path


@pytest.mark.parametrize("cell", ["nary", "sum", "rnn", "rntn", "sequence"])
def test_every_cell_has_its_data_and_model(bank, cell):
    job = default_job("trees")
    job = replace(
        job,
        model=replace(job.model, cell=cell, width=4, hidden=3),
        data=replace(job.data, source=str(bank), graphs=5, cache=str(bank)),
    )
    task = task_of("trees")(job)
    assert task.data.labels == list("01234")
    arity = int(np.diff(task.data.train.child_starts).max())
    assert arity == {"sum": 3, "sequence": 1}.get(cell, 2)
    model = task.model
    assert isinstance(model, SequenceLSTM if cell == "sequence" else TreeLSTM) or cell in ("rnn", "rntn")
    assert isinstance(getattr(model, "inner", None), SumInner) == (cell == "sum")
    batch = next(task.batches(0, 0, 1))
    graph_of = np.searchsorted(batch.graphs.starts, np.arange(batch.graphs.vertices), side="right")
    assert batch.weight == (5 if cell == "sequence" else np.count_nonzero(batch.graphs.data["label"] >= 0))
    assert set(graph_of) == {1, 2, 3, 4, 5}
    assert {"<unk>", "good"} < set(task.words()[:-5]) and task.words()[-5:] == list("01234")
    # The same batches from a later step on, and nothing where a rank has none.
    _, second = itertools.islice(task.batches(0, 0, 1), 2)
    assert np.array_equal(next(task.batches(1, 0, 1)).numbers, second.numbers)
    shares = [next(task.batches(0, rank, 7)) for rank in range(7)]
    assert sum(share is None for share in shares) == 2


def test_trees_from_the_top_down(bank):
    def task(**settings):
        job = default_job("top-down")
        section = replace(job.data, source=str(bank), graphs=5, cache=str(bank), **settings)
        return task_of("top-down")(replace(job, model=replace(job.model, width=4, hidden=3), data=section))

    found = task()
    assert found.words() == [*"01234", "_"] and found.model.kinds.rows == 6
    # The third tree of the bank has three children, of which two go to a vertex that was put in.
    sizes = {5: 0, 3: 0}
    batch = next(found.batches(0, 0, 1))
    for number, graph in zip(batch.numbers, range(5), strict=True):
        mine = batch.graphs.select([graph])
        label, count = (mine.data[name][mine.data["label"] >= 0].tolist() for name in ("label", "count"))
        shape = sorted(zip(label, count, strict=True))
        assert (
            shape
            == [
                [(2, 0), (2, 0), (3, 2), (3, 2), (4, 0)],
                [(0, 0), (1, 2), (2, 0)],
                [(2, 0), (2, 0), (2, 0), (2, 2), (5, 2)],
            ][number % 3]
        )
        sizes[len(shape)] += 1
    assert batch.weight == 5 * sizes[5] + 3 * sizes[3]
    _, second = itertools.islice(found.batches(0, 0, 1), 2)
    assert np.array_equal(next(found.batches(1, 0, 1)).numbers, second.numbers)
    shares = [next(found.batches(0, rank, 7)) for rank in range(7)]
    assert sum(share is None for share in shares) == 2
    assert sum(share.weight for share in shares if share is not None) == batch.weight
    # Of 52 vertices 12 are (2, 0) among the first trees' two kinds alone: all pairs, counted once more.
    pairs = {(2, 0): 24, (3, 2): 8, (4, 0): 4, (0, 0): 4, (1, 2): 4, (2, 2): 4, (5, 2): 4}
    nats = sum(-n * np.log((n + 1) / (52 + 6 * 3)) for n in pairs.values()) / 52
    assert found.data.frequencies == pytest.approx(nats) and f"{nats:.4f} nats" in str(found.data)


def test_without_held_out_trees_nothing_is_evaluated(tmp_path):
    job = default_job("top-down")
    section = replace(job.data, most=40, held_out=0.0, graphs=5, cache=str(tmp_path))
    task = task_of("top-down")(replace(job, data=section))
    assert len(task.train) == 40 and task.evaluate(None) is None and "nats" not in str(task.data)


def test_drawn_trees_as_text():
    kinds = ["Call", "Return", "_"]
    assert bracketed([2], kinds) == "_" and bracketed([1, [0]], kinds) == "(Return Call)"
    # A vertex put in to make the tree binary, whose children are its parent's.
    assert bracketed([0, [2], [2, [1], [2, [2], [0, [2], [2]]]]], kinds) == "(Call _ Return _ (Call _ _))"
    assert bracketed([2, [0], [2]], kinds) == "Call _"


def test_the_example_for_sentiment_is_a_job():
    from test_job import JOBS

    job = read_job(JOBS / "sentiment.toml")
    assert job.model.kind == "trees" and job.training.steps == 15 * job.training.evaluate
    assert job.checkpoint.directory != default_job("trees").checkpoint.directory
