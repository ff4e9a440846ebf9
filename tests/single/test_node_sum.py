"""The sum over a node: how ranks divide the owners, and the compiled merge and sum against numpy."""

import math

import numpy as np
import pytest

from hybridmpi.planning.traffic import node_messages
from hybridmpi.sparse.node_kernels import merge, sum_rows
from hybridmpi.sparse.node_sum import sharers_of, shares_of


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
def test_merge_and_sum_equal_numpy(ranks, dtype):
    """Rows in any order beside their numbers; some ranks have none; sums begin anywhere."""
    rng = np.random.default_rng(ranks)
    width, rows = 3, 40
    counts = np.array([0 if rank == 1 else rng.integers(1, 25) for rank in range(ranks)])
    memory = np.zeros(8192, np.uint8)
    words, flat = memory.view(np.int64), memory.view(dtype)
    keys, places, firsts = np.zeros((3, ranks), np.int64)
    expected, touched = np.zeros((rows, width), dtype), set()
    scale = rng.random(ranks).astype(dtype)
    at = 0
    for rank, count in enumerate(counts):
        numbers = np.sort(rng.choice(rows, count, replace=False))
        place = rng.permutation(count)
        values = rng.standard_normal((count, width)).astype(dtype)
        keys[rank], places[rank] = at, at + count
        words[at : at + count], words[at + count : at + 2 * count] = numbers, place
        at += 2 * count
        firsts[rank] = at * 8 // flat.itemsize
        flat[firsts[rank] : firsts[rank] + values.size] = values.ravel()
        at += -(-values.nbytes // 8)
        expected[numbers] += scale[rank] * values[place]
        touched |= set(numbers.tolist())
    most = counts.sum()
    merged, sources, owners = np.empty((3, most), np.int64)
    starts = np.empty(most + 1, np.int64)
    unique = merge(words, keys, counts, places, firsts, width, merged, sources, owners, starts)
    assert merged[:unique].tolist() == sorted(touched) and starts[unique] == most
    for first in (0, unique // 2):
        out = np.full((unique - first, width), np.nan, dtype)
        sum_rows(flat, sources, owners, starts, scale, first, out)
        assert np.array_equal(out, expected[merged[first:unique]])
