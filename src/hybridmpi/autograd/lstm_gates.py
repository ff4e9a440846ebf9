"""The arithmetic between the matrix products of an LSTM step, each function in two forms with the same results.

Gates lie in one block [b, 4h] in the order input, forget, cell, output. For CPU arrays numba fuses what is arithmetic,
and the transcendental functions stay in numpy, whose tanh is vectorised: since sigmoid(x) = (1 + tanh(x / 2)) / 2, one
tanh over the whole block does for all four gates. The plain array form serves device arrays, and the tests as oracle.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from hybridmpi.arrays import namespace
from hybridmpi.kernels.cpu import cpu_kernel


def activate_gates(gates: Any, addend: Any, rows: Any, bias: Any, scale: Any) -> None:
    """gates = activation(gates + addend[rows] + bias) in place: sigmoid, sigmoid, tanh, sigmoid. Local.

    gates [b, 4h]; addend [u, 4h]; rows int64 [b]; bias [4h]; scale [4h]: 1 for the cell gate, 0.5 for the others.
    Leaves tanh(x / 2) in the place of the sigmoids: `cell_forward` finishes them.
    """
    xp = namespace(gates)
    if xp is np:
        _add_and_scale(gates, addend, rows, bias, scale)
    else:
        gates += addend[rows]
        gates += bias
        gates *= scale
    xp.tanh(gates, out=gates)


@cpu_kernel
def _add_and_scale(gates, addend, rows, bias, scale):
    for i in range(gates.shape[0]):
        row, more = gates[i], addend[rows[i]]
        for j in range(row.shape[0]):
            row[j] = (row[j] + more[j] + bias[j]) * scale[j]


def cell_forward(gates: Any, cell: Any, new_cell: Any, tanh_cell: Any, hidden: Any) -> None:
    """Finish the sigmoids in `gates` [b, 4h]; new_cell = f cell + i g; hidden = o tanh(new_cell); all [b, h]. Local."""
    xp = namespace(gates)
    width = cell.shape[1]
    if xp is np:
        _cell_forward(gates, cell, new_cell)
    else:
        for first in (0, width, 3 * width):
            part = gates[:, first : first + width]
            part *= 0.5
            part += 0.5
        i, f, g = gates[:, :width], gates[:, width : 2 * width], gates[:, 2 * width : 3 * width]
        new_cell[...] = f * cell + i * g
    xp.tanh(new_cell, out=tanh_cell)
    xp.multiply(gates[:, 3 * width :], tanh_cell, out=hidden)


@cpu_kernel
def _cell_forward(gates, cell, new_cell):
    width = cell.shape[1]
    half = gates.dtype.type(0.5)
    for row in range(gates.shape[0]):
        i, f = gates[row, :width], gates[row, width : 2 * width]
        g, o = gates[row, 2 * width : 3 * width], gates[row, 3 * width :]
        old, new = cell[row], new_cell[row]
        for j in range(width):
            i[j] = half + half * i[j]
            f[j] = half + half * f[j]
            o[j] = half + half * o[j]
            new[j] = f[j] * old[j] + i[j] * g[j]


def cell_backward(gates: Any, cell: Any, tanh_cell: Any, d_hidden: Any, d_cell: Any) -> None:
    """Turn `gates` [b, 4h] into the gradient before activation and `d_cell` [b, h] into that of the old cell. Local.

    cell, tanh_cell: the old cell and tanh of the new one; d_hidden: gradient of hidden; all [b, h].
    """
    if namespace(gates) is np:
        _cell_backward(gates, cell, tanh_cell, d_hidden, d_cell)
        return
    width = cell.shape[1]
    i, f = gates[:, :width], gates[:, width : 2 * width]
    g, o = gates[:, 2 * width : 3 * width], gates[:, 3 * width :]
    d_new = d_cell + d_hidden * o * (1 - tanh_cell * tanh_cell)
    d_cell[...] = d_new * f
    d_i, d_g = d_new * g * (i * (1 - i)), d_new * i * (1 - g * g)
    o[...] = d_hidden * tanh_cell * (o * (1 - o))
    f[...] = d_new * cell * (f * (1 - f))
    i[...], g[...] = d_i, d_g


@cpu_kernel
def _cell_backward(gates, cell, tanh_cell, d_hidden, d_cell):
    width = cell.shape[1]
    one = gates.dtype.type(1)
    for row in range(gates.shape[0]):
        i, f = gates[row, :width], gates[row, width : 2 * width]
        g, o = gates[row, 2 * width : 3 * width], gates[row, 3 * width :]
        old, t, dh, dc = cell[row], tanh_cell[row], d_hidden[row], d_cell[row]
        for j in range(width):
            ij, fj, gj, oj = i[j], f[j], g[j], o[j]
            new = dc[j] + dh[j] * oj * (one - t[j] * t[j])
            i[j] = new * gj * (ij * (one - ij))
            f[j] = new * old[j] * (fj * (one - fj))
            g[j] = new * ij * (one - gj * gj)
            o[j] = dh[j] * t[j] * (oj * (one - oj))
            dc[j] = new * fj
