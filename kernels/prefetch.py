"""Asking the processor for rows of a table before they are needed: loops over scattered rows wait for memory less.

It only reads ahead, and changes no value. A hardware prefetcher follows lines that are neighbours; it cannot know which
row an index names next.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from hybridmpi.kernels.cpu import cpu_kernel

LINE_BYTES = 64
# So much is asked for ahead: whole rows of up to this size, the beginning of longer ones, whose rest the hardware finds
# by itself. Measured on rows of 256 B and 2 KiB: half and double are as good, an eighth is not.
AHEAD_BYTES = 2048
MOST_ROWS = 16


@cpu_kernel
def rows_ahead(table):
    """Return how many rows of `table` [*, d] before its turn to ask for a row."""
    return min(MOST_ROWS, max(1, AHEAD_BYTES // max(1, _row_bytes(table))))


@cpu_kernel
def ask_to_read(table, row):
    """Ask for row `row` of C-contiguous `table` [rows, d], 0 <= row < rows."""
    for offset in range(0, min(_row_bytes(table), AHEAD_BYTES), LINE_BYTES):
        _ask_to_read(table, row, offset)


@cpu_kernel
def ask_to_write(table, row):
    """Ask for row `row` of C-contiguous `table` [rows, d], 0 <= row < rows, to change it: no other cache keeps it."""
    for offset in range(0, min(_row_bytes(table), AHEAD_BYTES), LINE_BYTES):
        _ask_to_write(table, row, offset)


@intrinsic
def _row_bytes(typing_context: Any, table: Any) -> Any:
    """Return the bytes of a row: `table.itemsize` would be loaded and divided by at run time."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        array = context.make_array(signature.args[0])(context, builder, arguments[0])
        size = context.get_abi_sizeof(context.get_data_type(signature.args[0].dtype))
        return builder.mul(cgutils.unpack_tuple(builder, array.shape)[1], ir.IntType(64)(size))

    return types.int64(table), generate


def _asker(to_write: bool) -> Any:
    """Return a function of compiled code that asks for the cache line at a byte of a row of a table."""

    @intrinsic
    def ask(typing_context: Any, table: Any, row: Any, offset: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            array = context.make_array(signature.args[0])(context, builder, arguments[0])
            start = builder.mul(arguments[1], cgutils.unpack_tuple(builder, array.strides)[0])
            pointer = builder.bitcast(array.data, cgutils.voidptr_t)
            pointer = builder.gep(pointer, [builder.add(start, arguments[2])])
            number = ir.IntType(32)
            function_type = ir.FunctionType(ir.VoidType(), [cgutils.voidptr_t, number, number, number])
            function = cgutils.get_or_insert_function(builder.module, function_type, "llvm.prefetch.p0i8")
            # To write or not; 3: into all levels of cache; 1: data.
            builder.call(function, [pointer, number(int(to_write)), number(3), number(1)])
            return context.get_dummy_value()

        return types.void(table, types.int64, types.int64), generate

    return ask


_ask_to_read, _ask_to_write = _asker(False), _asker(True)
