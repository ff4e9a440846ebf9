"""The CUDA form of every kernel against its CPU form, small sizes, in numba's simulator. Run by test_simulator.py.

Usage: NUMBA_ENABLE_CUDASIM=1 python simulated.py

The simulator shows that the arithmetic is right, nothing about speed or memory safety. One line for each kernel.
"""

import importlib

import numpy as np
from numba import config, cuda

from hybridmpi.kernels import device
from hybridmpi.kernels.registry import KERNELS

device.THREADS = 4  # a simulated thread is a Python thread; set before the modules below read it
scan_cuda = importlib.import_module("hybridmpi.kernels.scan_cuda")

RANDOM = np.random.default_rng(7)
ROWS = 40
HALF_KERNELS = [name for name in KERNELS if name.endswith("float16")]
INEXACT = ["square_sum"]  # the device adds in another order
ONE_TYPE = ["argsort_ids", "unique_inverse", *HALF_KERNELS]
# Hyperparameters of the update rules, in the order of the kernels' parameters.
SETTINGS = {"sgd": (0.1,), "momentum": (0.1, 0.9), "adagrad": (0.1, 1e-10), "adam": (0.1, 0.9, 0.999, 1e-8, 3)}


def values(*shape, dtype=np.float32):
    return RANDOM.standard_normal(shape).astype(dtype)


def ids(n, rows=ROWS):
    return RANDOM.integers(0, rows, n)


