"""Kernels: one name for each, the CPU form for numpy arrays and the CUDA form for device arrays.

The kind of the first array decides; arrays of one call are of one kind. numba is loaded when a kernel is first used,
numba.cuda when a device array first comes. Nothing here imports the rest of hybridmpi.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from typing import Any

import numpy as np

from hybridmpi.kernels.registry import KERNELS

__all__ = [  # noqa: F822 - loaded by __getattr__ on first use
    "adagrad_dense",
    "adagrad_rows",
    "adam_dense",
    "adam_rows",
    "add_bfloat16",
    "add_float16",
    "aggregate",
    "argsort_ids",
    "count_beyond",
    "from_bfloat16",
    "from_float16",
    "gather",
    "momentum_dense",
    "momentum_rows",
    "nonfinite_count",
    "normal_rows",
    "position_sums",
    "scatter",
    "scatter_add",
    "scatter_add_bags",
    "segment_sum",
    "sgd_dense",
    "sgd_rows",
    "square_sum",
    "to_bfloat16",
    "to_float16",
    "uniform_rows",
    "unique_inverse",
]


def __getattr__(name: str) -> Callable[..., Any]:
    if name not in KERNELS:
        raise AttributeError(f"module {__name__!r} has no kernel {name!r}; it has {', '.join(__all__)}")
    kernel = globals()[name] = _dispatcher(name)
    return kernel


def __dir__() -> list[str]:
    return __all__


def _dispatcher(name: str) -> Callable[..., Any]:
    """Return the kernel `name` as one function for all kinds of arrays."""
    cpu_form = getattr(importlib.import_module(KERNELS[name].cpu), name)

    @functools.wraps(cpu_form)
    def kernel(*arguments: Any, **options: Any) -> Any:
        first = arguments[0] if arguments else next(iter(options.values()), None)
        if isinstance(first, np.ndarray):
            return cpu_form(*arguments, **options)
        return _cuda_form(name, first)(*arguments, **options)

    return kernel


def _cuda_form(name: str, array: Any) -> Callable[..., Any]:
    """Return the CUDA form of kernel `name`; raise TypeError unless `array` lives on a device."""
    if not hasattr(array, "__cuda_array_interface__"):
        raise TypeError(
            f"kernel {name}: the first argument is a {type(array).__name__}, expected a numpy array or a "
            "CUDA device array; convert it with numpy.asarray"
        )
    return getattr(importlib.import_module(KERNELS[name].cuda), name)
