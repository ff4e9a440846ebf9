"""Optimiser updates on the device, in place: the CPU form's element rules, a thread for each element.

A row outside the table is dropped. Products are `mul_rn`, division and square root are rounded as IEEE 754 says: the
same bits as on the CPU.
"""

from __future__ import annotations

from typing import Any

from numba import cuda

from hybridmpi.kernels import optimisers
from hybridmpi.kernels.device import cuda_kernel, launch

sgd_element = cuda.jit(device=True)(optimisers.sgd_element.py_func)
momentum_element = cuda.jit(device=True)(optimisers.momentum_element.py_func)
adagrad_element = cuda.jit(device=True)(optimisers.adagrad_element.py_func)
adam_element = cuda.jit(device=True)(optimisers.adam_element.py_func)


def sgd_rows(table: Any, positions: Any, gradients: Any, rate: float) -> None:
    """CUDA form of `optimisers.sgd_rows`."""
    optimisers.check_row_update(table, positions, gradients)
    launch(_sgd_rows, gradients.size, table, positions, gradients, table.dtype.type(rate))


def sgd_dense(values: Any, gradients: Any, rate: float) -> None:
    """CUDA form of `optimisers.sgd_dense`."""
    optimisers.check_dense_update(values, gradients)
    launch(_sgd_dense, values.size, values, gradients, values.dtype.type(rate))


def momentum_rows(table: Any, velocity: Any, positions: Any, gradients: Any, rate: float, momentum: float) -> None:
    """CUDA form of `optimisers.momentum_rows`."""
    optimisers.check_row_update(table, positions, gradients, velocity)
    to = table.dtype.type
    launch(_momentum_rows, gradients.size, table, velocity, positions, gradients, to(rate), to(momentum))


def momentum_dense(values: Any, velocity: Any, gradients: Any, rate: float, momentum: float) -> None:
    """CUDA form of `optimisers.momentum_dense`."""
    optimisers.check_dense_update(values, gradients, velocity)
    to = values.dtype.type
    launch(_momentum_dense, values.size, values, velocity, gradients, to(rate), to(momentum))


def adagrad_rows(table: Any, accumulator: Any, positions: Any, gradients: Any, rate: float, epsilon: float) -> None:
    """CUDA form of `optimisers.adagrad_rows`."""
    optimisers.check_row_update(table, positions, gradients, accumulator)
    to = table.dtype.type
    launch(_adagrad_rows, gradients.size, table, accumulator, positions, gradients, to(rate), to(epsilon))


def adagrad_dense(values: Any, accumulator: Any, gradients: Any, rate: float, epsilon: float) -> None:
    """CUDA form of `optimisers.adagrad_dense`."""
    optimisers.check_dense_update(values, gradients, accumulator)
    to = values.dtype.type
    launch(_adagrad_dense, values.size, values, accumulator, gradients, to(rate), to(epsilon))


def adam_rows(
    table: Any,
    first_moment: Any,
    second_moment: Any,
    positions: Any,
    gradients: Any,
    rate: float,
    beta1: float,
    beta2: float,
    epsilon: float,
    step: int,
) -> None:
    """CUDA form of `optimisers.adam_rows`."""
    optimisers.check_row_update(table, positions, gradients, first_moment, second_moment)
    launch(
        _adam_rows,
        gradients.size,
        table,
        first_moment,
        second_moment,
        positions,
        gradients,
        *_adam_settings(table, rate, beta1, beta2, epsilon, step),
    )


def adam_dense(
    values: Any,
    first_moment: Any,
    second_moment: Any,
    gradients: Any,
    rate: float,
    beta1: float,
    beta2: float,
    epsilon: float,
    step: int,
) -> None:
    """CUDA form of `optimisers.adam_dense`."""
    optimisers.check_dense_update(values, gradients, first_moment, second_moment)
    launch(
        _adam_dense,
        values.size,
        values,
        first_moment,
        second_moment,
        gradients,
        *_adam_settings(values, rate, beta1, beta2, epsilon, step),
    )


