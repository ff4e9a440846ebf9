"""Stable sort of int64 words on the device by some of their bits: a least-significant-digit radix sort without atomics.

A pass sorts by one digit of up to 8 bits, in three steps (Satish, Harris and Garland, "Designing efficient sorting
algorithms for manycore GPUs", IPDPS 2009):

1. Each block sorts tiles of 3,840 words by the digit, in shared memory, and writes them back, and counts[digit][tile].
2. The exclusive scan of the counts says where the words of each tile with each digit go.
3. Each block moves tiles there. Words of one digit are neighbours in a tile and where they go.

Within a tile, it sorts by four bits of the digit at a time: a thread counts in a column of its own, in shared memory,
the digits of 15 words that lie one after the other; the scan of the columns, digit by digit, says where each word goes
(Merrill and Grimshaw, "High performance and scalable radix sorting", Parallel Processing Letters 2011, section 3).

Memory traffic of a pass: a word is read twice and written twice, 32 bytes, all coalesced but for the last write, which
is in runs of a digit: 15 words, 120 bytes, on average for random digits of 8 bits. The counts are written, scanned
(read three times, written twice) and read: 56 bytes for each digit and tile, at most 3.7 bytes a word. So b bits of the
words take ceil(b / 8) passes of 36 bytes a word, on a grid with a block for each tile, up to what fills a device.
"""

from __future__ import annotations

from typing import Any

from numba import cuda, int32, int64

from hybridmpi.kernels.device import THREADS, cuda_kernel, launch, new_array
from hybridmpi.kernels.scan_cuda import SCANNED, block_scan, exclusive_scan

DIGIT_BITS = 8
DIGITS = 1 << DIGIT_BITS
EACH = 15  # words of a thread: odd, so that neighbours' words lie in different banks of shared memory
TILE = THREADS * EACH

SPLIT_BITS = 4
# A counter holds the counts of two digits, 16 bits each: of digit d and of d + PAIRS. TILE fits them.
PAIR_BITS = SPLIT_BITS - 1
PAIRS = 1 << PAIR_BITS
LOW_HALF = (1 << 16) - 1
# A place is left free after every PAIRS counters, so many as a thread scans: no bank conflicts there either.
COLUMNS = (PAIRS + 1) * THREADS


