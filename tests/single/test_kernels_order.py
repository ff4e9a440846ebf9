"""Argsort and unique ids against numpy, on both sides of every switch of algorithm."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hybridmpi import kernels
from hybridmpi.kernels import order

SIZES_AND_ROWS = [
    (0, 1),
    (0, 5),
    (1, 1),
    (7, 1),
    (50, 3),
    (1000, 2**20),
    (3000, 2**20),
    (1023, 255),
    (1024, 256),
    (1025, 257),
    (64, 2**45),
    (65536, 1_000_000),
]


def random_ids(n, rows, seed=0):
    return np.random.default_rng(seed).integers(0, rows, n)


@pytest.mark.parametrize(("n", "rows"), SIZES_AND_ROWS)
def test_argsort_is_numpys_stable_sort(n, rows):
    ids = random_ids(n, rows)
    found = kernels.argsort_ids(ids, rows)
    assert found.dtype == np.int64
    np.testing.assert_array_equal(found, np.argsort(ids, kind="stable"))


@pytest.mark.parametrize(("n", "rows"), SIZES_AND_ROWS)
def test_unique_inverse_is_numpys(n, rows):
    check_unique(random_ids(n, rows), rows)


def test_both_ways_to_unique_agree():
    ids = random_ids(500, 10_000)
    key_bits, index_bits = order.bits_for(10_000), order.bits_for(500)
    by_sort = order._unique_by_sort(order._radix_sort(ids, key_bits, index_bits), index_bits)
    by_bitmap = order._unique_by_bitmap(ids, 10_000)
    for sort_part, bitmap_part in zip(by_sort, by_bitmap, strict=True):
        np.testing.assert_array_equal(sort_part, bitmap_part)


@pytest.mark.parametrize("rows", [2**62, 2**63 - 1])
def test_pairs_too_wide_to_pack(rows):
    ids = np.array([rows - 1, 0, rows - 1, 5, 0])
    np.testing.assert_array_equal(kernels.argsort_ids(ids, rows), np.argsort(ids, kind="stable"))
    check_unique(ids, rows)


@given(st.lists(st.integers(0, 200), max_size=100), st.sampled_from([201, 2**13, 2**40]))
def test_any_ids(ids, rows):
    ids = np.array(ids, np.int64)
    np.testing.assert_array_equal(kernels.argsort_ids(ids, rows), np.argsort(ids, kind="stable"))
    check_unique(ids, rows)


def test_input_stays_as_it_was():
    ids = random_ids(100, 50)
    before = ids.copy()
    kernels.argsort_ids(ids, 50)
    kernels.unique_inverse(ids, 50)
    np.testing.assert_array_equal(ids, before)


def check_unique(ids, rows):
    unique, inverse = kernels.unique_inverse(ids, rows)
    expected, expected_inverse = np.unique(ids, return_inverse=True)
    assert unique.dtype == inverse.dtype == np.int64
    np.testing.assert_array_equal(unique, expected)
    np.testing.assert_array_equal(inverse, expected_inverse)
