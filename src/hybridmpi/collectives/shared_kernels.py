"""The loops of the shared-memory all-reduce: each a compiled call that does as much as it can without waiting long.

A loop that has to wait polls `polls` times and then returns where it stands; called again with that, it goes on. So a
rank never spins for longer than that inside, and its caller can sleep, or serve, between calls.

Inner loops run over whole slices: with an index that starts anywhere the compiler must allow for negative ones, and
does not use vector instructions, which cost a factor of five.
"""

from __future__ import annotations

import numba
import numpy as np
from numba import njit

from hybridmpi.collectives.flags import LINE, all_reached, pointer, store_release

# Elements that are summed at once: the sums of a block stay in the first-level cache while rank after rank is added.
BLOCK = 2048

# The words of the state of `small`.
EPOCH, SLOTS, SLOT_BYTES, FLAGS, LINES, RANKS, RANK, WORDS = range(8)

# What fits into a cache line beside a flag.
TINY_BYTES = 56


@njit(nogil=True, cache=True)
def slice_of(length, ranks, rank):
    """Return (start, stop) of a rank's slice of `length` elements; sizes differ by at most one."""
    size = length // ranks
    larger = length - size * ranks
    start = rank * size + min(rank, larger)
    return start, start + size + (1 if rank < larger else 0)


@njit(nogil=True, cache=True)
def _copy(source, target):
    for i in range(target.size):
        target[i] = source[i]


@njit(nogil=True, cache=True)
def _sum_two(a, b, total):
    for i in range(total.size):
        total[i] = a[i] + b[i]


@njit(nogil=True, cache=True)
def _sum_three(a, b, c, total):
    for i in range(total.size):
        total[i] = a[i] + b[i] + c[i]


@njit(nogil=True, cache=True)
def _sum_four(a, b, c, d, total):
    for i in range(total.size):
        total[i] = a[i] + b[i] + c[i] + d[i]


@njit(nogil=True, cache=True)
def sum_block(rows, start, stop, total):
    """Put the sum over the rows of elements [start, stop), added in the order of the rows, into `total`, which may be
    part of a row."""
    ranks = rows.shape[0]
    a, b = rows[0, start:stop], rows[1, start:stop]
    if ranks == 2:
        _sum_two(a, b, total)
        return
    c = rows[2, start:stop]
    if ranks == 3:
        _sum_three(a, b, c, total)
        return
    _sum_four(a, b, c, rows[3, start:stop], total)
    for rank in range(4, ranks):
        _sum_two(total, rows[rank, start:stop], total)


@njit(nogil=True, cache=True)
def _scale(a, weight, total):
    for i in range(total.size):
        total[i] = a[i] * weight


@njit(nogil=True, cache=True)
def _add_scaled(a, weight, total):
    for i in range(total.size):
        total[i] += a[i] * weight


@njit(nogil=True, cache=True)
def weighted_sum_block(rows, weights, start, stop, total):
    """The same with each row times its weight; `total` is no part of a row."""
    _scale(rows[0, start:stop], weights[0], total)
    for rank in range(1, rows.shape[0]):
        _add_scaled(rows[rank, start:stop], weights[rank], total)


@njit(nogil=True, cache=True)
def weighted_sum_into(rows, weights, start, stop, target):
    """Put the sum over the rows, each times its weight, of elements [start, stop) into row `target`."""
    if rows.shape[0] == 1:
        if weights[0] != 1:
            _scale(rows[0, start:stop], weights[0], rows[0, start:stop])
        return
    sums = np.empty(BLOCK, rows.dtype)
    for begin in range(start, stop, BLOCK):
        end = min(begin + BLOCK, stop)
        weighted_sum_block(rows, weights, begin, end, sums[: end - begin])
        _copy(sums[: end - begin], rows[target, begin:end])


@njit(nogil=True, cache=True)
def spread(rows, start, stop, source):
    """Copy elements [start, stop) of row `source` to all other rows."""
    for other in range(rows.shape[0]):
        if other != source:
            _copy(rows[source, start:stop], rows[other, start:stop])


@njit(nogil=True, cache=True)
def _sum_two_and_spread(a, b):
    for i in range(a.size):
        total = a[i] + b[i]
        a[i] = total
        b[i] = total


@njit(nogil=True, cache=True)
def sum_and_spread(rows, start, stop):
    """Replace elements [start, stop) of every row by their sum over the rows, in one pass through memory."""
    if rows.shape[0] == 2:
        _sum_two_and_spread(rows[0, start:stop], rows[1, start:stop])
        return
    sums = np.empty(BLOCK, rows.dtype)
    for begin in range(start, stop, BLOCK):
        end = min(begin + BLOCK, stop)
        total = sums[: end - begin]
        sum_block(rows, begin, end, total)
        for rank in range(rows.shape[0]):
            _copy(total, rows[rank, begin:end])


@njit(nogil=True, cache=True)
def _weighted_two_and_spread(a, b, wa, wb):
    for i in range(a.size):
        total = a[i] * wa + b[i] * wb
        a[i] = total
        b[i] = total


@njit(nogil=True, cache=True)
def weighted_sum_and_spread(rows, weights, start, stop):
    """The same with each row times its weight."""
    if rows.shape[0] == 2:
        _weighted_two_and_spread(rows[0, start:stop], rows[1, start:stop], weights[0], weights[1])
        return
    sums = np.empty(BLOCK, rows.dtype)
    for begin in range(start, stop, BLOCK):
        end = min(begin + BLOCK, stop)
        total = sums[: end - begin]
        weighted_sum_block(rows, weights, begin, end, total)
        for rank in range(rows.shape[0]):
            _copy(total, rows[rank, begin:end])


