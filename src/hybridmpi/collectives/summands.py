"""What may be summed: before ranks add up what each of them has, each looks whether the sum is sure to be finite.

Who sums (an owner of rows, every rank of an all-reduce) could look at the result only after it, and an owner would have
to tell all others before it updates: a round trip more in every step. A bound on each part costs nothing, since every
part is searched for NaN and infinities anyway.
"""

from __future__ import annotations

from functools import cache

import numpy as np

from hybridmpi import kernels

# What weights that are rounded, and values that are rounded to bfloat16 on the wire, may add.
ROUNDING = 2.0


@cache
def largest_summand(dtype: np.dtype, ranks: int, mean: bool) -> float:
    """Return what no value may exceed, so that the sum over `ranks`, or their weighted mean, is sure to be finite.
    Local."""
    largest = float(np.finfo(dtype).max)
    return largest if ranks == 1 else largest / ROUNDING / (1 if mean else ranks)


def unfit_to_sum(values: np.ndarray, name: str, ranks: int, mean: bool = True) -> str:
    """Say what forbids to sum the gradient `values`, of any shape, of `name` over the ranks: what is not finite, or so
    large that a sum may not be; "" if nothing does. Local."""
    limit = largest_summand(values.dtype, ranks, mean)
    if not kernels.count_beyond(values, limit):
        return ""
    if count := kernels.nonfinite_count(values):
        return f"{count} of {values.size} values in the gradient of '{name}' are not finite"
    count, how = kernels.count_beyond(values, limit), "mean" if mean else "sum"
    return (
        f"{count} of {values.size} values in the gradient of '{name}' exceed {limit:.3g}, above which their {how} over "
        f"{ranks} ranks may leave {values.dtype}"
    )
