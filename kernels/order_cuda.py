"""The order of row ids on the device: a stable radix argsort, unique ids with their inverse, and segments of equal ids.

No atomics: a thread owns a contiguous chunk of the input and a column of the counters [digit][thread], whose exclusive
scan says where the thread's keys of each digit go. Hence the sort is stable and the same on every run.
"""

from __future__ import annotations

from typing import Any

from numba import cuda, int64

from hybridmpi.kernels.device import THREADS, cuda_kernel, launch, new_array
from hybridmpi.kernels.scan_cuda import exclusive_scan

DIGIT_BITS = 4
DIGITS = 1 << DIGIT_BITS
CHUNK = 16  # keys of a thread, until MAX_SORTERS threads are at work; then chunks grow
MAX_SORTERS = 16384


def argsort_ids(ids: Any, rows: int) -> Any:
    """CUDA form of `order.argsort_ids`."""
    return sort_ids(ids, rows)[1]


def unique_inverse(ids: Any, rows: int) -> tuple[Any, Any]:
    """CUDA form of `order.unique_inverse`; waits for the device to learn how many ids are unique."""
    keys, order = sort_ids(ids, rows)
    unique, _, numbers = find_segments(keys)
    inverse = new_array(ids, len(ids))
    launch(_write_inverse, len(ids), order, numbers, inverse)
    return unique, inverse


def sort_ids(ids: Any, rows: int) -> tuple[Any, Any]:
    """Return `ids` int64[n] in [0, rows), sorted, and their stable order int64[n]. Local."""
    n = len(ids)
    sorters = min(-(-n // CHUNK), MAX_SORTERS)
    keys, order = new_array(ids, n), new_array(ids, n)
    next_keys, next_order = new_array(ids, n), new_array(ids, n)
    launch(_start_order, n, ids, keys, order)
    counts = new_array(ids, DIGITS * sorters)
    for shift in range(0, max(1, (rows - 1).bit_length()), DIGIT_BITS):
        launch(_count_digits, sorters, keys, shift, counts)
        exclusive_scan(counts)
        launch(_move_by_digit, sorters, keys, order, shift, counts, next_keys, next_order)
        keys, order, next_keys, next_order = next_keys, next_order, keys, order
    return keys, order


def find_segments(keys: Any) -> tuple[Any, Any, Any]:
    """Return unique keys int64[u], segment starts int64[u + 1] and `numbers` int64[n + 1] of sorted `keys`. Local.

    Key i lies in segment numbers[i + 1] - 1. Waits for the device, since u decides the sizes.
    """
    n = len(keys)
    numbers = new_array(keys, n + 1)
    launch(_mark_heads, n + 1, keys, numbers)
    exclusive_scan(numbers)
    count = int(numbers[n])
    unique, starts = new_array(keys, count), new_array(keys, count + 1)
    launch(_write_segments, n + 1, keys, numbers, unique, starts)
    return unique, starts, numbers


@cuda_kernel("void(int64[::1], int64[::1], int64[::1])")
def _start_order(ids, keys, order):
    for i in range(cuda.grid(1), len(ids), cuda.gridsize(1)):
        keys[i] = ids[i]
        order[i] = i


@cuda_kernel("void(int64[::1], int64, int64[::1])")
def _count_digits(keys, shift, counts):
    own = cuda.shared.array((DIGITS, THREADS), int64)  # a column for each thread: no bank conflicts, no barriers
    t = cuda.threadIdx.x
    sorters = len(counts) // DIGITS
    chunk = (len(keys) + sorters - 1) // sorters
    for sorter in range(cuda.grid(1), sorters, cuda.gridsize(1)):
        for digit in range(DIGITS):
            own[digit, t] = 0
        for i in range(sorter * chunk, min((sorter + 1) * chunk, len(keys))):
            own[(keys[i] >> shift) & (DIGITS - 1), t] += 1
        for digit in range(DIGITS):
            counts[digit * sorters + sorter] = own[digit, t]


@cuda_kernel("void(int64[::1], int64[::1], int64, int64[::1], int64[::1], int64[::1])")
def _move_by_digit(keys, order, shift, offsets, next_keys, next_order):
    own = cuda.shared.array((DIGITS, THREADS), int64)
    t = cuda.threadIdx.x
    sorters = len(offsets) // DIGITS
    chunk = (len(keys) + sorters - 1) // sorters
    for sorter in range(cuda.grid(1), sorters, cuda.gridsize(1)):
        for digit in range(DIGITS):
            own[digit, t] = offsets[digit * sorters + sorter]
        for i in range(sorter * chunk, min((sorter + 1) * chunk, len(keys))):
            digit = (keys[i] >> shift) & (DIGITS - 1)
            target = own[digit, t]
            next_keys[target] = keys[i]
            next_order[target] = order[i]
            own[digit, t] = target + 1


@cuda_kernel("void(int64[::1], int64[::1])")
def _mark_heads(keys, heads):
    for i in range(cuda.grid(1), len(heads), cuda.gridsize(1)):
        if i == len(keys):
            heads[i] = 0
        else:
            heads[i] = 1 if i == 0 or keys[i] != keys[i - 1] else 0


@cuda_kernel("void(int64[::1], int64[::1], int64[::1], int64[::1])")
def _write_segments(keys, numbers, unique, starts):
    for i in range(cuda.grid(1), len(numbers), cuda.gridsize(1)):
        if i == len(keys):
            starts[numbers[i]] = i
        elif numbers[i + 1] != numbers[i]:
            unique[numbers[i]] = keys[i]
            starts[numbers[i]] = i


@cuda_kernel("void(int64[::1], int64[::1], int64[::1])")
def _write_inverse(order, numbers, inverse):
    for i in range(cuda.grid(1), len(order), cuda.gridsize(1)):
        inverse[order[i]] = numbers[i + 1] - 1
