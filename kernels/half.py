"""16-bit forms of float32 on the CPU, for the wire: bfloat16 and float16, to them, from them, and added to a sum.

Rounding is to nearest, ties to even (IEEE 754-2019, 4.3.1); float16 overflows to infinity; subnormals are kept both
ways; a NaN stays one, and quiet when it is rounded. 16-bit numbers travel as their bits in uint16, so numpy needs no
bfloat16. Arrays are flat, C-contiguous and of one length; another shape or dtype raises ValueError.

The rules work on bits, with integers and one float addition that rounds a subnormal in hardware: no branch and no
table, so that LLVM vectorises them on any processor, and the CUDA forms share them.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from hybridmpi.kernels.cpu import cpu_kernel

FULL, HALF = np.dtype(np.float32), np.dtype(np.uint16)

# Bits of float32 as uint32. Each operation is wrapped in np.uint32, since numba would widen it to 64 bits, which
# halves the speed.
SIGN, MAGNITUDE, INFINITY, QUIET = np.array([0x80000000, 0x7FFFFFFF, 0x7F800000, 0x00400000], np.uint32)
# float16 keeps 13 bits fewer and its exponent is 112 lower: 1.0 is 127 << 23 in float32, 15 << 10 in float16.
REBIAS = np.uint32(112 << 23)
LOWEST_NORMAL = np.uint32(113 << 23)  # 2^-14, the lowest float16 that is no subnormal, as float32
OVERFLOW = np.uint32(143 << 23)  # 2^16, which no float16 reaches
NAN16, SIGN16 = np.uint32(0x7E00), np.uint32(0x8000)
# 0.5: one unit in its last place is 2^-24, the step of float16's subnormals. Adding it rounds to that step.
ROUNDER, ROUNDER_BITS = np.float32(0.5), np.uint32(126 << 23)
LOWEST_NORMAL_VALUE = np.float32(2.0**-14)
ONE, THIRTEEN, SIXTEEN = np.array([1, 13, 16], np.uint32)


def to_bfloat16(values: np.ndarray, out: np.ndarray) -> None:
    """Round `values` float32[n] to bfloat16: their bits in `out` uint16[n]. Local."""
    check_halves("to_bfloat16", values, out)
    _to_bfloat16(values, out)


def from_bfloat16(halves: np.ndarray, out: np.ndarray) -> None:
    """Write the values of bfloat16 `halves` uint16[n] to `out` float32[n]: exact. Local."""
    check_halves("from_bfloat16", out, halves)
    _from_bfloat16(halves, out)


def add_bfloat16(halves: np.ndarray, target: np.ndarray) -> None:
    """Add the values of bfloat16 `halves` uint16[n] to `target` float32[n], in float32. Local."""
    check_halves("add_bfloat16", target, halves)
    _add_bfloat16(halves, target)


def to_float16(values: np.ndarray, out: np.ndarray) -> None:
    """Round `values` float32[n] to float16: their bits in `out` uint16[n]. Local.

    Magnitudes from 65520 on become infinity.
    """
    check_halves("to_float16", values, out)
    _to_float16(values, out)


def from_float16(halves: np.ndarray, out: np.ndarray) -> None:
    """Write the values of float16 `halves` uint16[n] to `out` float32[n]: exact. Local."""
    check_halves("from_float16", out, halves)
    _from_float16(halves, out)


def add_float16(halves: np.ndarray, target: np.ndarray) -> None:
    """Add the values of float16 `halves` uint16[n] to `target` float32[n], in float32. Local."""
    check_halves("add_float16", target, halves)
    _add_float16(halves, target)


def check_halves(name: str, values: Any, halves: Any) -> None:
    """Raise ValueError unless `values` are float32[n] and `halves` uint16[n]. Local."""
    if values.ndim != 1 or values.shape != halves.shape or values.dtype != FULL or halves.dtype != HALF:
        raise ValueError(
            f"{name}: {values.dtype}{list(values.shape)} and {halves.dtype}{list(halves.shape)}: expected float32[n] "
            "and uint16[n], flat and of one length"
        )


# The element rules.


@cpu_kernel
def bfloat16_bits(value):
    """Return the bits, uint16, of the bfloat16 nearest to a float32."""
    bits = np.float32(value).view(np.uint32)
    odd = np.uint32(np.uint32(bits >> SIXTEEN) & ONE)
    # Half a unit less one, and one for an odd neighbour: a tie goes to the even one. A NaN might round to infinity.
    rounded = np.uint32(bits | QUIET) if value != value else np.uint32(np.uint32(bits + np.uint32(0x7FFF)) + odd)
    return np.uint16(np.uint32(rounded >> SIXTEEN))


@cpu_kernel
def bfloat16_value(half):
    """Return the float32 of a bfloat16's bits, uint16."""
    return np.uint32(np.uint32(half) << SIXTEEN).view(np.float32)


@cpu_kernel
def float16_bits(value):
    """Return the bits, uint16, of the float16 nearest to a float32."""
    bits = np.float32(value).view(np.uint32)
    size = min(np.uint32(bits & MAGNITUDE), OVERFLOW)
    if size < LOWEST_NORMAL:
        shifted = np.float32(np.uint32(size).view(np.float32) + ROUNDER)
        half = np.uint32(np.float32(shifted).view(np.uint32) - ROUNDER_BITS)
    else:  # a carry out of the fraction raises the exponent, out of the last exponent to infinity, as it should
        odd = np.uint32(np.uint32(size >> THIRTEEN) & ONE)
        half = np.uint32(np.uint32(np.uint32(np.uint32(size - REBIAS) + np.uint32(0xFFF)) + odd) >> THIRTEEN)
    if value != value:
        half = NAN16
    return np.uint16(np.uint32(half | np.uint32(np.uint32(bits >> SIXTEEN) & SIGN16)))


@cpu_kernel
def float16_value(half):
    """Return the float32 of a float16's bits, uint16."""
    bits = np.uint32(half)
    size = np.uint32(np.uint32(bits & np.uint32(0x7FFF)) << THIRTEEN)
    exponent = np.uint32(size >> np.uint32(23))
    if exponent == 0:  # fraction / 2^10 * 2^-14: as the fraction of a normal number, less its leading one
        normal = np.uint32(size + LOWEST_NORMAL).view(np.float32)
        whole = np.float32(normal - LOWEST_NORMAL_VALUE).view(np.uint32)
    elif exponent == 31:
        whole = np.uint32(size | INFINITY)
    else:
        whole = np.uint32(size + REBIAS)
    return np.uint32(whole | np.uint32(np.uint32(bits & SIGN16) << SIXTEEN)).view(np.float32)


# The loops.


@cpu_kernel
def _to_bfloat16(values, out):
    for i in range(len(values)):
        out[i] = bfloat16_bits(values[i])


@cpu_kernel
def _from_bfloat16(halves, out):
    for i in range(len(halves)):
        out[i] = bfloat16_value(halves[i])


@cpu_kernel
def _add_bfloat16(halves, target):
    for i in range(len(halves)):
        target[i] += bfloat16_value(halves[i])


@cpu_kernel
def _to_float16(values, out):
    for i in range(len(values)):
        out[i] = float16_bits(values[i])


@cpu_kernel
def _from_float16(halves, out):
    for i in range(len(halves)):
        out[i] = float16_value(halves[i])


@cpu_kernel
def _add_float16(halves, target):
    for i in range(len(halves)):
        target[i] += float16_value(halves[i])
