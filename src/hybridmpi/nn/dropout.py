"""Dropout."""

from __future__ import annotations

import numpy as np

from hybridmpi import autograd
from hybridmpi.arrays import namespace
from hybridmpi.autograd import Tensor, draws
from hybridmpi.autograd.tensor import as_tensor
from hybridmpi.field_types import Share, checks_arguments
from hybridmpi.nn.module import Module


class Dropout(Module):
    """In training, zero each element with probability `rate` and scale the others by 1 / (1 - rate)."""

    @checks_arguments
    def __init__(self, rate: Share) -> None:
        self.rate = rate

    def forward(self, x: Tensor) -> Tensor:
        """Return x with dropout, or x itself in evaluation or at rate 0. Local; draws for "dropout"."""
        x = as_tensor(x, None, "Dropout")
        if not self.training or not self.rate:
            return x
        uniform = draws.generator("dropout").random(x.shape, np.float32)
        return autograd.dropout(x, self.rate, namespace(x.data).asarray(uniform))
