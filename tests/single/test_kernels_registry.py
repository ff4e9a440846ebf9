"""The registry is complete, both forms have one face, and CPU-only use loads no CUDA."""

import importlib
import inspect
import math
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from hybridmpi import kernels
from hybridmpi.kernels import check, norm
from hybridmpi.kernels.registry import KERNELS

FOLDER = Path(kernels.__file__).parent
NO_KERNELS = {  # files that hold no public kernel
    "__init__",
    "cpu",
    "device",
    "logarithm",
    "prefetch",
    "radix_cuda",
    "registry",
    "rounding",
    "rounding_cuda",
    "scan_cuda",
}
HELPERS = {  # shared between modules, not public
    "adam_coefficients",
    "bits_for",
    "check_bags",
    "check_dense_update",
    "check_gradient",
    "check_halves",
    "check_row_update",
    "check_rows",
    "check_segments",
    "check_shapes",
    "find_segments",
    "sort_ids",
}


def public_functions(module):
    return {
        name
        for name, value in vars(module).items()
        if inspect.isfunction(value) and value.__module__ == module.__name__ and not name.startswith("_")
    } - HELPERS


def test_public_names_are_the_registry():
    assert kernels.__all__ == sorted(KERNELS)
    assert dir(kernels) == kernels.__all__


def test_every_kernel_file_is_registered():
    modules = {part.rsplit(".", 1)[1] for kernel in KERNELS.values() for part in kernel}
    assert modules == {path.stem for path in FOLDER.glob("*.py")} - NO_KERNELS


def test_every_public_function_of_a_cpu_module_is_registered():
    for path in {kernel.cpu for kernel in KERNELS.values()}:
        registered = {name for name, kernel in KERNELS.items() if kernel.cpu == path}
        assert public_functions(importlib.import_module(path)) == registered


@pytest.mark.parametrize("name", KERNELS)
def test_both_forms_exist_with_the_same_parameters(name):
    pytest.importorskip("numba.cuda", reason="numba-cuda is not installed: pip install numba-cuda")
    cpu, cuda = (getattr(importlib.import_module(path), name) for path in KERNELS[name])
    assert list(inspect.signature(cpu).parameters) == list(inspect.signature(cuda).parameters)
    assert cpu.__doc__ and cuda.__doc__
    cuda_module = importlib.import_module(KERNELS[name].cuda)
    assert name in public_functions(cuda_module)


def test_cpu_use_loads_numba_late_and_cuda_never():
    program = (
        "import sys; import hybridmpi.kernels as kernels; assert 'numba' not in sys.modules; import numpy\n"
        "kernels.gather(numpy.zeros((2, 3), numpy.float32), numpy.arange(2)); assert 'numba' in sys.modules\n"
        "assert not [name for name in sys.modules if name.startswith(('numba.cuda', 'numba_cuda', 'cuda.'))]"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)


def test_device_arrays_get_the_cuda_form():
    pytest.importorskip("numba.cuda", reason="numba-cuda is not installed: pip install numba-cuda")
    on_device = SimpleNamespace(__cuda_array_interface__={})
    rows_cuda = importlib.import_module("hybridmpi.kernels.rows_cuda")
    assert kernels._cuda_form("gather", on_device) is rows_cuda.gather


def test_wrong_kinds_of_arguments_are_named():
    with pytest.raises(TypeError, match="kernel gather: the first argument is a list"):
        kernels.gather([[1.0]], [0])
    with pytest.raises(AttributeError, match="no kernel 'gahter'"):
        _ = kernels.gahter


def test_arrays_may_be_passed_by_name():
    table = np.arange(6, dtype=np.float32).reshape(3, 2)
    np.testing.assert_array_equal(kernels.gather(table=table, ids=np.array([2])), table[[2]])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_nonfinite_count(dtype):
    x = np.ones((3, 70), dtype)
    assert kernels.nonfinite_count(x) == 0
    x[0, 0], x[1, 5], x[2, 69] = np.nan, np.inf, -np.inf
    x[2, 0], x[2, 1] = np.finfo(dtype).max, np.finfo(dtype).smallest_subnormal
    assert kernels.nonfinite_count(x) == 3
    assert kernels.nonfinite_count(np.empty(0, dtype)) == 0
    assert kernels.nonfinite_count(np.full((), np.nan, dtype)) == 1


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_nonfinite_count_of_several_blocks(dtype):
    x = np.zeros(2 * check.BLOCK + 3, dtype)
    x[[0, check.BLOCK - 1, check.BLOCK, -1]] = np.nan, np.inf, -np.inf, np.nan
    assert kernels.nonfinite_count(x) == 4
    assert kernels.nonfinite_count(np.full_like(x, np.inf)) == len(x)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_count_beyond(dtype):
    x = np.zeros((2, check.BLOCK), dtype)
    x[0, :4] = 65504, -65504, np.nextafter(dtype(65504), dtype(np.inf)), np.nan
    x[1, -3:] = -65505, np.inf, -np.inf
    assert kernels.count_beyond(x, 65504) == 5
    assert kernels.count_beyond(x[:0], 65504) == 0
    assert kernels.count_beyond(x, 0.0) == 7


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_square_sum_is_in_float64(dtype):
    rng = np.random.default_rng(1)
    for shape in ((0, 3), (1,), (), (700, 3), (norm.BLOCK,)):
        x = np.asarray(rng.standard_normal(shape) * 1e30, dtype)
        expected = math.fsum(value * value for value in x.ravel().tolist())
        assert math.isclose(kernels.square_sum(x), expected, rel_tol=1e-14)
    assert kernels.square_sum(np.full(3, np.inf, dtype)) == np.inf
    assert math.isnan(kernels.square_sum(np.array([1, np.nan], dtype)))
