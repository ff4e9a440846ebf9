"""The sum over a node, and its pulls: how ranks divide the owners, and the compiled loops against numpy."""

import math

import numpy as np
import pytest

from hybridmpi.kernels import argsort_ids
from hybridmpi.planning.traffic import node_messages
from hybridmpi.sparse.node_kernels import collect, group, sum_rows, take
from hybridmpi.sparse.node_memory import sharers_of, shares_of


@pytest.mark.parametrize("owners", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("ranks", [2, 3, 4, 7, 48])
def test_ranks_divide_the_owners_evenly(owners, ranks):
    """Every part of every owner is one rank's, and all ranks have equally many parts."""
    taken = np.zeros((owners, ranks), int)
    shares = [shares_of(owners, ranks, rank) for rank in range(ranks)]
    for mine in shares:
        assert sum(share.last - share.first for share in mine) == owners
        for share in mine:
            assert share.first < share.last
            taken[share.owner, share.first : share.last] += 1
    assert (taken == 1).all()
    assert sum(map(len, shares)) == node_messages(owners, ranks) == owners + ranks - math.gcd(owners, ranks)
    for owner in range(owners):
        assert sharers_of(owner, owners, ranks) == sum(share.owner == owner for mine in shares for share in mine)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("ranks", [1, 2, 5])
def test_sums_equal_numpy(ranks, dtype):
    """Rows in any order beside their numbers; some ranks have none; sums begin anywhere."""
    rng = np.random.default_rng(ranks)
    width, rows = 3, 40
    words, values = np.zeros(1024, np.int64), rng.standard_normal((200, width)).astype(dtype)
    counts = np.array([0 if rank == 1 else rng.integers(1, 25) for rank in range(ranks)])
    keys, places, firsts = np.zeros((3, ranks), np.int64)
    expected, touched = np.zeros((rows, width), dtype), set()
    scale = rng.random(ranks).astype(dtype)
    at, row = 5, 7
    for rank, count in enumerate(counts):
        numbers, place = np.sort(rng.choice(rows, count, replace=False)), rng.permutation(count)
        keys[rank], places[rank], firsts[rank] = at, at + count, row
        words[at : at + count], words[at + count : at + 2 * count] = numbers, place
        expected[numbers] += scale[rank] * values[row + place]
        touched |= set(numbers.tolist())
        at, row = at + 2 * count + 1, row + count + 2
    numbers, *where = collect(words, keys, counts, places, firsts)
    different, starts, *sources = group(numbers, *where, argsort_ids(numbers, rows))
    assert different.tolist() == sorted(touched) and starts[-1] == counts.sum()
    for first in (0, len(different) // 2):
        out = np.full((len(different) - first, width), np.nan, dtype)
        sum_rows(values, starts, *sources, scale, first, out)
        assert np.array_equal(out, expected[different[first:]])


@pytest.mark.parametrize("ascending", [True, False])
@pytest.mark.parametrize("count", [0, 1, 17, 40])
def test_rows_that_were_pulled_are_found(count, ascending):
    """Of the rows wanted some are there, in any order; what is not found, and other rows of `out`, stay as they are."""
    rng = np.random.default_rng(count)
    there, local = (np.sort(rng.choice(60, n, replace=False)) for n in (count, 25))
    if not ascending:
        rng.shuffle(local)
    words, values = np.zeros(64, np.int64), rng.standard_normal((60, 3)).astype(np.float32)
    words[5 : 5 + count] = there
    places, found, out = rng.permutation(30)[:25], np.zeros(25, bool), np.zeros((30, 3), np.float32)
    take(words, 5, count, values, 7, local, places, found, out)
    expected = np.zeros_like(out)
    for number, place in zip(local, places, strict=True):
        if number in there:
            expected[place] = values[7 + np.searchsorted(there, number)]
    assert np.array_equal(out, expected) and np.array_equal(found, np.isin(local, there))
