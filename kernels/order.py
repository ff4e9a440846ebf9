"""The order of row ids on the CPU: a stable radix argsort, and unique ids with their inverse.

Ids are int64 in [0, rows); they were checked before they came here (numba would wrap a negative index silently).
"""

from __future__ import annotations

import numpy as np

from hybridmpi.kernels.cpu import cpu_kernel

# A digit of 11 bits has 2,048 counters (16 KiB): they stay in a 48 KiB L1 cache beside the data. For few ids, clearing
# and scanning the counters is what costs, so the digits are shorter.
WIDE_DIGIT, NARROW_DIGIT, FEW_IDS = 11, 8, 1024
# Measured crossover: sweeping one bit per row beats sorting up to about this many rows for each id.
ROWS_PER_ID_FOR_BITMAP = 128

ONE, SIX, LOW_SIX = np.uint64(1), np.uint64(6), np.uint64(63)


def argsort_ids(ids: np.ndarray, rows: int) -> np.ndarray:
    """Return the stable order of `ids` int64[n] in [0, rows): int64[n]. Local.

    Least-significant-digit radix sort; equal ids keep the order in which they came.
    """
    index_bits, key_bits = bits_for(len(ids)), bits_for(rows)
    if index_bits + key_bits > 63:  # 2^40 rows and 2^23 ids: no table of today
        return np.argsort(ids, kind="stable")
    return _unpack_order(_radix_sort(ids, key_bits, index_bits), index_bits)


def unique_inverse(ids: np.ndarray, rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the sorted unique `ids` int64[u] and where each id lies among them, int64[n]. Local.

    `ids` int64[n] in [0, rows). `unique[inverse]` equals `ids`. Marks the ids in a bitmap and counts the bits before
    each one; sorts instead where the table has far more rows than there are ids.
    """
    if rows <= ROWS_PER_ID_FOR_BITMAP * len(ids):
        return _unique_by_bitmap(ids, rows)
    index_bits, key_bits = bits_for(len(ids)), bits_for(rows)
    if index_bits + key_bits > 63:
        return np.unique(ids, return_inverse=True)
    return _unique_by_sort(_radix_sort(ids, key_bits, index_bits), index_bits)


def bits_for(count: int) -> int:
    """Return how many bits the numbers in [0, count) need, at least 1."""
    return max(1, (count - 1).bit_length())


@cpu_kernel
def _radix_sort(ids, key_bits, index_bits):
    """Return the pairs (id, index) sorted, each packed into one int64: half the memory traffic of two arrays."""
    n = len(ids)
    passes = -(-key_bits // (NARROW_DIGIT if n < FEW_IDS else WIDE_DIGIT))
    digit_bits = -(-key_bits // passes)
    mask = (1 << digit_bits) - 1
    ends = np.zeros((passes, 1 << digit_bits), np.int64)
    for i in range(n):
        key = ids[i]
        for p in range(passes):
            ends[p, (key >> (p * digit_bits)) & mask] += 1
    for p in range(passes):
        total = 0
        for digit in range(1 << digit_bits):
            count = ends[p, digit]
            ends[p, digit] = total
            total += count
    source, target = np.empty(n, np.int64), np.empty(n, np.int64)
    for i in range(n):  # the first pass packs as it goes
        digit = ids[i] & mask
        target[ends[0, digit]] = (ids[i] << index_bits) | i
        ends[0, digit] += 1
    for p in range(1, passes):
        source, target = target, source
        shift = index_bits + p * digit_bits
        for i in range(n):
            digit = (source[i] >> shift) & mask
            target[ends[p, digit]] = source[i]
            ends[p, digit] += 1
    return target


@cpu_kernel
def _unpack_order(pairs, index_bits):
    """Return the indices of sorted packed pairs; overwrites them."""
    mask = (1 << index_bits) - 1
    for i in range(len(pairs)):
        pairs[i] &= mask
    return pairs


@cpu_kernel
def _unique_by_sort(pairs, index_bits):
    n = len(pairs)
    mask = (1 << index_bits) - 1
    unique, inverse = np.empty(n, np.int64), np.empty(n, np.int64)
    count, last = 0, -1
    for i in range(n):
        key = pairs[i] >> index_bits
        if key != last:
            unique[count] = last = key
            count += 1
        inverse[pairs[i] & mask] = count - 1
    return unique[:count].copy(), inverse


@cpu_kernel
def _population(word):
    """Return the number of set bits of a uint64: LLVM turns this classic into one popcnt."""
    word -= (word >> ONE) & np.uint64(0x5555555555555555)
    word = (word & np.uint64(0x3333333333333333)) + ((word >> np.uint64(2)) & np.uint64(0x3333333333333333))
    word = (word + (word >> np.uint64(4))) & np.uint64(0x0F0F0F0F0F0F0F0F)
    return np.int64((word * np.uint64(0x0101010101010101)) >> np.uint64(56))


@cpu_kernel
def _unique_by_bitmap(ids, rows):
    n = len(ids)
    words = np.zeros((rows + 63) >> 6, np.uint64)
    for i in range(n):
        key = np.uint64(ids[i])  # unsigned: an index that cannot be negative needs no test for it
        words[key >> SIX] |= ONE << (key & LOW_SIX)
    before = np.empty(len(words), np.int64)
    count = 0
    for w in range(len(words)):
        before[w] = count
        count += _population(words[w])
    unique, inverse = np.empty(count, np.int64), np.empty(n, np.int64)
    position = 0
    for w in range(len(words)):
        word = words[w]
        while word:
            below = (word & (~word + ONE)) - ONE  # ones under the lowest set bit
            unique[position] = (w << 6) + _population(below)
            position += 1
            word &= word - ONE
    for i in range(n):
        key = np.uint64(ids[i])
        w = key >> SIX
        below = (ONE << (key & LOW_SIX)) - ONE
        inverse[i] = before[w] + _population(words[w] & below)
    return unique, inverse
