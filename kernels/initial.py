"""Counter-based initial values on the CPU: an element depends on seed, row and column only.

So a table has the same values on any number of servers and under any partition. The generator is Philox4x32-10
(Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011): the key is the seed, the counter is
(row, column // 4), and one call gives 32 random bits to each of four neighbouring columns. Values are computed in
double precision and rounded to the dtype of the table, so float32 and float64 tables agree to rounding. All that rounds
is what IEEE 754 defines to the bit, so that processors and devices give the same values.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from hybridmpi.kernels.cpu import cpu_kernel
from hybridmpi.kernels.logarithm import log_normal
from hybridmpi.kernels.rounding import mul_rn

# Words are held in uint64 so that a 32 x 32 bit product is exact. All constants are uint64 too: numba would turn a
# uint64 with an int64 into a float64.
M0, M1 = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
W0, W1 = np.uint64(0x9E3779B9), np.uint64(0xBB67AE85)
LOW, HALF = np.uint64(0xFFFFFFFF), np.uint64(32)


def uniform_rows(out: np.ndarray, first: int, stride: int, seed: int, low: float, high: float) -> None:
    """Fill `out` [n, d] with rows first, first + stride, ... of the table of `seed`: uniform in [low, high]. Local.

    `seed` is any integer below 2^64, rows count from 0. The same arguments give the same values for every split of the
    rows into calls. Raises ValueError for a negative row or seed.
    """
    check_rows("uniform_rows", out, first, stride, seed)
    _uniform_rows(out, first, stride, np.uint64(seed), low, high - low)


def normal_rows(out: np.ndarray, first: int, stride: int, seed: int, mean: float, deviation: float) -> None:
    """Fill `out` [n, d] with rows first, first + stride, ... of the table of `seed`: normal. Local.

    Standard deviation `deviation`; values reach 6.3 deviations from the mean, the resolution of 32 random bits.
    Otherwise as `uniform_rows`.
    """
    check_rows("normal_rows", out, first, stride, seed)
    _normal_rows(out, first, stride, np.uint64(seed), mean, deviation)


def check_rows(name: str, out: Any, first: int, stride: int, seed: int) -> None:
    """Raise ValueError for a row below 0 or a seed that is no 64-bit unsigned integer. Local."""
    if min(first, first + max(len(out) - 1, 0) * stride) < 0 or not 0 <= seed < 1 << 64:
        raise ValueError(
            f"{name}: {len(out)} rows from {first} with stride {stride} and seed {seed}: "
            "expected rows >= 0 and a seed in [0, 2^64)"
        )


@cpu_kernel
def philox(row, group, seed):
    """Return the four 32-bit words, as uint64, of counter (row, group) under key `seed`; all arguments are uint64."""
    c0, c1, c2, c3 = row & LOW, row >> HALF, group & LOW, group >> HALF
    k0, k1 = seed & LOW, seed >> HALF
    for _ in range(10):
        product0, product1 = M0 * c0, M1 * c2
        c0, c1, c2, c3 = (product1 >> HALF) ^ c1 ^ k0, product1 & LOW, (product0 >> HALF) ^ c3 ^ k1, product0 & LOW
        k0, k1 = (k0 + W0) & LOW, (k1 + W1) & LOW
    return c0, c1, c2, c3


@cpu_kernel
def unit_interval(word):
    """Return a 32-bit word as the middle of its cell of (0, 1): never 0, never 1."""
    return mul_rn(np.float64(word) + 0.5, 1.0 / 4294967296.0)


@cpu_kernel
def normal_quantile(p):
    """Return the standard normal quantile of `p` in (0, 1): algorithm AS 241, PPND7 (Wichura 1988), 7 digits."""
    q = p - 0.5
    if abs(q) <= 0.425:
        r = 0.180625 - mul_rn(q, q)
        above = mul_rn(mul_rn(mul_rn(59.109374720, r) + 159.29113202, r) + 50.434271938, r) + 3.3871327179
        below = mul_rn(mul_rn(mul_rn(67.187563600, r) + 78.757757664, r) + 17.895169469, r) + 1.0
        return mul_rn(q, above / below)
    r = math.sqrt(-log_normal(min(p, 1.0 - p)))
    if r <= 5.0:
        r -= 1.6
        above = mul_rn(mul_rn(mul_rn(0.17023821103, r) + 1.3067284816, r) + 2.7568153900, r) + 1.4234372777
        below = mul_rn(mul_rn(0.12021132975, r) + 0.73700164250, r) + 1.0
    else:
        r -= 5.0
        above = mul_rn(mul_rn(mul_rn(0.017337203997, r) + 0.42868294337, r) + 3.0812263860, r) + 6.6579051150
        below = mul_rn(mul_rn(0.012258202635, r) + 0.24197894225, r) + 1.0
    tail = above / below
    return tail if q > 0.0 else -tail


@cpu_kernel
def _uniform_rows(out, first, stride, seed, low, width):
    n, d = out.shape
    units = np.empty(((d + 3) // 4, 4))
    flat = units.reshape(-1)
    for i in range(n):
        _fill_units(units, np.uint64(first + i * stride), seed)
        line = out[i]
        for c in range(d):
            line[c] = low + width * flat[c]


@cpu_kernel
def _fill_units(units, row, seed):
    """Draw a row of numbers in (0, 1), `units` [groups, 4]: nothing else in the loop, so that it vectorises."""
    for group in range(units.shape[0]):
        word0, word1, word2, word3 = philox(row, np.uint64(group), seed)
        units[group, 0] = unit_interval(word0)
        units[group, 1] = unit_interval(word1)
        units[group, 2] = unit_interval(word2)
        units[group, 3] = unit_interval(word3)


@cpu_kernel
def _normal_rows(out, first, stride, seed, mean, deviation):
    n, d = out.shape
    for i in range(n):
        row = np.uint64(first + i * stride)
        for group in range((d + 3) // 4):
            c = 4 * group
            words = philox(row, np.uint64(group), seed)
            for k in range(min(4, d - c)):
                out[i, c + k] = mean + deviation * normal_quantile(unit_interval(words[k]))
