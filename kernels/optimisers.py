"""Optimiser updates on the CPU, in place: rows of a table, and whole flat arrays.

Each rule is one function of single elements, used by the row form, the dense form and the CUDA forms: on a table
whose rows are all touched, row and dense forms give the same bits, on the CPU and on the device. Definitions are
PyTorch's (torch.optim, default options). Coefficients are Python floats, rounded to the dtype of the values before use.

Row forms: `table` and its state arrays are [rows, d], `positions` int64[u] are unique and in [0, rows), `gradients` are
[u, d] in the dtype of the table. Dense forms: all arrays are flat, [n]. Shapes that do not fit raise ValueError.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from hybridmpi.kernels.cpu import cpu_kernel
from hybridmpi.kernels.prefetch import ask_to_write, rows_ahead
from hybridmpi.kernels.rounding import mul_rn


def sgd_rows(table: np.ndarray, positions: np.ndarray, gradients: np.ndarray, rate: float) -> None:
    """Update rows by stochastic gradient descent: w -= rate g. Local."""
    check_row_update(table, positions, gradients)
    _sgd_rows(table, positions, gradients, rate)


def sgd_dense(values: np.ndarray, gradients: np.ndarray, rate: float) -> None:
    """Update a flat array by stochastic gradient descent: w -= rate g. Local."""
    check_dense_update(values, gradients)
    _sgd_dense(values, gradients, rate)


def momentum_rows(
    table: np.ndarray, velocity: np.ndarray, positions: np.ndarray, gradients: np.ndarray, rate: float, momentum: float
) -> None:
    """Update rows by heavy-ball momentum: v = momentum v + g; w -= rate v. Local."""
    check_row_update(table, positions, gradients, velocity)
    _momentum_rows(table, velocity, positions, gradients, rate, momentum)


def momentum_dense(
    values: np.ndarray, velocity: np.ndarray, gradients: np.ndarray, rate: float, momentum: float
) -> None:
    """Update a flat array by heavy-ball momentum: v = momentum v + g; w -= rate v. Local."""
    check_dense_update(values, gradients, velocity)
    _momentum_dense(values, velocity, gradients, rate, momentum)


def adagrad_rows(
    table: np.ndarray,
    accumulator: np.ndarray,
    positions: np.ndarray,
    gradients: np.ndarray,
    rate: float,
    epsilon: float,
) -> None:
    """Update rows by Adagrad (Duchi et al. 2011): a += g^2; w -= rate g / (sqrt(a) + epsilon). Local."""
    check_row_update(table, positions, gradients, accumulator)
    _adagrad_rows(table, accumulator, positions, gradients, rate, epsilon)


def adagrad_dense(
    values: np.ndarray, accumulator: np.ndarray, gradients: np.ndarray, rate: float, epsilon: float
) -> None:
    """Update a flat array by Adagrad (Duchi et al. 2011): a += g^2; w -= rate g / (sqrt(a) + epsilon). Local."""
    check_dense_update(values, gradients, accumulator)
    _adagrad_dense(values, accumulator, gradients, rate, epsilon)


def adam_rows(
    table: np.ndarray,
    first_moment: np.ndarray,
    second_moment: np.ndarray,
    positions: np.ndarray,
    gradients: np.ndarray,
    rate: float,
    beta1: float,
    beta2: float,
    epsilon: float,
    step: int,
) -> None:
    """Update rows by Adam (Kingma and Ba 2015, algorithm 1), bias-corrected for `step` >= 1. Local.

    The moments of a row decay only on steps that touch it, while `step` counts all of them: "lazy" Adam.
    """
    check_row_update(table, positions, gradients, first_moment, second_moment)
    _adam_rows(
        table, first_moment, second_moment, positions, gradients, *adam_coefficients(rate, beta1, beta2, step), epsilon
    )


def adam_dense(
    values: np.ndarray,
    first_moment: np.ndarray,
    second_moment: np.ndarray,
    gradients: np.ndarray,
    rate: float,
    beta1: float,
    beta2: float,
    epsilon: float,
    step: int,
) -> None:
    """Update a flat array by Adam (Kingma and Ba 2015, algorithm 1), bias-corrected for `step` >= 1. Local."""
    check_dense_update(values, gradients, first_moment, second_moment)
    _adam_dense(values, first_moment, second_moment, gradients, *adam_coefficients(rate, beta1, beta2, step), epsilon)


def adam_coefficients(rate: float, beta1: float, beta2: float, step: int) -> tuple[float, ...]:
    """Return what Adam's element rule needs at `step` >= 1, worked out once in double precision. Local.

    (rate / (1 - beta1^step), beta1, 1 - beta1, beta2, 1 - beta2, sqrt(1 - beta2^step)). Raises ValueError for step < 1.
    """
    if step < 1:
        raise ValueError(f"Adam's bias correction counts steps from 1, got step {step}")
    first, second = 1 - _power(beta1, step), 1 - _power(beta2, step)
    return rate / first, beta1, 1 - beta1, beta2, 1 - beta2, math.sqrt(second)


def _power(base: float, exponent: int) -> float:
    """Return base ** exponent by products, which all processors round alike: what several ranks hold stays equal."""
    result = 1.0
    while exponent:
        if exponent & 1:
            result *= base
        base *= base
        exponent >>= 1
    return result


def check_row_update(table: Any, positions: Any, gradients: Any, *states: Any) -> None:
    """Raise ValueError unless there is a gradient row for each position and state of the table's shape. Local."""
    if gradients.shape != (len(positions), table.shape[1]) or any(state.shape != table.shape for state in states):
        raise ValueError(
            f"row update: table {table.shape}, {len(positions)} positions, gradients {gradients.shape}, "
            f"state {[state.shape for state in states]}: expected one gradient row for each position and "
            "state of the table's shape"
        )


