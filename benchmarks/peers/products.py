"""Limit: the matrix products of a training step, large, alone, and nothing else.

Purpose      GFLOP/s of the products that an affine layer y = x W^T costs in training: y, and from the gradient of y
             those of x and of W; what a model built of such layers cannot exceed
Environment  any Python with numpy (--library numpy), or with torch
Usage        V/bin/python products.py --product 10000 300 450 --product 10000 300 750 --threads 2

--product ROWS IN OUT may be repeated: x is [ROWS, IN], W [OUT, IN], float32. Validation: some rows of each product
against float64. The JSON line: GFLOP/s over all products together; info: GFLOP/s of each.
"""

import statistics
import time

import common


def main():
    arguments = common.parser(__doc__)
    arguments.add_argument("--library", choices=("numpy", "torch"), default="numpy")
    arguments.add_argument(
        "--product", type=int, nargs=3, action="append", required=True, metavar=("ROWS", "IN", "OUT")
    )
    options = common.parse(arguments)
    import numpy as np

    if options.library == "torch":
        torch = common.use_torch(options.threads)
        version, convert = f"torch {torch.__version__}", torch.from_numpy
    else:
        version, convert = f"numpy {np.__version__}", np.asarray
    random = np.random.default_rng(1)
    seconds, flop = [[] for _ in range(options.reps)], []
    for rows, inputs, outputs in options.product:
        x, w, g = (
            random.standard_normal(shape, dtype=np.float32)
            for shape in ((rows, inputs), (outputs, inputs), (rows, outputs))
        )
        few = slice(0, 4)
        exact = [a.astype(np.float64) @ b.astype(np.float64) for a, b in ((x[few], w.T), (g[few], w), (g.T[few], x))]
        x, w, g = convert(x), convert(w), convert(g)

        def training(x=x, w=w, g=g):
            return x @ w.T, g @ w, g.T @ x

        for found, right in zip(training(), exact, strict=True):
            off = np.abs(np.asarray(found[few]) - right).max() / np.abs(right).max()
            common.require(off < 1e-4, f"a product of {rows} {inputs} {outputs} is off by {off}")
        flop.append(6 * rows * inputs * outputs)
        training()
        for part in seconds:
            start = time.perf_counter()
            training()
            part.append(time.perf_counter() - start)
    each = [
        common.significant(amount / statistics.median(times) / 1e9)
        for amount, times in zip(flop, zip(*seconds, strict=True), strict=True)
    ]
    rates = [sum(flop) / sum(part) / 1e9 for part in seconds]
    params = {"library": options.library, "products": options.product, "threads": options.threads}
    result = common.record("matrix products", version, "products of training", params, rates, "GFLOP/s", {"each": each})
    common.describe(result)
    common.emit(result)


if __name__ == "__main__":
    main()
