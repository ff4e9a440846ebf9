"""Dense parameters that lie at owners of rows: what mode "ps" makes of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

import numpy as np

from hybridmpi.autograd import Parameter
from hybridmpi.autograd.initial import Initial, draw, generator_for
from hybridmpi.sparse.partition import Kind
from hybridmpi.sparse.spec import TableSpec
from hybridmpi.sparse.table import Table


def shape_of_rows(shape: tuple[int, ...]) -> tuple[int, int]:
    """Return (rows, dim) of the table that a parameter of `shape` becomes: one row for a vector. Local."""
    return (1, math.prod(shape)) if len(shape) < 2 else (shape[0], math.prod(shape[1:]))


def spec_of(parameter: Parameter, optimizer: object, partition: Kind, seed: int) -> TableSpec:
    """Return the table that holds a parameter, whose owners draw the same initial values as compute ranks do. Local."""
    rows, dim = shape_of_rows(parameter.shape)
    make = partial(_initial_rows, parameter.init, parameter.shape, parameter.dtype, seed, parameter.name)
    return TableSpec(parameter.name, rows, dim, parameter.dtype, ("made", make), "mean", partition, optimizer, seed)


def _initial_rows(init: Initial, shape: tuple[int, ...], dtype: np.dtype, seed: int, name: str) -> np.ndarray:
    return draw(init, shape, dtype, generator_for(seed, name)).reshape(shape_of_rows(shape))


class ServedParameters:
    """Parameters that are pulled whole after every step, and whose gradients are pushed whole. Local; pulls wait."""

    def __init__(self, parameters: Sequence[Parameter], tables: Sequence[Table]) -> None:
        self.parameters, self.tables = list(parameters), list(tables)
        self._everything = [np.arange(table.rows) for table in self.tables]
        for parameter in self.parameters:
            parameter.attach(np.array(parameter.data), np.empty_like(parameter.data))

    def begin_step(self) -> None:
        """Forget the last step's gradients."""
        for parameter in self.parameters:
            parameter.begin_step()

    def end_backward(self) -> None:
        """Complete the gradients, with zeros where backward wrote nothing."""
        for parameter in self.parameters:
            parameter.finish_step()

    def gradients(self) -> list[tuple[int, np.ndarray, np.ndarray]]:
        """Return (table, ids, values) of every gradient, whole."""
        return [
            (table.number, ids, parameter.grad.reshape(table.rows, table.dim))
            for parameter, table, ids in zip(self.parameters, self.tables, self._everything, strict=True)
        ]

    def refresh(self) -> None:
        """Fetch the values as they are after this rank's last push."""
        for parameter, table, ids in zip(self.parameters, self.tables, self._everything, strict=True):
            parameter.assign(table.pull(ids).reshape(parameter.shape))
