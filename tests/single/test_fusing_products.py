"""Products of a few rows by generated kernels, against numpy; and sequences of kernels."""

import numpy as np
import pytest

from hybridmpi.dynamic.fusing import (
    Gradient,
    Matrix,
    Number,
    Operand,
    Product,
    Store,
    address_of_kernel,
    compile_kernel,
    compile_product,
    rounds,
    sequence,
    table_address,
)

ROWS = [0, 1, 2, 3, 4, 5, 7, 8, 9, 13, 16, 29]
# Columns: fewer than a vector has lanes, whole vectors, several blocks of vectors and a rest.
SHAPES = [(1, 1), (3, 5), (16, 32), (37, 48), (50, 131), (20, 410)]


def table_of(*arrays):
    return np.array([array.ctypes.data for array in arrays], np.int64)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(("inputs", "outputs"), SHAPES)
@pytest.mark.parametrize("turned", [False, True])
def test_rows_times_a_matrix(dtype, inputs, outputs, turned):
    random = np.random.default_rng(inputs)
    matrix = random.standard_normal((outputs, inputs) if turned else (inputs, outputs)).astype(dtype)
    a, b, out = Matrix(1, inputs + 2, 2), Matrix(0, matrix.shape[1]), Matrix(2, outputs + 3, 1)
    kernel = compile_product(dtype, Product(a, b, out, inputs, outputs, turned))
    for rows in ROWS:
        x = random.standard_normal((rows + 4, inputs + 2)).astype(dtype)
        found = np.full((rows + 4, outputs + 3), 7, dtype)
        expected = found.copy()
        expected[3 : 3 + rows, 1:-2] = x[3 : 3 + rows, 2:] @ (matrix.T if turned else matrix)
        table = table_of(matrix, x, found)
        kernel(3, 3 + rows, table_address(table))
        np.testing.assert_allclose(found, expected, rtol=0, atol=40 * np.finfo(dtype).eps * inputs)


@pytest.mark.parametrize("turned", [False, True])
def test_rows_of_one_element_that_lie_one_after_the_other(turned):
    matrix = np.array([[2.0], [3.0], [5.0]]) if turned else np.array([[2.0, 3.0, 5.0]])
    kernel = compile_product(np.float64, Product(Matrix(1, 1), Matrix(0, matrix.shape[1]), Matrix(2, 3), 1, 3, turned))
    x, found = np.arange(1.0, 13.0).reshape(12, 1), np.full((12, 3), 7.0)
    table = table_of(matrix, x, found)
    kernel(4, 9, table_address(table))
    expected = np.full((12, 3), 7.0)
    expected[4:9] = x[4:9] * [2.0, 3.0, 5.0]
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(("height", "width"), SHAPES)
@pytest.mark.parametrize("add", [False, True])
def test_gradient_of_a_matrix(dtype, height, width, add):
    random = np.random.default_rng(height)
    kernel = compile_product(
        dtype, Gradient(Matrix(0, height + 1, 1), Matrix(1, width + 2), Matrix(2, width), height, width, add)
    )
    for rows in ROWS[1:]:
        a = random.standard_normal((rows + 4, height + 1)).astype(dtype)
        b = random.standard_normal((rows + 4, width + 2)).astype(dtype)
        found = np.full((height, width), 7, dtype)
        expected = a[3 : 3 + rows, 1:].T @ b[3 : 3 + rows, :width] + 7 * add
        table = table_of(a, b, found)
        kernel(3, 3 + rows, table_address(table))
        np.testing.assert_allclose(found, expected, rtol=0, atol=40 * np.finfo(dtype).eps * (rows + 7))


def adding(number, array):
    """A kernel that adds a number to rows of the array of that number in the table."""
    place = Operand(array, 2, 0)
    return compile_kernel(2, np.float64, (Number(number),), (Store(0, place, True),))


def test_rounds_stop_before_a_batch_of_too_many_rows():
    kernels = [adding(1.0, 0), adding(10.0, 1)]
    calls = np.array([[address_of_kernel(kernel), space] for space, kernel in enumerate(kernels)])
    vertices, edges = np.zeros((9, 2)), np.zeros((9, 2))
    table = table_of(vertices, edges)
    sequence()(calls.ctypes.data, 2, 1, 3, 4, 5, table_address(table))
    assert vertices[:, 0].tolist() == [0, 1, 1, 0, 0, 0, 0, 0, 0]
    assert edges[:, 1].tolist() == [0, 0, 0, 0, 10, 0, 0, 0, 0]
    # Type 1 has nothing to do; the last batch has more than two rows, the one before more than three children.
    plans = np.array([[calls.ctypes.data, 2, 2, 3, table_address(table)], [0, 0, 99, 99, 0]])
    batches = np.array([[0, 3, 5, 0, 3], [1, 0, 7, 0, 7], [0, 5, 6, 3, 3], [0, 6, 7, 3, 7], [0, 6, 9, 3, 4]])
    go = rounds()
    assert go(batches.ctypes.data, 0, 5, 1, plans.ctypes.data) == 3
    assert vertices[:, 0].tolist() == [0, 1, 1, 1, 1, 1, 0, 0, 0]
    assert edges[:, 0].tolist() == [10, 10, 10, 0, 10, 0, 0, 0, 0]
    assert go(batches.ctypes.data, 4, -1, -1, plans.ctypes.data) == 4
    assert go(batches.ctypes.data, 2, -1, -1, plans.ctypes.data) == -1
    assert vertices[:, 0].tolist() == [0, 1, 1, 2, 2, 2, 0, 0, 0]


def test_a_kernel_of_numbers_alone_writes_them():
    rows = np.ones((3, 4), np.float32)
    kernel = compile_kernel(4, np.float32, (Number(0.0),), (Store(0, Operand(0, 4, 0)),))
    table = table_of(rows)
    kernel(1, 2, table_address(table))
    assert rows.sum(axis=1).tolist() == [4, 0, 4]
