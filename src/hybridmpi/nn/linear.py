"""Linear: a dense layer."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from hybridmpi import autograd
from hybridmpi.autograd import Parameter, Tensor
from hybridmpi.field_types import Count, checks_arguments
from hybridmpi.nn.module import Module


class Linear(Module):
    """y = x @ weight.T + bias; weight [outputs, inputs], bias [outputs], both from U(-1, 1) / sqrt(inputs)."""

    @checks_arguments
    def __init__(self, inputs: Count, outputs: Count, bias: bool = True, dtype: Any = np.float32) -> None:
        bound = 1 / math.sqrt(max(inputs, 1))
        self.weight = Parameter((outputs, inputs), ("uniform", -bound, bound), dtype)
        self.bias = Parameter((outputs,), ("uniform", -bound, bound), dtype) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        """Return [..., outputs] for x [..., inputs]. Local."""
        return autograd.linear(x, self.weight, self.bias)
