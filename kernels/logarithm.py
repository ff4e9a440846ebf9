"""The natural logarithm of additions, products and one division: the same bits on every processor and device.

A library's logarithm is exact to its last bit or the one before, and which of the two differs from library to library.
"""

from __future__ import annotations

import numpy as np

from hybridmpi.kernels.cpu import cpu_kernel
from hybridmpi.kernels.rounding import mul_rn

# Bits of float64 as uint64. Those of sqrt(1/2), cut after 20 of the fraction's: what is scaled lies in
# [sqrt(1/2), sqrt(2)), to that accuracy.
SQRT_HALF, ONE, FRACTION = np.array([0x3FE6A09E00000000, 0x3FF0000000000000, 0x000FFFFFFFFFFFFF], np.uint64)
FRACTION_BITS, BIAS = np.uint64(52), 1023
LN2_HIGH = 6.93147180369123816490e-01  # 32 bits: its product with an exponent is exact
LN2_LOW = 1.90821492927058770002e-10


@cpu_kernel
def log_normal(x):
    """Return the natural logarithm of a normal float64 `x` > 0, to one unit in the last place.

    FreeBSD's (Sun's fdlibm, e_log.c): x = 2^k (1 + f), and with s = f / (2 + f) the logarithm of 1 + f is
    f - f^2/2 + s (f^2/2 + R(s^2)), where R is a Remez polynomial.
    """
    bits = np.uint64(np.float64(x).view(np.uint64) + np.uint64(ONE - SQRT_HALF))
    exponent = np.float64(np.int64(bits >> FRACTION_BITS) - BIAS)
    f = np.uint64(np.uint64(bits & FRACTION) + SQRT_HALF).view(np.float64) - 1.0
    half_square = mul_rn(mul_rn(0.5, f), f)
    s = f / (2.0 + f)
    z = mul_rn(s, s)
    w = mul_rn(z, z)
    even = mul_rn(mul_rn(1.531383769920937332e-01, w) + 2.222219843214978396e-01, w) + 3.999999999940941908e-01
    odd = mul_rn(mul_rn(1.479819860511658591e-01, w) + 1.818357216161805012e-01, w) + 2.857142874366239149e-01
    odd = mul_rn(odd, w) + 6.666666666666735130e-01
    rest = mul_rn(odd, z) + mul_rn(even, w)
    small = mul_rn(s, half_square + rest) + mul_rn(exponent, LN2_LOW)
    return small - half_square + f + mul_rn(exponent, LN2_HIGH)
