"""Exclusive prefix sum of int64 on the device, in place: tiles, then the sums of the tiles, then both together."""

from __future__ import annotations

from typing import Any

from numba import cuda, int64

from hybridmpi.kernels.device import THREADS, cuda_kernel, launch, new_array

EACH = 8  # elements of a thread
TILE = THREADS * EACH
SCANNED = (2, 2 * THREADS)  # shared memory of a block's scan: its sums before and after a round, zeros before each


def exclusive_scan(counts: Any) -> None:
    """Replace every element of `counts` int64[n] by the sum of those before it. Local."""
    tiles = -(-len(counts) // TILE)
    sums = new_array(counts, tiles)
    launch(_scan_tiles, tiles * THREADS, counts, sums)
    if tiles > 1:
        exclusive_scan(sums)
        launch(_add_tile_offsets, len(counts), counts, sums)


@cuda.jit(device=True)
def block_scan(own, sums, t):
    """Return the sum of `own` of threads 0 to t of a block, and that of all: inclusive scan (Hillis and Steele 1986).

    `sums` is shared memory of shape SCANNED. All threads call it, and meet at a barrier before they call it again.
    """
    sums[0, t] = sums[1, t] = 0
    sums[0, THREADS + t] = own
    cuda.syncthreads()
    side, reach = 0, 1
    while reach < THREADS:
        sums[1 - side, THREADS + t] = sums[side, THREADS + t] + sums[side, THREADS + t - reach]
        cuda.syncthreads()
        side = 1 - side
        reach *= 2
    return sums[side, THREADS + t], sums[side, 2 * THREADS - 1]


@cuda_kernel("void(int64[::1], int64[::1])")
def _scan_tiles(counts, tile_sums):
    sums = cuda.shared.array(SCANNED, int64)
    t = cuda.threadIdx.x & (THREADS - 1)  # so that the compiler knows that it is not negative
    tile = cuda.blockIdx.x
    while tile < len(tile_sums):  # the same for all threads of a block, so that all meet at each barrier
        first = tile * TILE + t * EACH
        last = min(first + EACH, len(counts))
        own = 0
        for i in range(first, last):
            own += counts[i]
        reached, _ = block_scan(own, sums, t)
        before = reached - own
        for i in range(first, last):
            count = counts[i]
            counts[i] = before
            before += count
        if t == THREADS - 1:
            tile_sums[tile] = before
        cuda.syncthreads()
        tile += cuda.gridDim.x


@cuda_kernel("void(int64[::1], int64[::1])")
def _add_tile_offsets(counts, offsets):
    for i in range(cuda.grid(1), len(counts), cuda.gridsize(1)):
        counts[i] += offsets[i // TILE]
