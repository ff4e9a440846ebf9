"""Which rows go from where to where, from two layouts alone: carried out on arrays, every row arrives."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hybridmpi.errors import HybridMPIError
from hybridmpi.sparse.moving import Layout, transfers
from hybridmpi.sparse.partition import Partition

RANKS = 5


def dealt(partition, ranks):
    """The layout of a partition whose owner i is rank ranks[i]."""
    held = [()] * RANKS
    for rank, pieces in zip(ranks, partition.pieces, strict=True):
        held[rank] = tuple((p.first, p.stride, p.count) for p in pieces)
    return Layout(tuple(held))


def copied(rows, ranks):
    return Layout(tuple(((0, 1, rows),) if rank in ranks else () for rank in range(RANKS)))


@st.composite
def layouts(draw, rows):
    ranks = sorted(draw(st.sets(st.integers(0, RANKS - 1), min_size=1)))
    if draw(st.booleans()):
        return copied(rows, ranks)
    homes = draw(st.lists(st.integers(0, len(ranks) - 1), min_size=1, max_size=9))
    return dealt(Partition(rows, len(ranks), draw(st.sampled_from(["block", "cyclic"])), tuple(homes)), ranks)


def rows_of(layout, rank):
    held = [first + stride * np.arange(count) for first, stride, count in layout.held[rank]]
    return np.concatenate(held) if held else np.empty(0, np.int64)


@given(st.data(), st.integers(0, 40), st.lists(st.integers(0, 2), min_size=RANKS, max_size=RANKS))
@settings(deadline=None)
def test_every_row_arrives_once(data, rows, node_of):
    old, new = data.draw(layouts(rows)), data.draw(layouts(rows))
    plan = transfers(old, new, node_of)
    for receiver in range(RANKS):
        wanted = rows_of(new, receiver)
        arrived = np.full(len(wanted), -1)
        for (sender, to), stretches in plan.items():
            if to == receiver:
                for stretch in stretches:
                    assert (arrived[stretch.target] == -1).all()
                    arrived[stretch.target] = rows_of(old, sender)[stretch.source]
                    parts = [stretch.part(i, i + 1) for i in range(stretch.count)]
                    assert [p.target_start for p in parts] == list(range(RANKS * 99))[stretch.target]
        assert np.array_equal(arrived, wanted)


def test_a_copy_comes_from_oneself_then_from_the_node_then_from_all_in_turn():
    everybody = copied(10, [0, 1, 2])
    plan = transfers(everybody, dealt(Partition.even(10, 2, "cyclic"), [2, 4]), [0, 0, 1, 1, 0])
    assert set(plan) == {(2, 2), (0, 4)}
    plan = transfers(everybody, dealt(Partition.even(10, 2, "block"), [3, 4]), [0, 0, 0, 1, 1])
    assert {sender for sender, _ in plan} == {0, 1}
    plan = transfers(dealt(Partition.even(10, 1, "block"), [0]), everybody, [0] * RANKS)
    assert set(plan) == {(0, 0), (0, 1), (0, 2)}


def test_layouts_of_different_tables_are_refused():
    with pytest.raises(HybridMPIError, match="rank 1 is to hold 12 rows, of which the ranks hold 10"):
        transfers(copied(10, [0]), copied(12, [1]), [0] * RANKS)
