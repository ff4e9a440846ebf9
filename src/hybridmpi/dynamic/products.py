"""Steps that multiply matrices: rows times a matrix, and the gradients of parameters."""

from __future__ import annotations

import math

import numpy as np

from hybridmpi.autograd import Parameter, Tensor
from hybridmpi.autograd.elementwise import unbroadcast
from hybridmpi.dynamic import fusing
from hybridmpi.dynamic.nodes import Node
from hybridmpi.dynamic.places import Place
from hybridmpi.dynamic.steps import Ranges, Step, Work, rows_of

# Rows up to which the kernels of `fusing` are faster than BLAS, which packs the matrix anew for every product. Measured
# for matrices of 150 x 150 to 300 x 750: of the transpose of a matrix that lies [outputs, inputs], and of others.
FEW_TURNED, FEW = 16, 48


class Product(Step):
    """Rows times a matrix. kernel: for a few rows, None if there is none."""

    def __init__(self, node: Node, x: Place, out: Place, kernel: fusing.Kernel | None) -> None:
        operand, matrix = node.inputs
        (self.turned,) = node.attributes
        self._operand, self._x, self._out, self._node = operand, x, out, node
        self.parameter: Tensor = matrix.attributes[0]
        self.space, self.label = node.space, f"product {operand.shape[-1]} x {node.shape[-1]}"
        self.repeated = node.width // node.shape[-1]
        self.kernel, self.few = kernel, -1 if kernel is None else FEW_TURNED if self.turned else FEW

    def run(self, work: Work, ranges: Ranges) -> None:
        """Multiply."""
        first, last = ranges[self.space]
        if last - first <= self.few:
            self.kernel(first, last, work.address)
            return
        x = rows_of(work, self._x, self._operand, first, last)
        out = rows_of(work, self._out, self._node, first, last)
        if self.repeated != 1:
            x, out = x.reshape(-1, x.shape[-1]), out.reshape(-1, out.shape[-1])
        np.matmul(x, work.matrix(self.parameter, self.turned), out=out)


class ParameterProduct(Step):
    """The gradient of a matrix: the product of all rows of one node with those of another.

    target: the number that `kernels` know the gradient by, which are for a few rows: one that writes it, and one that
    adds to it.
    """

    def __init__(
        self, node: Node, a: Place, b: Place, target: int, kernels: tuple[fusing.Kernel, fusing.Kernel] | None
    ) -> None:
        self.space = node.space
        self.parameter: Parameter = node.attributes[0]
        self._nodes, self._a, self._b = node.inputs, a, b
        self._target, self._kernels = target, kernels
        self.label = f"gradient {' x '.join(map(str, node.shape))}"

    def run(self, work: Work, ranges: Ranges) -> None:
        """Multiply, and add to the parameter's gradient."""
        first, last = ranges[self.space]
        if first == last:
            return
        if self._kernels is not None and last - first <= FEW:
            place, add = self.parameter.take_place()
            work.point(self._target, place)
            self._kernels[add](first, last, work.address)
            return
        a, b = (
            rows_of(work, place, node, first, last).reshape(-1, node.shape[-1])
            for place, node in zip((self._a, self._b), self._nodes, strict=True)
        )
        self.parameter.accumulate_product(a.T, b)


class ParameterSum(Step):
    """The gradient of a vector that was used for every row: the sum over rows.

    target: the number that `adding` knows the gradient by, a kernel that adds rows to it as it lies.
    """

    def __init__(self, node: Node, x: Place, target: int, adding: fusing.Kernel | None) -> None:
        self.space, self.label = node.space, "gradient, sum"
        self.parameter, shapes, _ = node.attributes
        # Shapes that differ in more than axes of length 1 are summed over what was repeated.
        self._shapes = [shape for shape in shapes if shape != node.inputs[0].shape]
        self._node, self._x = node.inputs[0], x
        self._target, self._adding = target, adding

    def run(self, work: Work, ranges: Ranges) -> None:
        """Sum, and add to the parameter's gradient."""
        first, last = ranges[self.space]
        if first == last:
            return
        if self._adding is not None:
            place, add = self.parameter.take_place()
            if not add:
                place[...] = 0
            work.point(self._target, place)
            self._adding(first, last, work.address)
            return
        total = rows_of(work, self._x, self._node, first, last).sum(axis=0)
        for shape in self._shapes:
            total = total.reshape(shape) if total.size == math.prod(shape) else unbroadcast(total, shape)
        self.parameter.accumulate(total)
