"""The partition map: every row has one place, wherever its part lies, and `split` finds it."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hybridmpi.errors import UsageError
from hybridmpi.sparse.partition import Partition


@st.composite
def partitions(draw):
    owners = draw(st.integers(1, 5))
    homes = draw(st.lists(st.integers(0, owners - 1), min_size=1, max_size=9))
    if draw(st.booleans()):
        homes.sort()
    return Partition(draw(st.integers(0, 40)), owners, draw(st.sampled_from(["block", "cyclic"])), tuple(homes))


@given(partitions())
@settings(deadline=None)
def test_every_row_lies_at_one_place(partition):
    rows = [partition.rows_at(owner) for owner in range(partition.owners)]
    assert sorted(np.concatenate(rows)) == list(range(partition.rows))
    assert [len(held) for held in rows] == [partition.count_of(owner) for owner in range(partition.owners)]
    for owner, pieces in enumerate(partition.pieces):
        assert all(partition.homes[piece.part] == owner for piece in pieces)
        for piece in pieces:
            expected = piece.first + piece.stride * np.arange(piece.count)
            assert np.array_equal(rows[owner][piece.rows], expected)


@given(partitions(), st.integers(0, 2**31))
@settings(deadline=None)
def test_split_says_where_ids_lie(partition, seed):
    rng = np.random.default_rng(seed)
    ids = np.flatnonzero(rng.random(partition.rows) < rng.random()).astype(np.int64)
    found = partition.split(ids)
    assert len(found) == partition.owners
    seen = np.zeros(len(ids), int)
    for owner, (where, local) in enumerate(found):
        assert np.array_equal(partition.rows_at(owner)[local], ids[where])
        seen[where] += 1
    assert np.all(seen == 1)


def test_one_part_for_each_owner_and_parts_in_turn():
    assert Partition.even(10, 3, "block").homes == (0, 1, 2)
    assert Partition.even(10, 3, "block", 1).homes == (0,)
    even = Partition.even(10, 2, "cyclic", 5)
    assert even.homes == (0, 1, 0, 1, 0) and even.rows_at(1).tolist() == [1, 6, 3, 8]


@pytest.mark.parametrize("homes", [(2,), (-1, 0)])
def test_impossible_homes(homes):
    with pytest.raises(UsageError, match="each at an owner from 0 to 1"):
        Partition(5, 2, "block", homes)
