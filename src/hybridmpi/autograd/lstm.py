"""A whole LSTM layer over all time steps, with optional projection, as one operation.

Equations (Sak et al. 2014, arXiv 1402.1128, without peepholes; the ones of torch.nn.LSTM with proj_size):
    i, f, g, o = sigmoid, sigmoid, tanh, sigmoid of  W_x x_t + W_h h_{t-1} + bias
    c_t = f c_{t-1} + i g        m_t = o tanh(c_t)        h_t = W_p m_t   (h_t = m_t without projection)

What makes it fast: only what depends on the previous step stays in the loop over time. The input product is one matrix
product over all steps before the loop, the gradients of the weights are one product each after it. And where the inputs
are rows that many positions share (words of a text), `positions` lets the input product and its two gradients run over
the distinct rows only.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from hybridmpi import kernels
from hybridmpi.arrays import namespace
from hybridmpi.autograd.lstm_gates import activate_gates, cell_backward, cell_forward
from hybridmpi.autograd.tensor import Tensor, as_tensor, record
from hybridmpi.errors import UsageError
from hybridmpi.inputs import floats, integers


@dataclass(frozen=True)
class LSTMWeights:
    """The gates' weights, in the order i, f, g, o, and the projection's; p = h without projection."""

    input: Tensor  # [4h, e]
    hidden: Tensor  # [4h, p]
    bias: Tensor  # [4h]
    projection: Tensor | None = None  # [p, h]

    def tensors(self) -> tuple[Tensor, ...]:
        """Return the weights that there are."""
        some = (self.input, self.hidden, self.bias)
        return some if self.projection is None else (*some, self.projection)


@dataclass
class _Buffers:
    """Memory of one pass, time first, so that each step is one contiguous block."""

    gates: Any  # [T, b, 4h] preactivations, then activated gates, then their gradients
    cells: Any  # [T + 1, b, h] from the initial cell on
    tanh_cells: Any  # [T, b, h]
    cell_outputs: Any  # [T, b, h], m in the equations; without projection unused, [0, 0, 0]
    product: Any  # [b, 4h] of one step
    scale: Any  # [4h], see activate_gates
    hidden_transposed: Any  # [p, 4h] of the weights: a product with a transposed view takes half as long again
    projection_transposed: Any  # [h, p], or [h, 0] without projection

    @classmethod
    def make(cls, xp: Any, steps: int, batch: int, hidden: int, projection: int, dtype: Any) -> _Buffers:
        scale = xp.full(4 * hidden, 0.5, dtype)
        scale[2 * hidden : 3 * hidden] = 1
        return cls(
            gates=xp.empty((steps, batch, 4 * hidden), dtype),
            cells=xp.empty((steps + 1, batch, hidden), dtype),
            tanh_cells=xp.empty((steps, batch, hidden), dtype),
            cell_outputs=xp.empty((steps, batch, hidden) if projection else (0, 0, 0), dtype),
            product=xp.empty((batch, 4 * hidden), dtype),
            scale=scale,
            hidden_transposed=xp.empty((projection or hidden, 4 * hidden), dtype),
            projection_transposed=xp.empty((hidden, projection), dtype),
        )


def lstm(
    x: Tensor,
    state: tuple[Any, Any] | None,
    weights: LSTMWeights,
    positions: Any = None,
) -> tuple[Tensor, tuple[Any, Any]]:
    """Return the outputs h_t as a tensor [b, T, p] and the last state as arrays (h [b, p], c [b, h]). Local.

    x: [b, T, e]; a view of time-first memory [T, b, e] is used without a copy, and the outputs are such a view.
    positions: integers [b, T]; then x is [u, e] and x[positions[i, t]] the input of sequence i at step t.
    state: (h, c) or None for zeros; no gradient flows into it (truncated back-propagation).
    Raises UsageError where shapes do not fit.
    """
    x = as_tensor(x, weights.input, "lstm: the input")
    if positions is not None:
        positions = integers(positions, "lstm: position", 0, x.shape[0] if x.shape else 0)
    if state is not None:
        if not isinstance(state, (tuple, list)) or len(state) != 2:
            raise UsageError(f"lstm: a state that is a {type(state).__name__}: expected the arrays (h, c), or None")
        state = tuple(floats(part, x.dtype, "lstm: the state") for part in state)
    xp = namespace(x.data)
    _check(x, state, weights, positions)
    batch, steps = x.shape[:2] if positions is None else positions.shape
    width = weights.bias.shape[0] // 4
    projection = None if weights.projection is None else weights.projection.data
    buffers = _Buffers.make(xp, steps, batch, width, 0 if projection is None else len(projection), x.dtype)
    outputs = xp.empty((steps + 1, batch, weights.hidden.shape[1]), x.dtype)  # from the initial h on
    outputs[0], buffers.cells[0] = (0, 0) if state is None else state
    gates, product = buffers.gates, buffers.product

    if positions is None:
        inputs = xp.ascontiguousarray(x.data.transpose(1, 0, 2)).reshape(steps * batch, x.shape[2])
        xp.matmul(inputs, weights.input.data.T, out=gates.reshape(steps * batch, 4 * width))
        places = None
        row_of = xp.arange(batch)
    else:
        inputs = x.data
        input_products = inputs @ weights.input.data.T
        places = xp.ascontiguousarray(positions.T)

    _transpose_into(buffers.hidden_transposed, weights.hidden.data)
    if projection is not None:
        _transpose_into(buffers.projection_transposed, projection)
    for t in range(steps):
        if places is None:
            xp.matmul(outputs[t], buffers.hidden_transposed, out=product)
            activate_gates(gates[t], product, row_of, weights.bias.data, buffers.scale)
        else:
            xp.matmul(outputs[t], buffers.hidden_transposed, out=gates[t])
            activate_gates(gates[t], input_products, places[t], weights.bias.data, buffers.scale)
        m = outputs[t + 1] if projection is None else buffers.cell_outputs[t]
        cell_forward(gates[t], buffers.cells[t], buffers.cells[t + 1], buffers.tanh_cells[t], m)
        if projection is not None:
            xp.matmul(m, buffers.projection_transposed, out=outputs[t + 1])
    last = outputs[steps].copy(), buffers.cells[steps].copy()  # views would keep all of this step's memory alive

    def backward(gradient: Any) -> Iterator[Tensor]:
        d_outputs = _through_time(gradient, weights, buffers)
        rows = steps * batch
        d_gates = gates.reshape(rows, 4 * width)
        if projection is not None:
            m = buffers.cell_outputs.reshape(rows, width)
            weights.projection.accumulate_product(d_outputs.reshape(rows, d_outputs.shape[2]).T, m)
            yield weights.projection
        weights.hidden.accumulate_product(d_gates.T, outputs[:steps].reshape(rows, outputs.shape[2]))
        yield weights.hidden
        if places is None:
            d_inputs = d_gates
        else:
            d_inputs = xp.zeros((len(inputs), 4 * width), x.dtype)
            kernels.scatter_add(d_inputs, places.reshape(-1), d_gates)
        weights.bias.accumulate(d_inputs.sum(axis=0))
        weights.input.accumulate_product(d_inputs.T, inputs)
        yield from (weights.bias, weights.input)
        if x.requires_grad:
            d_x = d_inputs @ weights.input.data
            x.accumulate(d_x if places is not None else d_x.reshape(steps, batch, inputs.shape[1]).transpose(1, 0, 2))

    return record(outputs[1:].transpose(1, 0, 2), (x, *weights.tensors()), backward), last


def _transpose_into(out: Any, matrix: Any) -> None:
    """out = matrix.T, in blocks of rows that the cache holds: three times as fast as numpy's copy of a whole matrix."""
    for first in range(0, len(matrix), 64):
        out[:, first : first + 64] = matrix[first : first + 64].T


