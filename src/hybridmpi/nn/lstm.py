"""LSTM: one recurrent layer, batch first, with optional projection of its output."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from hybridmpi import autograd
from hybridmpi.autograd import LSTMWeights, Parameter, Tensor
from hybridmpi.field_types import Count, checks_arguments
from hybridmpi.nn.module import Module

State = tuple[Any, Any]


class LSTM(Module):
    """torch.nn.LSTM's layer (batch_first, proj_size=projection), with one bias instead of the sum of two.

    weight_x [4h, inputs], weight_h [4h, p], bias [4h], projection [p, h], all from U(-1, 1) / sqrt(hidden); gates in
    the order input, forget, cell, output; p = projection, or hidden without one.
    """

    @checks_arguments
    def __init__(self, inputs: Count, hidden: Count, projection: Count | None = None, dtype: Any = np.float32) -> None:
        init = ("uniform", -1 / math.sqrt(hidden), 1 / math.sqrt(hidden))
        self.hidden, self.outputs = hidden, projection or hidden
        self.weight_x = Parameter((4 * hidden, inputs), init, dtype)
        self.bias = Parameter((4 * hidden,), init, dtype)
        self.weight_h = Parameter((4 * hidden, self.outputs), init, dtype)
        self.projection = Parameter((projection, hidden), init, dtype) if projection else None

    def forward(self, x: Tensor, state: State | None = None, positions: Any = None) -> tuple[Tensor, State]:
        """Return the outputs [b, T, p] and the last state, arrays (h [b, p], c [b, h]), for x [b, T, inputs]. Local.

        state: where to start, None for zeros; no gradient flows into it.
        positions: int64 [b, T]; then x holds distinct rows [u, inputs], x[positions[i, t]] being what sequence i gets
            at step t.
        """
        weights = LSTMWeights(self.weight_x, self.weight_h, self.bias, self.projection)
        return autograd.lstm(x, state, weights, positions)