def check_dense_update(values: Any, gradients: Any, *states: Any) -> None:
    """Raise ValueError unless all arrays are flat and of one length. Local."""
    if any(array.shape != values.shape or array.ndim != 1 for array in (gradients, *states)):
        raise ValueError(
            f"dense update: values {values.shape}, gradients {gradients.shape}, "
            f"state {[state.shape for state in states]}: expected flat arrays of one length"
        )


# The element rules.


@cpu_kernel
def sgd_element(value, gradient, rate):
    return value - mul_rn(rate, gradient)


@cpu_kernel
def momentum_element(value, velocity, gradient, rate, momentum):
    velocity = mul_rn(momentum, velocity) + gradient
    return value - mul_rn(rate, velocity), velocity


@cpu_kernel
def adagrad_element(value, accumulator, gradient, rate, epsilon):
    accumulator = accumulator + mul_rn(gradient, gradient)
    return value - mul_rn(rate, gradient) / (math.sqrt(accumulator) + epsilon), accumulator


@cpu_kernel
def adam_element(value, first, second, gradient, rate, beta1, rest1, beta2, rest2, correction, epsilon):
    first = mul_rn(beta1, first) + mul_rn(rest1, gradient)
    second = mul_rn(beta2, second) + mul_rn(mul_rn(rest2, gradient), gradient)
    return value - mul_rn(rate, first) / (math.sqrt(second) / correction + epsilon), first, second


# The loops. `dtype.type` keeps float32 arithmetic in float32: a float64 coefficient would widen all of it.


@cpu_kernel
def _sgd_dense(values, gradients, rate):
    rate = values.dtype.type(rate)
    for i in range(len(values)):
        values[i] = sgd_element(values[i], gradients[i], rate)


@cpu_kernel
def _sgd_rows(table, positions, gradients, rate):
    rate = table.dtype.type(rate)
    ahead = rows_ahead(table)
    for j in range(len(positions)):
        row = positions[j]
        if j + ahead < len(positions):
            ask_to_write(table, positions[j + ahead])
        for c in range(table.shape[1]):
            table[row, c] = sgd_element(table[row, c], gradients[j, c], rate)


@cpu_kernel
def _momentum_dense(values, velocity, gradients, rate, momentum):
    rate, momentum = values.dtype.type(rate), values.dtype.type(momentum)
    for i in range(len(values)):
        values[i], velocity[i] = momentum_element(values[i], velocity[i], gradients[i], rate, momentum)


@cpu_kernel
def _momentum_rows(table, velocity, positions, gradients, rate, momentum):
    rate, momentum = table.dtype.type(rate), table.dtype.type(momentum)
    ahead = rows_ahead(table)
    for j in range(len(positions)):
        row = positions[j]
        if j + ahead < len(positions):
            ask_to_write(table, positions[j + ahead])
            ask_to_write(velocity, positions[j + ahead])
        for c in range(table.shape[1]):
            table[row, c], velocity[row, c] = momentum_element(
                table[row, c], velocity[row, c], gradients[j, c], rate, momentum
            )


@cpu_kernel
def _adagrad_dense(values, accumulator, gradients, rate, epsilon):
    rate, epsilon = values.dtype.type(rate), values.dtype.type(epsilon)
    for i in range(len(values)):
        values[i], accumulator[i] = adagrad_element(values[i], accumulator[i], gradients[i], rate, epsilon)


@cpu_kernel
def _adagrad_rows(table, accumulator, positions, gradients, rate, epsilon):
    rate, epsilon = table.dtype.type(rate), table.dtype.type(epsilon)
    ahead = rows_ahead(table)
    for j in range(len(positions)):
        row = positions[j]
        if j + ahead < len(positions):
            ask_to_write(table, positions[j + ahead])
            ask_to_write(accumulator, positions[j + ahead])
        for c in range(table.shape[1]):
            table[row, c], accumulator[row, c] = adagrad_element(
                table[row, c], accumulator[row, c], gradients[j, c], rate, epsilon
            )


@cpu_kernel
def _adam_dense(values, first, second, gradients, rate, beta1, rest1, beta2, rest2, correction, epsilon):
    to = values.dtype.type
    rate, epsilon, correction = to(rate), to(epsilon), to(correction)
    beta1, rest1, beta2, rest2 = to(beta1), to(rest1), to(beta2), to(rest2)
    for i in range(len(values)):
        values[i], first[i], second[i] = adam_element(
            values[i], first[i], second[i], gradients[i], rate, beta1, rest1, beta2, rest2, correction, epsilon
        )


@cpu_kernel
def _adam_rows(table, first, second, positions, gradients, rate, beta1, rest1, beta2, rest2, correction, epsilon):
    to = table.dtype.type
    rate, epsilon, correction = to(rate), to(epsilon), to(correction)
    beta1, rest1, beta2, rest2 = to(beta1), to(rest1), to(beta2), to(rest2)
    ahead = rows_ahead(table)
    for j in range(len(positions)):
        row = positions[j]
        if j + ahead < len(positions):
            ask_to_write(table, positions[j + ahead])
            ask_to_write(first, positions[j + ahead])
            ask_to_write(second, positions[j + ahead])
        for c in range(table.shape[1]):
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
