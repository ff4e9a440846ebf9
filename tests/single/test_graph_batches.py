"""Graphs dealt to ranks by their vertices; batches of graphs in epochs."""

from itertools import islice, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_graphs import as_lists, graphs

from hybridmpi.data import GraphBatches, deal, held_out_graph_batches
from hybridmpi.errors import DataError, UsageError
from hybridmpi.graphs import Graphs, from_brackets

FEW = settings(max_examples=60, deadline=None)


@FEW
@given(st.lists(st.integers(0, 60), max_size=40), st.integers(1, 9))
def test_every_graph_is_dealt_and_ranks_differ_by_one_graph_at_most(sizes, ranks):
    owners = deal(np.array(sizes, np.int64), ranks)
    assert owners.dtype == np.int64 and owners.shape == (len(sizes),)
    assert set(owners.tolist()) <= set(range(ranks))
    loads = np.bincount(owners, np.array(sizes, float), minlength=ranks)
    assert loads.max() - loads.min() <= max(sizes, default=0)
    assert np.array_equal(owners, deal(sizes, ranks))


@FEW
@given(st.lists(st.integers(1, 20), min_size=1, max_size=6), st.integers(1, 3))
def test_the_fullest_rank_is_near_the_best_that_is_possible(sizes, ranks):
    def fullest(owners):
        return np.bincount(owners, sizes, minlength=ranks).max()

    best = min(fullest(np.array(owners)) for owners in product(range(ranks), repeat=len(sizes)))
    assert fullest(deal(sizes, ranks)) <= (4 / 3 - 1 / (3 * ranks)) * best + 1e-9


def test_ties_go_to_the_lower_graph_and_rank():
    assert deal([5, 9, 5, 5], 2).tolist() == [1, 0, 1, 0]
    assert deal([3], 4).tolist() == [0]
    with pytest.raises(UsageError, match="for 0 ranks"):
        deal([1], 0)


@FEW
@given(graphs(max_graphs=12), st.integers(1, 5), st.integers(1, 4))
def test_batches_on_any_number_of_ranks_hold_the_same_graphs(whole, size, ranks):
    if len(whole) < size:
        with pytest.raises(DataError, match="too few for a batch"):
            GraphBatches(whole, size, 1)
        return
    alone = GraphBatches(whole, size, 1)
    readers = [GraphBatches(whole, size, 1, rank, ranks) for rank in range(ranks)]
    lists, epoch, seen = as_lists(whole), alone.batches_per_epoch, []
    for position, (batch, *parts) in enumerate(islice(zip(alone, *readers, strict=True), 2 * epoch)):
        assert batch.position == position and len(batch.graphs) == size
        assert sorted(np.concatenate([part.numbers for part in parts])) == sorted(batch.numbers)
        assert sum(part.weight for part in parts) == batch.weight
        for part in parts:
            assert as_lists(part.graphs) == [lists[number] for number in part.numbers]
            assert part.weight == sum(v[2]["label"] >= 0 for number in part.numbers for v in lists[number])
        seen += batch.numbers.tolist()
    first = seen[: epoch * size]
    assert len(set(first)) == len(first) == len(whole) // size * size  # each once
    passed = [number for batch in alone.one_pass() for number in batch.numbers]
    assert passed == list(range(len(whole)))


def trees(count):
    return from_brackets([f"(1 (0 w{number}) (1 x))" for number in range(count)], {})


def test_epochs_are_shuffled_anew_and_resumed_anywhere():
    batches = GraphBatches(trees(20), 4, seed=3)
    taken = [batch.numbers.tolist() for batch in islice(batches, 10)]
    assert sorted(sum(taken[:5], [])) == sorted(sum(taken[5:], [])) == list(range(20)) and taken[:5] != taken[5:]
    batches.position = 7
    assert [batch.numbers.tolist() for batch in islice(batches, 3)] == taken[7:] and batches.position == 7
    assert [batch.numbers.tolist() for batch in islice(GraphBatches(trees(20), 4, seed=4), 10)] != taken


def test_more_ranks_than_graphs_and_graphs_without_labels_in_sight():
    shares = [GraphBatches(trees(3), 2, 0, rank, 5).batch(0) for rank in range(5)]
    assert [len(share.graphs) for share in shares] == [1, 1, 0, 0, 0]
    assert [share.weight for share in shares] == [3, 3, 0, 0, 0] and shares[4].graphs.vertices == 0
    unlabelled = trees(2).with_data(label=np.full(6, -1))
    assert GraphBatches(unlabelled, 2, 0).batch(0).weight == 0


def test_what_batches_refuse():
    with pytest.raises(UsageError, match=r"GraphBatches\.size = 0 "):
        GraphBatches(trees(2), 0, 0)
    with pytest.raises(UsageError, match="shard 2 of 2"):
        GraphBatches(trees(2), 1, 0, 2, 2)
    with pytest.raises(DataError, match="without labels, with data"):
        GraphBatches(Graphs([0, 1], [0], [0, 0], [], [], ["leaf"], {"word": [1]}), 1, 0)
    with pytest.raises(DataError, match="no held-out graphs"):
        held_out_graph_batches(trees(0), 4)
    assert [len(batch.graphs) for batch in held_out_graph_batches(trees(3), 8).one_pass()] == [3]
