"""Limit: the matrix products of a training step, large, alone, and nothing else.

Purpose      GFLOP/s of the products that an affine layer y = x W^T costs in training: y, and from the gradient of y
             those of x and of W; what a model built of such layers cannot exceed
Environment  any Python with numpy
Usage        V/bin/python products.py --product 10000 300 450 --product 10000 300 750 --threads 2

--product ROWS IN OUT may be repeated: x is [ROWS, IN], W [OUT, IN], float32. Validation: some rows of each product
against float64. The JSON line: GFLOP/s over all products together; info: GFLOP/s of each.
"""

import statistics
import time

import common


def operands(np, random, rows, inputs, outputs):
    """Return x, W and the gradient of y, drawn."""
    shapes = (rows, inputs), (outputs, inputs), (rows, outputs)
    return tuple(random.standard_normal(shape, dtype=np.float32) for shape in shapes)


def training(x, w, g):
    """Return y, and the gradients of x and of W."""
    return x @ w.T, g @ w, g.T @ x


def validate(np, x, w, g):
    """Compare the first rows of each product with float64."""
    few, wide = slice(0, 4), np.float64
    right = x[few].astype(wide) @ w.T.astype(wide), g[few].astype(wide) @ w, g.T[few].astype(wide) @ x.astype(wide)
    for found, expected in zip(training(x, w, g), right, strict=True):
        off = np.abs(found[few] - expected).max() / np.abs(expected).max()
        common.require(off < 1e-4, f"a product of x {x.shape} and W {w.shape} is off by {off}")


def main():
    arguments = common.parser(__doc__)
    shape = {"type": int, "nargs": 3, "metavar": ("ROWS", "IN", "OUT")}
    arguments.add_argument("--product", action="append", required=True, **shape)
    options = common.parse(arguments)
    import numpy as np

    random = np.random.default_rng(1)
    seconds, flop = [[] for _ in range(options.reps)], []
    for product in options.product:
        arrays = operands(np, random, *product)
        validate(np, *arrays)
        flop.append(6 * product[0] * product[1] * product[2])
        training(*arrays)
        for part in seconds:
            start = time.perf_counter()
            training(*arrays)
            part.append(time.perf_counter() - start)
    medians = [statistics.median(times) for times in zip(*seconds, strict=True)]
    each = [common.significant(amount / median / 1e9) for amount, median in zip(flop, medians, strict=True)]
    rates = [sum(flop) / sum(part) / 1e9 for part in seconds]
    params = {"products": options.product, "threads": options.threads}
    version = f"numpy {np.__version__}"
    result = common.record("matrix products", version, "products of training", params, rates, "GFLOP/s", {"each": each})
    common.describe(result)
    common.emit(result)


if __name__ == "__main__":
    main()
