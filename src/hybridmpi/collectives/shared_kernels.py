"""The loops of the shared-memory all-reduce: each a compiled call that does as much as it can without waiting long.

A loop that has to wait polls `polls` times and then returns where it stands; called again with that, it goes on. So a
rank never spins for longer than that inside, and its caller can sleep, or serve, between calls.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from hybridmpi.collectives.flags import LINE, load_acquire, sched_yield, store_release

# Polls between two offers of the core to another process.
POLLS_PER_YIELD = 16

# Elements that are summed at once: the sums of a block stay in the first-level cache while rank after rank is added.
BLOCK = 2048


@njit(nogil=True, cache=True)
def all_reached(flags, first, ranks, epoch, polls):
    """Return whether flags first .. first + ranks - 1 have reached `epoch`, polling up to `polls` times."""
    for poll in range(polls):
        missing = False
        for rank in range(ranks):
            if load_acquire(flags, (first + rank) * LINE) < epoch:
                missing = True
                break
        if not missing:
            return True
        if poll % POLLS_PER_YIELD == POLLS_PER_YIELD - 1:
            sched_yield()
    return False


@njit(nogil=True, cache=True)
def slice_of(length, ranks, rank):
    """Return (start, stop) of a rank's slice of `length` elements; sizes differ by at most one."""
    size = length // ranks
    larger = length - size * ranks
    start = rank * size + min(rank, larger)
    return start, start + size + (1 if rank < larger else 0)


@njit(nogil=True, cache=True)
def sum_into(rows, start, stop, target):
    """Put the sum over the rows of elements [start, stop), added in the order of the rows, into row `target`."""
    ranks = rows.shape[0]
    first, second, total = rows[0], rows[1], rows[target]
    if ranks == 2:
        for i in range(start, stop):
            total[i] = first[i] + second[i]
        return
    sums = np.empty(BLOCK, rows.dtype)
    for begin in range(start, stop, BLOCK):
        count = min(BLOCK, stop - begin)
        for i in range(count):
            sums[i] = first[begin + i] + second[begin + i]
        for other in range(2, ranks):
            row = rows[other]
            for i in range(count):
                sums[i] += row[begin + i]
        for i in range(count):
            total[begin + i] = sums[i]


@njit(nogil=True, cache=True)
def spread(rows, start, stop, source):
    """Copy elements [start, stop) of row `source` to all other rows."""
    total = rows[source]
    for other in range(rows.shape[0]):
        if other != source:
            row = rows[other]
            for i in range(start, stop):
                row[i] = total[i]


@njit(nogil=True, cache=True)
def sum_and_spread(rows, start, stop, rank):
    """Replace elements [start, stop) of every row by their sum over the rows, in one pass through memory."""
    if rows.shape[0] == 2:
        first, second = rows[0], rows[1]
        for i in range(start, stop):
            total = first[i] + second[i]
            first[i] = total
            second[i] = total
        return
    for begin in range(start, stop, BLOCK):
        end = min(begin + BLOCK, stop)
        sum_into(rows, begin, end, rank)
        spread(rows, begin, end, rank)


@njit(nogil=True, cache=True)
def direct(rows, flags, rank, epoch, polls, stage):
    """All-reduce of buffers that lie in shared memory, one row per rank. Return the stage: 2 is done; start at 0.

    Every rank sums one slice straight from its peers' buffers and writes the sums back into all of them.
    """
    ranks = rows.shape[0]
    if stage == 0:
        store_release(flags, rank * LINE, epoch)
        if not all_reached(flags, 0, ranks, epoch, polls):
            return 0
        start, stop = slice_of(rows.shape[1], ranks, rank)
        sum_and_spread(rows, start, stop, rank)
        store_release(flags, (ranks + rank) * LINE, epoch)
    return 2 if all_reached(flags, ranks, ranks, epoch, polls) else 1


@njit(nogil=True, cache=True)
def signal(flags, index, epoch):
    """Set a flag, after everything this rank has written before."""
    store_release(flags, index * LINE, epoch)


@njit(nogil=True, cache=True)
def small(buffer, slots, flags, rank, epoch, polls):
    """All-reduce of a private buffer [n] by way of slots [2, p, >= n]: every rank reads all. Return whether it is done.

    One wait instead of two: consecutive calls use the two halves of the slots in turn.
    """
    ranks = slots.shape[1]
    half = slots[epoch & 1]
    mine = half[rank]
    length = buffer.shape[0]
    for i in range(length):
        mine[i] = buffer[i]
    store_release(flags, rank * LINE, epoch)
    if not all_reached(flags, 0, ranks, epoch, polls):
        return False
    first, second = half[0], half[1]
    for i in range(length):
        buffer[i] = first[i] + second[i]
    for other in range(2, ranks):
        row = half[other]
        for i in range(length):
            buffer[i] += row[i]
    return True


@njit(nogil=True, cache=True)
def _copy(source, target, start, stop, offset):
    """Copy source [start, stop) to target [offset, ...)."""
    for i in range(stop - start):
        target[offset + i] = source[start + i]


@njit(nogil=True, cache=True)
def chunked(buffer, slots, sums, flags, rank, epoch, polls, position):
    """All-reduce of a private buffer [n] in chunks, by way of slots [2, p, c] and sums [2, c]. Return the position, -1
    when done. Start at 0; chunk k has the epoch `epoch` + k.

    The ranks copy a chunk in, each sums its slice of it, all copy the sums out. The next chunk is copied in before the
    sums of this one are waited for, so that nobody is idle in between; the halves of slots and sums are used in turn.
    """
    ranks, size = slots.shape[1], slots.shape[2]
    length = buffer.shape[0]
    chunks = (length + size - 1) // size
    if position == 0:
        _copy(buffer, slots[epoch & 1, rank], 0, min(size, length), 0)
        store_release(flags, rank * LINE, epoch)
        position = 1
    while position <= 2 * chunks:
        chunk = (position - 1) // 2
        now = epoch + chunk
        start = chunk * size
        stop = min(start + size, length)
        if position % 2 == 1:
            if not all_reached(flags, 0, ranks, now, polls):
                return position
            first, last = slice_of(stop - start, ranks, rank)
            half = slots[now & 1]
            total = sums[now & 1]
            for i in range(first, last):
                total[i] = half[0, i] + half[1, i]
            for other in range(2, ranks):
                row = half[other]
                for i in range(first, last):
                    total[i] += row[i]
            store_release(flags, (ranks + rank) * LINE, now)
            if stop < length:
                _copy(buffer, slots[(now + 1) & 1, rank], stop, min(stop + size, length), 0)
                store_release(flags, rank * LINE, now + 1)
        else:
            if not all_reached(flags, ranks, ranks, now, polls):
                return position
            _copy(sums[now & 1], buffer, 0, stop - start, start)
        position += 1
    return -1