def segments(n, d, dtype):
    return values(n + 3, d, dtype=dtype), RANDOM.permutation(n + 3)[:n], np.array([0, n // 3, n // 3, n])


def update_cases(name, dtype):
    rule, form = name.split("_")
    states = {"sgd": 0, "momentum": 1, "adagrad": 1, "adam": 2}[rule]
    for n, d in ((0, 3), (6, 5)):
        if form == "rows":
            state = [abs(values(ROWS, d, dtype=dtype)) for _ in range(states)]
            yield (
                values(ROWS, d, dtype=dtype),
                *state,
                RANDOM.permutation(ROWS)[:n],
                values(n, d, dtype=dtype),
                *SETTINGS[rule],
            )
        else:
            state = [abs(values(n, dtype=dtype)) for _ in range(states)]
            yield values(n, dtype=dtype), *state, values(n, dtype=dtype), *SETTINGS[rule]


def cases(name, dtype):
    """Return argument lists for kernel `name`: ordinary sizes and the empty ones."""
    if name in ("argsort_ids", "unique_inverse"):
        return [(ids(n, rows), rows) for n, rows in ((0, 5), (1, 1), (50, 3), (40, 5000))]
    if name == "gather":
        return [(values(ROWS, d, dtype=dtype), ids(n)) for n, d in ((0, 3), (9, 1), (9, 5))]
    if name == "scatter":
        return [
            (values(ROWS, d, dtype=dtype), RANDOM.permutation(ROWS)[:n], values(n, d, dtype=dtype))
            for n, d in ((0, 3), (9, 5))
        ]
    if name == "scatter_add":
        return [(values(4, d, dtype=dtype), ids(n, 4), values(n, d, dtype=dtype)) for n, d in ((0, 3), (20, 3))]
    if name == "scatter_add_bags":
        return [
            (values(4, 3, dtype=dtype), ids(n, 4), starts, values(len(starts) - 1, 3, dtype=dtype))
            for n, starts in ((0, np.zeros(1, np.int64)), (0, np.zeros(3, np.int64)), (20, np.array([0, 7, 7, 20])))
        ]
    if name == "aggregate":
        return [
            (ids(n), values(n, d, dtype=dtype), ROWS, *scale)
            for n, d in ((0, 3), (30, 3))
            for scale in ((), (values(n, dtype=dtype),))
        ]
    if name == "position_sums":
        return [
            (values(n, 3, dtype=dtype), ids(n, 6), 7, *scale)  # the last position has no rows
            for n in (0, 20)
            for scale in ((), (values(n, dtype=dtype),))
        ]
    if name == "segment_sum":
        return [
            (*segments(n, 4, dtype), np.full((3, 4), np.nan, dtype), *scale)
            for n in (0, 20)
            for scale in ((), (values(n + 3, dtype=dtype),))
        ]
    if name in ("uniform_rows", "normal_rows"):
        return [(np.full(shape, np.nan, dtype), 3, 2, 2**64 - 5, -0.5, 0.5) for shape in ((0, 3), (5, 1), (5, 7))]
    if name == "nonfinite_count":
        spoiled = values(20, 3, dtype=dtype)
        spoiled[[0, 7], [1, 2]] = np.nan, -np.inf
        return [(values(0, 3, dtype=dtype),), (values(4, dtype=dtype),), (spoiled,)]
    if name == "count_beyond":
        spoiled = values(20, 3, dtype=dtype)
        spoiled[[0, 7], [1, 2]] = np.nan, -np.inf
        return [(values(0, 3, dtype=dtype), 1.0), (spoiled, 0.5)]
    if name == "square_sum":
        return [(values(0, 3, dtype=dtype),), (values(4, dtype=dtype),), (1e25 * values(200, 3, dtype=dtype),)]
    if name in HALF_KERNELS:
        return [half_case(name, n) for n in (0, 1, 40)]
    return list(update_cases(name, dtype))


def half_case(name, n):
    """Return a kernel's float32 and 16-bit arguments in its order: numbers of every size, then special ones."""
    full = (values(n) * 10.0 ** RANDOM.integers(-12, 6, n)).astype(np.float32)
    halves = RANDOM.integers(0, 1 << 16, n, dtype=np.uint16)
    special = np.float32([np.inf, -np.inf, np.nan, -0.0, 65520, 2**-25, 1.5 * 2**-24])[:n]
    full[: len(special)] = special
    return (full, halves) if name.startswith("to_") else (halves, full)


def outcome(function, arguments, move, fetch):
    """Return all that a call leaves behind: its result, and its array arguments afterwards."""
    arguments = [move(a.copy()) if isinstance(a, np.ndarray) else a for a in arguments]
    result = function(*arguments)
    returned = result if isinstance(result, tuple) else (result,)
    return [fetch(part) for part in (*returned, *arguments) if part is not None]


def on_device(array):
    return array.copy_to_host() if hasattr(array, "copy_to_host") else array


def check(name, dtype):
    cpu, device = (getattr(importlib.import_module(path), name) for path in KERNELS[name])
    for arguments in cases(name, dtype):
        expected = outcome(cpu, arguments, np.asarray, np.asarray)
        found = outcome(device, arguments, cuda.to_device, on_device)
        assert len(found) == len(expected)
        for e, f in zip(expected, found, strict=True):
            f = np.asarray(f)
            assert f.shape == e.shape, (name, dtype, f.shape, e.shape)
            tolerance = 4 * np.finfo(dtype).eps if name in INEXACT else 0
            np.testing.assert_allclose(f, e, rtol=tolerance, atol=tolerance, err_msg=name)


def check_scan():
    """A scan of several tiles: the one part that the small cases above do not reach."""
    counts = RANDOM.integers(0, 9, scan_cuda.TILE + 5)
    found = cuda.to_device(counts)
    scan_cuda.exclusive_scan(found)
    np.testing.assert_array_equal(found.copy_to_host(), np.cumsum(counts) - counts)


def check_rows_outside():
    """A row outside the table reaches no memory of others."""
    bad = cuda.to_device(np.array([-1, 2, 5]))
    forms = {
        name: getattr(importlib.import_module(KERNELS[name].cuda), name) for name in ("gather", "scatter", "sgd_rows")
    }
    table = np.ones((5, 3), np.float32)
    found = forms["gather"](cuda.to_device(table), bad).copy_to_host()
    np.testing.assert_array_equal(found, [[0] * 3, [1] * 3, [0] * 3])
    for name, settings in (("scatter", ()), ("sgd_rows", (0.5,))):
        held = cuda.to_device(table)
        forms[name](held, bad, cuda.to_device(np.full((3, 3), 4, np.float32)), *settings)
        np.testing.assert_array_equal(held.copy_to_host()[[0, 1, 3, 4]], 1)
        assert (held.copy_to_host()[2] != 1).all()


def main():
    assert config.ENABLE_CUDASIM, "start with NUMBA_ENABLE_CUDASIM=1"
    np.seterr(invalid="ignore")  # the search for non-finite values, and 16-bit sums, meet some
    for name in KERNELS:
        for dtype in (np.float32,) if name in ONE_TYPE else (np.float32, np.float64):
            check(name, dtype)
        print("ok", name, flush=True)
    check_scan()
    check_rows_outside()
    print("all", len(KERNELS), "kernels agree")


if __name__ == "__main__":
    main()
