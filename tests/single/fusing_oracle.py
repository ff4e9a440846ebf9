"""What a kernel of hybridmpi.dynamic.fusing has to do, in numpy, row by row and block by block."""

import numpy as np

from hybridmpi.dynamic.fusing import Apply, Load, Number

LANES = {"float32": 16, "float64": 1}
FUNCTIONS = {
    "add": np.add,
    "subtract": np.subtract,
    "multiply": np.multiply,
    "divide": np.divide,
    "negative": np.negative,
    "exp": np.exp,
    "log": np.log,
    "tanh": np.tanh,
    "sigmoid": lambda x: 0.5 + 0.5 * np.tanh(0.5 * x),
    "relu": lambda x: np.where(x < 0, 0, x),
    "positive": lambda x: np.where(x > 0, 1, 0),
    "copy": lambda x: x,
    "power": np.power,
}


def reference(width, dtype, values, stores, first, last, buffers):
    """Run a program over rows first <= r < last of `buffers`, one-dimensional arrays; index arrays are among them."""
    dtype = np.dtype(dtype)
    lanes = LANES[dtype.name]
    with np.errstate(all="ignore"):
        for row in range(first, last):
            for column in range(0, width, lanes):
                block = slice(column, min(column + lanes, width))
                _block(block, dtype, values, stores, row, buffers)


def _block(block, dtype, values, stores, row, buffers):
    def place(operand):
        number = row if operand.index is None else buffers[operand.index][row]
        begin = number * operand.stride + operand.column
        return buffers[operand.buffer][begin + block.start : begin + block.stop]

    results = []
    for value in values:
        if isinstance(value, Load):
            result = place(value.operand).copy()
        elif isinstance(value, Number):
            result = dtype.type(value.value)
        else:
            assert isinstance(value, Apply)
            result = FUNCTIONS[value.name](*(results[number] for number in value.arguments))
        results.append(np.asarray(result, dtype))
    for store in stores:
        there = place(store.operand)
        there[:] = there + results[store.value] if store.add else results[store.value]
