"""The order of row ids on the device: a stable argsort, unique ids with their inverse, and segments of equal ids.

Pairs (id, index) are packed into one int64, as in the CPU form, and sorted by the bits of the id. To pack and to unpack
them takes 40 bytes of memory traffic an id, beside the 36 of each pass (`radix_cuda`): for a table of 2^20 rows 148.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import cuda

from hybridmpi.kernels.device import cuda_kernel, launch, new_array
from hybridmpi.kernels.order import bits_for
from hybridmpi.kernels.radix_cuda import sort_words
from hybridmpi.kernels.scan_cuda import exclusive_scan

WORD_BITS = 63  # of an int64 that is not negative


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
    """Return `ids` int64[n] or int32[n] in [0, rows), sorted, and their stable order: both int64[n]. Local."""
    n = len(ids)
    index_bits, key_bits = bits_for(n), bits_for(rows)
    room = WORD_BITS - index_bits
    words, keys = new_array(ids, n), new_array(ids, n)
    launch(_pack, n, ids, rows, index_bits, words)
    sort_words(words, index_bits, index_bits + min(key_bits, room))
    for low in range(room, key_bits, room):  # 2^40 rows and 2^23 ids: no table of today
        launch(_pack_upper, n, ids, low, index_bits, words)
        sort_words(words, index_bits, index_bits + min(key_bits - low, room))
    launch(_unpack, n, ids, key_bits <= room, index_bits, words, keys)
    return keys, words


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


@cuda_kernel("void(int64[::1], int64, int64, int64[::1])", "void(int32[::1], int64, int64, int64[::1])")
def _pack(ids, rows, index_bits, words):
    for i in range(cuda.grid(1), len(ids), cuda.gridsize(1)):
        key = min(max(np.int64(ids[i]), -1), rows)  # one outside the table stays so when its upper bits are lost
        words[i] = (key << index_bits) | i


@cuda_kernel("void(int64[::1], int64, int64, int64[::1])", "void(int32[::1], int64, int64, int64[::1])")
def _pack_upper(ids, low, index_bits, words):
    for i in range(cuda.grid(1), len(words), cuda.gridsize(1)):
        index = words[i] & ((1 << index_bits) - 1)
        words[i] = ((np.int64(ids[index]) >> low) << index_bits) | index


@cuda_kernel(
    "void(int64[::1], boolean, int64, int64[::1], int64[::1])",
    "void(int32[::1], boolean, int64, int64[::1], int64[::1])",
)
def _unpack(ids, whole, index_bits, words, keys):
    for i in range(cuda.grid(1), len(words), cuda.gridsize(1)):
        index = words[i] & ((1 << index_bits) - 1)
        keys[i] = words[i] >> index_bits if whole else ids[index]
        words[i] = index


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