def sort_words(words: Any, low: int, high: int) -> None:
    """Sort `words` int64[n] by their bits [low, high), as an unsigned number, in place; stable. Local."""
    n = len(words)
    tiles = -(-n // TILE)
    passes = -(-(high - low) // DIGIT_BITS)
    digit_bits = -(-(high - low) // passes)
    tiled, counts = new_array(words, n), new_array(words, tiles << digit_bits)
    for shift in range(low, high, digit_bits):
        bits = min(digit_bits, high - shift)
        offsets = counts[: tiles << bits]
        launch(_sort_tiles, tiles * THREADS, words, shift, bits, tiled, offsets)
        exclusive_scan(offsets)
        launch(_move_tiles, tiles * THREADS, tiled, shift, bits, offsets, words)


# Where the compiler knows that no index is negative, as numba allows, addresses share a register: hence masks of
# numbers that are small anyway, and parts of arrays. What is counted is read again when it is moved: with it, digits
# and places would be kept over the scan. Together 124 registers became 48.


@cuda_kernel("void(int64[::1], int64, int64, int64[::1], int64[::1])")
def _sort_tiles(words, shift, bits, tiled, counts):
    held = cuda.shared.array(TILE, int64)
    counters = cuda.shared.array(COLUMNS, int32)
    sums = cuda.shared.array(SCANNED, int32)
    starts = cuda.shared.array(DIGITS, int32)  # a line each: the simulator tells arrays apart by their lines
    stops = cuda.shared.array(DIGITS, int32)
    own = cuda.local.array(EACH, int64)  # in registers: its loops are unrolled
    t = cuda.threadIdx.x & (THREADS - 1)
    tiles, mask = len(counts) >> bits, (1 << bits) - 1
    tile = cuda.blockIdx.x
    while tile < tiles:  # the same for all threads of a block, so that all meet at each barrier
        source, target = words[tile * TILE : (tile + 1) * TILE], tiled[tile * TILE : (tile + 1) * TILE]
        size = len(source)
        for k in range(EACH):
            p = k * THREADS + t
            held[p] = source[p] if p < size else -1  # the largest digit: stays behind the words
        for k in range(DIGITS // THREADS):
            starts[k * THREADS + t] = stops[k * THREADS + t] = 0
        cuda.syncthreads()

        for done in range(0, bits, SPLIT_BITS):
            part = (1 << min(SPLIT_BITS, bits - done)) - 1
            for k in range(PAIRS + 1):
                counters[k * THREADS + t] = 0
            cuda.syncthreads()
            for k in range(EACH):
                digit = (held[t * EACH + k] >> (shift + done)) & part
                c = (digit & (PAIRS - 1)) * THREADS + t
                counters[c + (c >> PAIR_BITS)] += 1 << 16 * (digit >> PAIR_BITS)
            cuda.syncthreads()
            total = 0
            for c in range(PAIRS):
                total += counters[t * (PAIRS + 1) + c]
            reached, whole = block_scan(total, sums, t)
            before = reached - total + ((whole & LOW_HALF) << 16)  # the upper digits come after all lower ones
            for c in range(PAIRS):
                count = counters[t * (PAIRS + 1) + c]
                counters[t * (PAIRS + 1) + c] = before
                before += count
            for k in range(EACH):
                own[k] = held[t * EACH + k]
            cuda.syncthreads()
            for k in range(EACH):
                digit = (own[k] >> (shift + done)) & part
                c = (digit & (PAIRS - 1)) * THREADS + t
                counter, half = counters[c + (c >> PAIR_BITS)], 16 * (digit >> PAIR_BITS)
                held[(counter >> half) & LOW_HALF] = own[k]
                counters[c + (c >> PAIR_BITS)] = counter + (1 << half)
            cuda.syncthreads()

        for k in range(EACH):
            p = k * THREADS + t
            if p < size:
                target[p] = held[p]
                digit = (held[p] >> shift) & mask
                if p == 0 or (held[p - 1] >> shift) & mask != digit:
                    starts[digit & (DIGITS - 1)] = p
                if p == size - 1 or (held[p + 1] >> shift) & mask != digit:
                    stops[digit & (DIGITS - 1)] = p + 1
        cuda.syncthreads()
        for k in range(DIGITS // THREADS):
            d = k * THREADS + t
            if d <= mask:
                counts[d * tiles + tile] = stops[d] - starts[d]
        cuda.syncthreads()
        tile += cuda.gridDim.x


@cuda_kernel("void(int64[::1], int64, int64, int64[::1], int64[::1])")
def _move_tiles(tiled, shift, bits, offsets, words):
    ways = cuda.shared.array(DIGITS, int64)  # from a place in the tile to that among all words, digit by digit
    t = cuda.threadIdx.x & (THREADS - 1)
    tiles, mask = len(offsets) >> bits, (1 << bits) - 1
    tile = cuda.blockIdx.x
    while tile < tiles:
        source = tiled[tile * TILE : (tile + 1) * TILE]
        size = len(source)
        for p in range(t, size, THREADS):
            digit = (source[p] >> shift) & mask
            if p == 0 or (source[p - 1] >> shift) & mask != digit:
                ways[digit & (DIGITS - 1)] = offsets[digit * tiles + tile] - p
        cuda.syncthreads()
        for p in range(t, size, THREADS):
            word = source[p]  # from cache
            words[ways[(word >> shift) & mask & (DIGITS - 1)] + p] = word
        cuda.syncthreads()
        tile += cuda.gridDim.x