def _through_time(gradient: Any, weights: LSTMWeights, buffers: _Buffers) -> Any:
    """Turn buffers.gates into their gradients, last step first; return the gradients of the outputs, [T, b, p]."""
    xp = namespace(gradient)
    d_outputs = xp.array(gradient.transpose(1, 0, 2), order="C")
    d_cell = xp.zeros_like(buffers.cells[0])
    d_cell_output = xp.empty_like(d_cell)
    carried = xp.empty_like(d_outputs[0]) if len(d_outputs) else None
    for t in range(len(d_outputs) - 1, -1, -1):
        if t + 1 < len(d_outputs):
            xp.matmul(buffers.gates[t + 1], weights.hidden.data, out=carried)
            d_outputs[t] += carried
        if weights.projection is None:
            d_cell_output = d_outputs[t]
        else:
            xp.matmul(d_outputs[t], weights.projection.data, out=d_cell_output)
        cell_backward(buffers.gates[t], buffers.cells[t], buffers.tanh_cells[t], d_cell_output, d_cell)
    return d_outputs


def _check(x: Tensor, state: tuple[Any, Any] | None, weights: LSTMWeights, positions: Any) -> None:
    """Raise UsageError unless inputs, positions and state fit the weights and each other."""
    width, size = weights.input.shape[1], weights.hidden.shape
    if positions is None:
        if x.data.ndim != 3 or x.shape[2] != width:
            raise UsageError(f"lstm: input of shape {x.shape}: expected [batch, steps, {width}]")
        batch = x.shape[0]
    else:
        if x.data.ndim != 2 or x.shape[1] != width or positions.ndim != 2:
            raise UsageError(
                f"lstm: rows {x.shape} and positions {positions.shape}: expected [rows, {width}] and [batch, steps]"
            )
        batch = positions.shape[0]
    expected = ((batch, size[1]), (batch, size[0] // 4))
    if state is not None and tuple(part.shape for part in state) != expected:
        raise UsageError(
            f"lstm: state of shapes {tuple(part.shape for part in state)} for a batch of {batch}: expected {expected}; "
            "pass None to start from zeros"
        )
