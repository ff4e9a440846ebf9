"""The loops of the sum over a node: the ranks' sorted row numbers merged, and their rows added straight into a message.

All of them read one window of shared memory by positions in it: as int64 where numbers lie, as floats where rows lie.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from hybridmpi.collectives.flags import signal

__all__ = ["merge", "signal", "sum_rows"]


@njit(nogil=True, cache=True)
def merge(words, keys, counts, places, rows, width, merged, sources, ranks, starts):
    """Merge the ranks' sorted row numbers; return how many are different. Local.

    Rank r's numbers are the `counts[r]` of `words` [*] from `keys[r]` on; the row of number i stands at
    `rows[r]` + `width` * `words[places[r] + i]`, in elements. Fills `merged` [u] with the different numbers,
    `sources` [n] with where the rows of each stand and `ranks` [n] with whose they are, in the order of the ranks,
    and `starts` [u + 1], where each one's begin.
    """
    heads = np.zeros(counts.size, np.int64)
    nothing = np.iinfo(np.int64).max
    now = np.full(counts.size, nothing)
    for r in range(counts.size):
        if counts[r]:
            now[r] = words[keys[r]]
    unique = filled = 0
    while True:
        least = nothing
        for r in range(counts.size):
            least = min(least, now[r])
        if least == nothing:
            break
        merged[unique] = least
        starts[unique] = filled
        unique += 1
        for r in range(counts.size):
            if now[r] == least:
                sources[filled] = rows[r] + width * words[places[r] + heads[r]]
                ranks[filled] = r
                filled += 1
                heads[r] += 1
                now[r] = words[keys[r] + heads[r]] if heads[r] < counts[r] else nothing
    starts[unique] = filled
    return unique


@njit(nogil=True, cache=True)
def _scale(a, by, total):
    for c in range(total.size):
        total[c] = by * a[c]


@njit(nogil=True, cache=True)
def _sum_two(a, by, b, other, total):
    for c in range(total.size):
        total[c] = by * a[c] + other * b[c]


@njit(nogil=True, cache=True)
def _add(a, by, total):
    for c in range(total.size):
        total[c] += by * a[c]


@njit(nogil=True, cache=True)
def sum_rows(flat, sources, ranks, starts, scale, first, out):
    """Put the sums of rows `first`, `first` + 1, ... of a merge into `out` [n, d]: each rank's row times `scale[rank]`,
    added in the order of the ranks. `flat` [*]: the window as values. Local."""
    width = out.shape[1]
    for j in range(out.shape[0]):
        begin, end = starts[first + j], starts[first + j + 1]
        at = sources[begin]
        a, by, total = flat[at : at + width], scale[ranks[begin]], out[j]
        if end == begin + 1:
            _scale(a, by, total)
            continue
        at = sources[begin + 1]
        _sum_two(a, by, flat[at : at + width], scale[ranks[begin + 1]], total)
        for i in range(begin + 2, end):
            at = sources[i]
            _add(flat[at : at + width], scale[ranks[i]], total)
