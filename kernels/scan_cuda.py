"""Exclusive prefix sum of int64 on the device, in place: tiles, then the sums of the tiles, then both together."""

from __future__ import annotations

from typing import Any

from numba import cuda, int64

from hybridmpi.kernels.device import THREADS, cuda_kernel, launch, new_array

EACH = 8  # elements of a thread
TILE = THREADS * EACH


def exclusive_scan(counts: Any) -> None:
    """Replace every element of `counts` int64[n] by the sum of those before it. Local."""
    tiles = -(-len(counts) // TILE)
    sums = new_array(counts, tiles)
    launch(_scan_tiles, tiles * THREADS, counts, sums)
    if tiles > 1:
        exclusive_scan(sums)
        launch(_add_tile_offsets, len(counts), counts, sums)


@cuda_kernel("void(int64[::1], int64[::1])")
def _scan_tiles(counts, sums):
    totals = cuda.shared.array(THREADS, int64)
    t = cuda.threadIdx.x
    tile = cuda.blockIdx.x
    while tile < len(sums):  # the same for all threads of a block, so that all meet at each barrier
        first = tile * TILE + t * EACH
        last = min(first + EACH, len(counts))
        own = 0
        for i in range(first, last):
            own += counts[i]
        totals[t] = own
        cuda.syncthreads()
        reach = 1
        while reach < THREADS:  # inclusive scan of the threads' totals (Hillis and Steele 1986)
            left = totals[t - reach] if t >= reach else 0
            cuda.syncthreads()
            totals[t] += left
            cuda.syncthreads()
            reach *= 2
        before = totals[t] - own
        for i in range(first, last):
            count = counts[i]
            counts[i] = before
            before += count
        if t == THREADS - 1:
            sums[tile] = before
        cuda.syncthreads()
        tile += cuda.gridDim.x


@cuda_kernel("void(int64[::1], int64[::1])")
def _add_tile_offsets(counts, offsets):
    for i in range(cuda.grid(1), len(counts), cuda.gridsize(1)):
        counts[i] += offsets[i // TILE]
