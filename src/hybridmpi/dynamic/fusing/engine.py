"""Kernels compiled by LLVM, as numba brings it along, and kept in memory."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from functools import cache
from typing import Any

import llvmlite.binding as llvm
import numpy as np

from hybridmpi.dynamic.fusing import products
from hybridmpi.dynamic.fusing.kernel import NAME, as_text
from hybridmpi.dynamic.fusing.program import Store, Value

Kernel = Callable[[int, int, int], None]

_SIGNATURE = ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.c_int64, ctypes.c_int64)
_LIBM = ("exp", "expf", "log", "logf", "pow", "powf", "tanh", "tanhf", "fma", "fmaf")
_kernels: dict[tuple[Any, ...], tuple[Any, llvm.ExecutionEngine]] = {}
_lock = threading.Lock()


def compile_kernel(width: int, dtype: Any, values: tuple[Value, ...], stores: tuple[Store, ...]) -> Kernel:
    """Return kernel(first, last, table), which runs the program on the rows first <= r < last. Local.

    table: `table_address` of the addresses of all buffers and index arrays, which have to stay where they are.

    Rows are done one after the other. Within a row, blocks of columns are (16 of float32, 1 of float64); within a
    block all that is read, other than by stores that add, is read first; then the stores follow in the order given.
    So a row sees what earlier rows wrote, and one row can be added to several times. What a row reads and writes has
    to be the same columns, or apart.

    The same program gives the same kernel. Raises ValueError for one that cannot be compiled.
    """
    key = (width, np.dtype(dtype), values, stores)
    return compiled(key, lambda: as_text(*key))


def compile_product(dtype: Any, product: products.Product | products.Gradient) -> Kernel:
    """Return kernel(first, last, table), as `compile_kernel`, of a product of a few rows with a matrix. Local."""
    return compiled((np.dtype(dtype), product), lambda: products.as_text(dtype, product))


def address_of_kernel(kernel: Kernel) -> int:
    """Return where a kernel's code lies. Local."""
    return ctypes.cast(kernel, ctypes.c_void_p).value


def compiled(key: tuple[Any, ...], text: Callable[[], str], signature: Any = _SIGNATURE) -> Any:
    """Return the function of LLVM text, written and compiled the first time that its key is asked for. Local."""
    with _lock:  # threads that prepare batches may get here too
        if key not in _kernels:
            _kernels[key] = compile_text(text(), _machine(), signature)
        return _kernels[key][0]


def table_address(table: np.ndarray) -> int:
    """Return the address of a table of addresses, int64 contiguous, which has to live as long as it is used. Local."""
    if table.dtype != np.int64 or not table.flags.c_contiguous:
        raise ValueError(f"a table of addresses has to be int64 and contiguous, not {table.dtype}")
    return table.ctypes.data


def compile_text(
    text: str, machine: llvm.TargetMachine, signature: Any = _SIGNATURE
) -> tuple[Any, llvm.ExecutionEngine]:
    """Return the kernel of LLVM text, and the engine that has to outlive it and takes the machine over. Local."""
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(text), machine)
    engine.finalize_object()
    return signature(engine.get_function_address(NAME)), engine


@cache
def _prepare() -> None:
    """Make LLVM ready for this machine, and show it the functions of libm, which Python itself is linked with."""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    process = ctypes.CDLL(None)
    for name in _LIBM:
        llvm.add_symbol(name, ctypes.cast(getattr(process, name), ctypes.c_void_p).value)


def target_machine(cpu: str, features: str) -> llvm.TargetMachine:
    """Return what LLVM compiles for: this kind of processor, with the features named. Local."""
    _prepare()
    target = llvm.Target.from_default_triple()
    return target.create_target_machine(cpu=cpu, features=features, opt=3, jit=True)


def _machine() -> llvm.TargetMachine:
    """Return this machine; a new one each time, since an engine takes it over."""
    return target_machine(llvm.get_host_cpu_name(), llvm.get_host_cpu_features().flatten())
