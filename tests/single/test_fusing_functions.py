"""The functions of generated kernels against numpy in float64, on this machine and on lesser ones."""

from concurrent.futures import ThreadPoolExecutor

import llvmlite.binding as llvm
import numpy as np
import pytest
from fusing_oracle import FUNCTIONS as TRUTH

from hybridmpi.dynamic.fusing import (
    FUNCTIONS,
    Apply,
    Load,
    Number,
    Operand,
    Store,
    as_text,
    compile_kernel,
    table_address,
)
from hybridmpi.dynamic.fusing.engine import compile_text, target_machine

WIDTH = 1003  # whole blocks and a narrower one
TINY, INF = 1e-45, np.inf
SPECIAL = np.array(
    [np.nan, INF, -INF, 0, -0.0, TINY, -TINY, 1e-38, -3e-39, 3.4e38, -3.4e38, 88.72, 88.73, -103.9, -104.1]
)
# Kinds of processors: this one, the least of its family, which has no fused multiply-add, and one without AVX-512.
MACHINES = {"this": None, "least": ("generic", ""), "avx2": ("haswell", "")}


def kernel_on(machine, *program):
    """Return a kernel compiled for one of MACHINES, and what has to outlive it."""
    if MACHINES[machine] is None:
        return compile_kernel(*program), None
    if machine == "avx2" and not llvm.get_host_cpu_features().get("avx2"):
        pytest.skip("this processor has no AVX2")
    return compile_text(as_text(*program), target_machine(*MACHINES[machine]))


def apply(name, x, dtype=np.float32, exponent=None, machine="this"):
    """Return the function of x, one-dimensional, by a kernel of one row."""
    x = np.ascontiguousarray(x, dtype)
    arguments = (0,) if exponent is None else (0, 1)
    values = (Load(Operand(0, x.size, 0)), Number(exponent or 0.0), Apply(name, arguments))
    y = np.full_like(x, -7)
    table = np.array([x.ctypes.data, y.ctypes.data])
    kernel, _engine = kernel_on(machine, x.size, dtype, values, (Store(2, Operand(1, x.size, 0)),))
    kernel(0, 1, table_address(table))
    return y


def largest_ulp(name, lowest, highest, machine, count=200 * WIDTH):
    """Return the largest error of a function of float32 in units of the last place, subnormal ones included."""
    x = np.linspace(lowest, highest, count).astype(np.float32)
    with np.errstate(over="ignore", divide="ignore"):
        true = TRUTH[name](x.astype(np.float64))
        rounded = true.astype(np.float32)
    y, finite = apply(name, x, machine=machine), np.isfinite(rounded)
    np.testing.assert_array_equal(y[~finite], rounded[~finite])
    return np.max(np.abs(y[finite] - true[finite]) / np.spacing(np.abs(rounded[finite])).astype(np.float64))


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize(
    "name, lowest, highest, ulp",
    [
        ("exp", -104.5, 89.2, 2),
        ("exp", -1, 1, 2),
        ("tanh", -12, 12, 7),
        ("tanh", -1e-3, 1e-3, 4),
        ("sigmoid", -1, 30, 7),
        ("log", 0, 30, 2),
    ],
)
def test_functions_of_float32_are_near(machine, name, lowest, highest, ulp):
    assert largest_ulp(name, lowest, highest, machine) <= ulp


@pytest.mark.parametrize("machine", MACHINES)
def test_a_sigmoid_of_what_is_far_below_is_small_and_not_negative(machine):
    x = np.linspace(-120, -1, WIDTH).astype(np.float32)
    y = apply("sigmoid", x, machine=machine)
    assert y.min() == 0 and np.abs(y - 1 / (1 + np.exp(-x.astype(np.float64)))).max() < 3e-7


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", sorted(name for name, function in FUNCTIONS.items() if function.arguments == 1))
def test_special_values(machine, dtype, name):
    """What is not a number stays so; infinity and zero are as in numpy; subnormal values come out to the last place."""
    x = SPECIAL.astype(dtype)
    with np.errstate(all="ignore"):
        expected = TRUTH[name](x.astype(np.float64)).astype(dtype)
    np.testing.assert_allclose(apply(name, x, dtype, machine=machine), expected, rtol=5e-7, atol=2 * TINY)


def test_tanh_never_leaves_its_range():
    y = apply("tanh", np.linspace(-30, 30, 100 * WIDTH))
    assert y.max() == 1 and y.min() == -1


@pytest.mark.parametrize("name", ["exp", "log", "tanh", "sigmoid"])
def test_functions_of_float64_are_libms(name):
    x = np.random.default_rng(0).uniform(0.01, 5, WIDTH) * (1 if name == "log" else -1)
    np.testing.assert_allclose(apply(name, x, np.float64), TRUTH[name](x), rtol=1e-14)


@pytest.mark.parametrize("dtype, rtol", [(np.float32, 3e-7), (np.float64, 1e-14)])
@pytest.mark.parametrize("exponent", [0, 1, 2, 3, -1, -2, 0.5, -0.5, 1.7])
def test_powers(dtype, rtol, exponent):
    x = np.random.default_rng(1).uniform(0.1, 3, WIDTH).astype(dtype)
    got = apply("power", x, dtype, exponent)
    np.testing.assert_allclose(got, x.astype(np.float64) ** exponent, rtol=rtol)


def test_threads_compile_one_after_the_other():
    program = (23, np.float32, (Load(Operand(0, 23, 0)), Apply("exp", (0,))), (Store(1, Operand(1, 23, 0)),))
    with ThreadPoolExecutor(4) as pool:
        kernels = list(pool.map(lambda _: compile_kernel(*program), range(8)))
    assert all(kernel is kernels[0] for kernel in kernels)