@njit(nogil=True, cache=True)
def direct(rows, flags, first, stride, rank, epoch, polls, stage):
    """All-reduce of buffers that lie in shared memory, one row per rank. Return the stage: 2 is done; start at 0.

    Every rank sums one slice straight from its peers' buffers and writes the sums back into all of them. The flags of
    rank r: first + r stride says that its buffer is full, the line after it that its slice is summed.
    """
    ranks = rows.shape[0]
    if stage == 0:
        store_release(flags, first + rank * stride, epoch)
        if not all_reached(flags, first, stride, ranks, epoch, polls):
            return 0
        start, stop = slice_of(rows.shape[1], ranks, rank)
        sum_and_spread(rows, start, stop)
        store_release(flags, first + rank * stride + LINE, epoch)
    return 2 if all_reached(flags, first + LINE, stride, ranks, epoch, polls) else 1


@njit(nogil=True, cache=True)
def small(buffer, state, polls):
    """All-reduce of a buffer [n] by way of slots [2, p, s] that every rank reads all of. Return whether it is done;
    called again it goes on.

    One wait instead of two: consecutive calls use the two halves of the slots in turn. `state` [WORDS]: the epoch of
    the last call, positive when it was finished; the rest as in the constants.
    """
    ranks, rank = state[RANKS], state[RANK]
    started = state[EPOCH] < 0
    epoch = -state[EPOCH] if started else state[EPOCH] + 1
    if buffer.size * buffer.itemsize <= TINY_BYTES:
        # Flag and data in one line, which moves from core to core at once.
        words = LINE * 8 // buffer.itemsize
        lines = numba.carray(pointer(state[LINES]), (2, ranks, words), buffer.dtype)
        flags = numba.carray(pointer(state[LINES]), (2 * ranks * LINE,), np.int64)
        half, first = lines[epoch & 1, :, 8 // buffer.itemsize :], (epoch & 1) * ranks * LINE
    else:
        slots = numba.carray(pointer(state[SLOTS]), (2, ranks, state[SLOT_BYTES] // buffer.itemsize), buffer.dtype)
        flags = numba.carray(pointer(state[FLAGS]), (ranks * LINE,), np.int64)
        half, first = slots[epoch & 1, :, 0:], 0
    if not started:
        _copy(buffer, half[rank, : buffer.size])
        store_release(flags, first + rank * LINE, epoch)
    if not all_reached(flags, first, LINE, ranks, epoch, polls):
        state[EPOCH] = -epoch
        return False
    sum_block(half, 0, buffer.size, buffer)
    state[EPOCH] = epoch
    return True


# Polls of a small sum before it goes back to Python: a few microseconds, in which it keeps Python's lock.
QUICK_POLLS = 200


@njit(cache=True)
def _small_float32(about):
    words = numba.carray(pointer(about), (3,), np.int64)
    buffer = numba.carray(pointer(words[0]), (words[1],), np.float32)
    return small(buffer, numba.carray(pointer(words[2]), (WORDS,), np.int64), QUICK_POLLS)


@njit(cache=True)
def _small_float64(about):
    words = numba.carray(pointer(about), (3,), np.int64)
    buffer = numba.carray(pointer(words[0]), (words[1],), np.float64)
    return small(buffer, numba.carray(pointer(words[2]), (WORDS,), np.int64), QUICK_POLLS)


# The same by an address, of three int64: the addresses of the buffer, its length, the address of the state.
SMALL = {"float32": _small_float32, "float64": _small_float64}


@njit(nogil=True, cache=True)
def chunked(buffer, slots, sums, flags, rank, epoch, polls, position):
    """All-reduce of a private buffer [n] in chunks, by way of slots [2, p, c] and sums [2, c]. Return the position, -1
    when done. Start at 0; chunk k has the epoch `epoch` + k.

    The ranks copy a chunk in, each sums its slice of it, all copy the sums out. The next chunk is copied in before the
    sums of this one are waited for, so that nobody is idle in between; the halves of slots and sums are used in turn.
    """
    ranks, size = slots.shape[1], slots.shape[2]
    length = buffer.size
    chunks = (length + size - 1) // size
    if position == 0:
        end = min(size, length)
        _copy(buffer[:end], slots[epoch & 1, rank, :end])
        store_release(flags, rank * LINE, epoch)
        position = 1
    while position <= 2 * chunks:
        chunk = (position - 1) // 2
        now = epoch + chunk
        start = chunk * size
        stop = min(start + size, length)
        if position % 2 == 1:
            if not all_reached(flags, 0, LINE, ranks, now, polls):
                return position
            first, last = slice_of(stop - start, ranks, rank)
            sum_block(slots[now & 1], first, last, sums[now & 1, first:last])
            store_release(flags, (ranks + rank) * LINE, now)
            if stop < length:
                end = min(stop + size, length)
                _copy(buffer[stop:end], slots[(now + 1) & 1, rank, : end - stop])
                store_release(flags, rank * LINE, now + 1)
        else:
            if not all_reached(flags, ranks * LINE, LINE, ranks, now, polls):
                return position
            _copy(sums[now & 1, : stop - start], buffer[start:stop])
        position += 1
    return -1
