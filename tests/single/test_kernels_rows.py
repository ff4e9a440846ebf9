"""Gather, scatter, scatter-add, segmented sums and aggregation against plain numpy: exact, since the order is fixed."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hybridmpi import kernels

DTYPES = [np.float32, np.float64]
SHAPES = [(0, 4), (1, 1), (5, 1), (40, 7), (200, 64), (33, 130)]  # (n, d)


def case(n, d, dtype, rows=30, seed=0):
    random = np.random.default_rng(seed)
    return random.integers(0, rows, n), random.standard_normal((n, d)).astype(dtype)


def sum_of(ids, values, scale=None):
    """Aggregate one row after the other."""
    unique, inverse = np.unique(ids, return_inverse=True)
    sums = np.zeros((len(unique), values.shape[1]), values.dtype)
    for i, j in enumerate(inverse):
        sums[j] += values[i] if scale is None else scale[i] * values[i]
    return unique, sums


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("n", "d"), SHAPES)
def test_gather_and_scatter(n, d, dtype):
    ids, _ = case(n, d, dtype)
    table = np.random.default_rng(1).standard_normal((30, d)).astype(dtype)
    rows = kernels.gather(table, ids)
    assert rows.dtype == dtype
    np.testing.assert_array_equal(rows, table[ids])
    out = np.full((n, d), np.nan, dtype)
    assert kernels.gather(table, ids, out) is out
    np.testing.assert_array_equal(out, table[ids])
    back = np.zeros_like(table)
    kernels.scatter(back, ids, rows)
    np.testing.assert_array_equal(back[ids], table[ids])
    assert not back[np.setdiff1d(np.arange(30), ids)].any()


def test_gather_from_an_empty_table_and_without_columns():
    none = np.empty(0, np.int64)
    assert kernels.gather(np.empty((0, 3), np.float32), none).shape == (0, 3)
    assert kernels.gather(np.empty((4, 0), np.float32), np.arange(2)).shape == (2, 0)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("n", "d"), SHAPES)
def test_scatter_add_is_in_order(n, d, dtype):
    positions, values = case(n, d, dtype, rows=5)
    start = np.random.default_rng(2).standard_normal((5, d)).astype(dtype)
    out, expected = start.copy(), start.copy()
    kernels.scatter_add(out, positions, values)
    for i, j in enumerate(positions):
        expected[j] += values[i]
    np.testing.assert_array_equal(out, expected)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("n", "d"), SHAPES)
def test_scatter_add_of_bags_is_that_of_the_repeated_rows(n, d, dtype):
    positions, _ = case(n, d, dtype, rows=5)
    random = np.random.default_rng(2)
    starts = np.array([0, *np.sort(random.integers(0, n + 1, 6)), n])  # some bags are empty
    values, out = random.standard_normal((7, d)).astype(dtype), random.standard_normal((5, d)).astype(dtype)
    expected = out.copy()
    kernels.scatter_add(expected, positions, np.repeat(values, np.diff(starts), axis=0))
    kernels.scatter_add_bags(out, positions, starts, values)
    np.testing.assert_array_equal(out, expected)


@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("n", "d"), SHAPES)
def test_aggregate_has_the_bits_of_the_loop(n, d, dtype, scaled):
    ids, values = case(n, d, dtype)
    scale = np.random.default_rng(3).random(n).astype(dtype) if scaled else None
    unique, sums = kernels.aggregate(ids, values, 30, scale)
    expected_ids, expected = sum_of(ids, values, scale)
    assert sums.dtype == dtype
    np.testing.assert_array_equal(unique, expected_ids)
    np.testing.assert_array_equal(sums, expected)


@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("n", "d"), [*SHAPES, (40, 1100)])
def test_sums_by_position_have_the_bits_of_the_loop(n, d, dtype, scaled):
    positions, values = case(n, d, dtype)
    scale = np.random.default_rng(3).random(n).astype(dtype) if scaled else None
    expected = np.zeros((31, d), dtype)  # nothing belongs to the last one
    for i, position in enumerate(positions):
        expected[position] += values[i] if scale is None else scale[i] * values[i]
    sums = kernels.position_sums(values, positions, 31, scale)
    assert sums.dtype == dtype
    np.testing.assert_array_equal(sums, expected)


@given(st.lists(st.integers(0, 60), max_size=80), st.integers(0, 5), st.sampled_from([61, 100_000]))
def test_aggregate_of_any_ids(ids, width, rows):
    ids = np.array(ids, np.int64)
    values = np.random.default_rng(len(ids)).standard_normal((len(ids), width)).astype(np.float32)
    unique, sums = kernels.aggregate(ids, values, rows)
    expected_ids, expected = sum_of(ids, values)
    np.testing.assert_array_equal(unique, expected_ids)
    np.testing.assert_array_equal(sums, expected)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", [1, 16, 65])
def test_segment_sum_points_anywhere_into_a_staging_array(dtype, width):
    random = np.random.default_rng(4)
    staging = np.full((50, width), np.nan, dtype)  # rows that no segment names must not be read into a sum
    used = random.permutation(50)[:20]
    staging[used] = random.standard_normal((20, width)).astype(dtype)
    scale = random.random(50).astype(dtype)
    starts = np.array([0, 3, 3, 12, 20, 20])  # two empty segments
    for factors in (None, scale):
        out = np.full((5, width), np.nan, dtype)
        kernels.segment_sum(staging, used, starts, out, factors)
        expected = np.zeros((5, width), dtype)
        for j in range(5):
            for i in range(starts[j], starts[j + 1]):
                expected[j] += staging[used[i]] if factors is None else factors[used[i]] * staging[used[i]]
        np.testing.assert_array_equal(out, expected)


def test_a_sum_starts_from_zero():
    values, scale = np.full((3, 5), -0.0, np.float32), np.ones(3, np.float32)
    for factors in (None, scale):
        out = np.full((3, 5), np.nan, np.float32)
        kernels.segment_sum(values, np.arange(3), np.array([0, 1, 1, 3]), out, factors)
        assert not out.any()
        assert not np.signbit(out).any()  # 0.0 + -0.0 is 0.0


def test_no_segments():
    kernels.segment_sum(
        np.empty((0, 3), np.float32), np.empty(0, np.int64), np.zeros(1, np.int64), np.empty((0, 3), np.float32)
    )


def test_shapes_that_do_not_fit_are_refused():
    ids, values = case(4, 3, np.float32)
    narrow = np.zeros((30, 2), np.float32)
    with pytest.raises(ValueError, match="gather: the rows have shape"):
        kernels.gather(narrow, ids, np.empty((4, 3), np.float32))
    with pytest.raises(ValueError, match="scatter: the rows have shape"):
        kernels.scatter(narrow, ids, values)
    with pytest.raises(ValueError, match="scatter_add: the rows have shape"):
        kernels.scatter_add(narrow, ids, values)
    with pytest.raises(ValueError, match="scatter_add_bags: the values have shape"):
        kernels.scatter_add_bags(narrow, ids, np.array([0, 2, 4]), values)
    with pytest.raises(ValueError, match="aggregate: 3 ids"):
        kernels.aggregate(ids[:3], values, 30)
    with pytest.raises(ValueError, match="segment_sum: out has shape"):
        kernels.segment_sum(values, ids, np.zeros(3, np.int64), narrow)
    with pytest.raises(ValueError, match="segment_sum: scale has shape"):
        kernels.segment_sum(values, ids, np.zeros(3, np.int64), np.empty((2, 3), np.float32), np.ones(1, np.float32))
