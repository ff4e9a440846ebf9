"""The loops of the sum over a node: whose rows belong together, and their sums, straight into a message.

All of them read one window of shared memory by positions in it: words where numbers lie, rows where values lie.
"""

from __future__ import annotations

import numpy as np
from numba import njit


@njit(nogil=True, cache=True)
def collect(words, keys, counts, places, firsts):
    """Return (numbers, rows, ranks), each [n], of all ranks' rows, in the order of the ranks. Local.

    Rank r's local row numbers are the `counts[r]` of `words` [*] from `keys[r]` on, ascending; what belongs to number i
    is row `firsts[r]` + `words[places[r] + i]` of the window.
    """
    size = counts.sum()
    numbers, rows, ranks = np.empty(size, np.int64), np.empty(size, np.int64), np.empty(size, np.int64)
    at = 0
    for r in range(counts.size):
        key, place, first = keys[r], places[r], firsts[r]
        for i in range(counts[r]):
            numbers[at], rows[at], ranks[at] = words[key + i], first + words[place + i], r
            at += 1
    return numbers, rows, ranks


@njit(nogil=True, cache=True)
def group(numbers, rows, ranks, order):
    """Return (different numbers [u]; where each one's rows begin, [u + 1]; rows [n] and ranks [n] in that order), given
    the stable `order` of the numbers. Local."""
    size = numbers.size
    different, starts = np.empty(size, np.int64), np.empty(size + 1, np.int64)
    sorted_rows, sorted_ranks = np.empty(size, np.int64), np.empty(size, np.int64)
    unique, last = 0, -1
    for i in range(size):
        place = order[i]
        number = numbers[place]
        if number != last:
            different[unique] = last = number
            starts[unique] = i
            unique += 1
        sorted_rows[i], sorted_ranks[i] = rows[place], ranks[place]
    starts[unique] = size
    return different[:unique], starts[: unique + 1], sorted_rows, sorted_ranks


@njit(nogil=True, cache=True)
def sum_rows(values, starts, rows, ranks, scale, first, out):
    """Put sums `first`, `first` + 1, ... into `out` [n, d]: of each number's rows of `values` [*, d], a rank's times
    `scale[rank]`, added in the order of the ranks. Local."""
    for j in range(len(out)):
        begin, end = starts[first + j], starts[first + j + 1]
        total, row, by = out[j], values[rows[begin]], scale[ranks[begin]]
        for c in range(len(total)):
            total[c] = by * row[c]
        for i in range(begin + 1, end):
            row, by = values[rows[i]], scale[ranks[i]]
            for c in range(len(total)):
                total[c] += by * row[c]


@njit(nogil=True, cache=True)
def take(words, key, count, values, first, local, places, found, out):
    """Put what is found of rows `local` [n] into `out[places[i]]` [*, d], and say so in `found` bool[n]. Local.

    The `count` ascending row numbers from word `key` on are there: number i's row is `values[first + i]`, of [*, d].
    """
    start, last = 0, -1
    for i in range(local.size):
        number = local[i]
        # Mostly ascending: then what comes before the last one need not be searched again.
        low, high = (start if number > last else 0), count
        while low < high:
            middle = (low + high) >> 1
            if words[key + middle] < number:
                low = middle + 1
            else:
                high = middle
        start, last = low, number
        if low < count and words[key + low] == number:
            row, target = values[first + low], out[places[i]]
            for c in range(len(row)):
                target[c] = row[c]
            found[i] = True