def _adam_settings(values: Any, rate: float, beta1: float, beta2: float, epsilon: float, step: int) -> list:
    settings = (*optimisers.adam_coefficients(rate, beta1, beta2, step), epsilon)
    return [values.dtype.type(setting) for setting in settings]


@cuda_kernel("void(V[::1], V[::1], V)")
def _sgd_dense(values, gradients, rate):
    for i in range(cuda.grid(1), len(values), cuda.gridsize(1)):
        values[i] = sgd_element(values[i], gradients[i], rate)


@cuda_kernel("void(V[:, ::1], int64[::1], V[:, ::1], V)")
def _sgd_rows(table, positions, gradients, rate):
    rows, width = table.shape
    for e in range(cuda.grid(1), len(positions) * width, cuda.gridsize(1)):
        j, c = e // width, e % width
        row = positions[j]
        if 0 <= row < rows:
            table[row, c] = sgd_element(table[row, c], gradients[j, c], rate)


@cuda_kernel("void(V[::1], V[::1], V[::1], V, V)")
def _momentum_dense(values, velocity, gradients, rate, momentum):
    for i in range(cuda.grid(1), len(values), cuda.gridsize(1)):
        values[i], velocity[i] = momentum_element(values[i], velocity[i], gradients[i], rate, momentum)


@cuda_kernel("void(V[:, ::1], V[:, ::1], int64[::1], V[:, ::1], V, V)")
def _momentum_rows(table, velocity, positions, gradients, rate, momentum):
    rows, width = table.shape
    for e in range(cuda.grid(1), len(positions) * width, cuda.gridsize(1)):
        j, c = e // width, e % width
        row = positions[j]
        if 0 <= row < rows:
            table[row, c], velocity[row, c] = momentum_element(
                table[row, c], velocity[row, c], gradients[j, c], rate, momentum
            )


@cuda_kernel("void(V[::1], V[::1], V[::1], V, V)")
def _adagrad_dense(values, accumulator, gradients, rate, epsilon):
    for i in range(cuda.grid(1), len(values), cuda.gridsize(1)):
        values[i], accumulator[i] = adagrad_element(values[i], accumulator[i], gradients[i], rate, epsilon)


@cuda_kernel("void(V[:, ::1], V[:, ::1], int64[::1], V[:, ::1], V, V)")
def _adagrad_rows(table, accumulator, positions, gradients, rate, epsilon):
    rows, width = table.shape
    for e in range(cuda.grid(1), len(positions) * width, cuda.gridsize(1)):
        j, c = e // width, e % width
        row = positions[j]
        if 0 <= row < rows:
            table[row, c], accumulator[row, c] = adagrad_element(
                table[row, c], accumulator[row, c], gradients[j, c], rate, epsilon
            )


@cuda_kernel("void(V[::1], V[::1], V[::1], V[::1], V, V, V, V, V, V, V)")
def _adam_dense(values, first, second, gradients, rate, beta1, rest1, beta2, rest2, correction, epsilon):
    for i in range(cuda.grid(1), len(values), cuda.gridsize(1)):
        values[i], first[i], second[i] = adam_element(
            values[i], first[i], second[i], gradients[i], rate, beta1, rest1, beta2, rest2, correction, epsilon
        )


@cuda_kernel("void(V[:, ::1], V[:, ::1], V[:, ::1], int64[::1], V[:, ::1], V, V, V, V, V, V, V)")
def _adam_rows(table, first, second, positions, gradients, rate, beta1, rest1, beta2, rest2, correction, epsilon):
    rows, width = table.shape
    for e in range(cuda.grid(1), len(positions) * width, cuda.gridsize(1)):
        j, c = e // width, e % width
        row = positions[j]
        if 0 <= row < rows:
            table[row, c], first[row, c], second[row, c] = adam_element(
                table[row, c],
                first[row, c],
                second[row, c],
                gradients[j, c],
                rate,
                beta1,
                rest1,
                beta2,
                rest2,
                correction,
                epsilon,
            )
