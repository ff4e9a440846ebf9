"""Which rows go from where to where, from two layouts alone: carried out on arrays, every row arrives."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hybridmpi.checkpoint.layout import Progression, overlap
from hybridmpi.errors import HybridMPIError
from hybridmpi.sparse.partition import Partition
from hybridmpi.sparse.transfers import Layout, Stretch, transfers

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


def of_all_pairs(held, wanted):
    """The oracle: every progression that a sender holds against every one that a receiver wants."""
    result, target_start = [], 0
    for rows in wanted:
        source_start = 0
        for others in held:
            if shared := overlap(Progression(*others), Progression(*rows)):
                at = source_start + shared.start, shared.step, target_start + shared.other_start, shared.other_step
                result.append(Stretch(*at, shared.count))
            source_start += others[2]
        target_start += rows[2]
    return result


@given(st.data(), st.integers(0, 300))
@settings(deadline=None)
def test_what_overlaps_is_what_all_pairs_say(data, rows):
    old, new = data.draw(layouts(rows)), data.draw(layouts(rows))
    plan = transfers(old, new, [0] * RANKS)
    for (sender, receiver), stretches in plan.items():
        assert stretches == of_all_pairs(old.held[sender], new.held[receiver]) != []
    holders = {held: [rank for rank in range(RANKS) if old.held[rank] == held] for held in old.held}
    for receiver, wanted in enumerate(new.held):
        for held, ranks in holders.items():
            assert any((rank, receiver) in plan for rank in ranks) == bool(of_all_pairs(held, wanted))


@pytest.mark.parametrize("kind", ["cyclic", "block"])
def test_only_progressions_that_share_rows_are_looked_at(monkeypatch, kind):
    """512 parts to 1024: each new one has rows of one or two old ones, and all pairs are half a million."""
    looked = []
    monkeypatch.setattr("hybridmpi.checkpoint.layout.overlap", lambda a, b: looked.append(a) or overlap(a, b))
    old, new = (dealt(Partition.even(10**6, RANKS, kind, parts), range(RANKS)) for parts in (512, 1024))
    found = sum(map(len, transfers(old, new, [0] * RANKS).values()))
    assert 1024 <= found <= len(looked) <= 1.5 * found + 1024


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
