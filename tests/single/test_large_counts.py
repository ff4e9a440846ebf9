"""What goes in one call of MPI, and a row that none can take."""

from unittest import mock

import numpy as np
import pytest

from hybridmpi import large_counts, optim
from hybridmpi.errors import UsageError
from hybridmpi.large_counts import LARGEST, most_items, pieces, stretches
from hybridmpi.sparse.spec import TableSpec

INT_MAX = 2**31 - 1


@pytest.mark.parametrize("item", [1, 4, 8, 12, 3 << 30])
@pytest.mark.parametrize("bound", [0, 1, LARGEST - 1, LARGEST, LARGEST + 1, 2**31, 3 * 10**9, 12 * 10**9])
def test_stretches_cover_all_and_stay_below_a_c_int(bound, item):
    count = -(-bound // item)
    parts = list(stretches(count, item))
    assert [part.start for part in parts] == [0, *(part.stop for part in parts[:-1])][: len(parts)]
    assert (parts[-1].stop if parts else 0) == count
    for part in parts:
        size = part.stop - part.start
        assert 0 < size <= INT_MAX and (size * item <= INT_MAX or size == 1)


def test_most_items_is_one_at_least():
    assert (most_items(4), most_items(LARGEST), most_items(LARGEST + 1)) == (LARGEST // 4, 1, 1)


def test_pieces_are_views_of_all_elements_in_order():
    array = np.arange(21, dtype=np.float32).reshape(3, 7)
    assert [piece.size for piece in pieces(array)] == [21]
    with mock.patch.object(large_counts, "LARGEST", 8 * 4 + 3):
        found = pieces(array)
        assert [piece.size for piece in found] == [8, 8, 5] and pieces(array[:0]) == []
    assert np.array_equal(np.concatenate(found), array.reshape(-1))
    assert all(np.shares_memory(piece, array) for piece in found)


def test_a_row_that_no_message_holds_is_refused():
    def table(dim):
        return TableSpec("bias", 1, dim, np.float32, ("constant", 0.0), "mean", "block", optim.SGD(0.1), 1)

    table(LARGEST // 4)
    with pytest.raises(
        UsageError, match=r"table 'bias': a row of 268,435,457 x float32 .* modes = \{name: 'allreduce'\}"
    ):
        table(LARGEST // 4 + 1)
