"""The functions of kernels as LLVM text: float32 by polynomials, all lanes at once; float64 by libm.

Every operation rounds as numpy's: nothing is fused but within the polynomials, where the machine can.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from hybridmpi.dynamic.fusing.code import Code

# exp: Cephes' expf (Moshier). ln 2 is split so that its products with whole numbers below 2^15 are exact.
_LOG2_E = 1.44269504088896341
_LN2_HIGH, _LN2_LOW = 0.693359375, -2.12194440e-4
_EXP = (1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1)
# Beyond these exp is 0 or inf in float32.
_EXP_LOWEST, _EXP_HIGHEST = -105.0, 89.0
# Added to a small float32, 1.5 * 2^23 leaves the nearest whole number in the last bits.
_ROUNDER, _ROUNDER_BITS = 12582912.0, 0x4B400000

# tanh: the rational function of Eigen (MathFunctionsImpl.h, ptanh_float), which XLA uses too: x p(x^2) / q(x^2).
_TANH_ODD = (
    -2.76076847742355e-16,
    2.00018790482477e-13,
    -8.60467152213735e-11,
    5.12229709037114e-08,
    1.48572235717979e-05,
    6.37261928875436e-04,
    4.89352455891786e-03,
)
_TANH_EVEN = (1.19825839466702e-06, 1.18534705686654e-04, 2.26843463243900e-03, 4.89352518554385e-03)
# Within it the function stays below 1.
_TANH_LARGEST = 7.90531110763549805


def _polynomial(code: Code, x: str, coefficients: tuple[float, ...]) -> str:
    """Return the polynomial, of which the highest coefficient comes first."""
    y = code.number(coefficients[0])
    for coefficient in coefficients[1:]:
        y = _multiply_add(code, y, x, code.number(coefficient))
    return y


def _multiply_add(code: Code, a: str, b: str, c: str) -> str:
    """Return a b + c, rounded once where the machine does so as fast."""
    return code.call(f"llvm.fmuladd.{code.suffix}", a, b, c)


def _clamp(code: Code, x: str, lowest: float, highest: float) -> str:
    """Return x within the bounds; NaN stays NaN, since both comparisons are false for it."""
    x = code.where("ogt", x, code.number(highest), code.number(highest), x)
    return code.where("olt", x, code.number(lowest), code.number(lowest), x)


def _exp(code: Code, x: str) -> str:
    if code.lanes == 1:
        return code.call("exp", x)
    x = _clamp(code, x, _EXP_LOWEST, _EXP_HIGHEST)
    # x = n ln 2 + r. For NaN n is anything: the product with r's polynomial is NaN.
    rounded = _multiply_add(code, x, code.number(_LOG2_E), code.number(_ROUNDER))
    whole = code.operate("fsub", rounded, code.number(_ROUNDER))
    r = _multiply_add(code, whole, code.number(-_LN2_HIGH), x)
    r = _multiply_add(code, whole, code.number(-_LN2_LOW), r)
    y = _multiply_add(code, _polynomial(code, r, _EXP), code.operate("fmul", r, r), r)
    y = code.operate("fadd", y, code.number(1))
    # By 2^n in two steps, each a normal number: n is -151 to 128, and the result may be inf or subnormal.
    n = code.value(f"bitcast {code.vector} {rounded} to {code.integers}")
    n = code.value(f"sub {code.integers} {n}, {code.integer(_ROUNDER_BITS)}")
    half = code.value(f"ashr {code.integers} {n}, {code.integer(1)}")
    rest = code.value(f"sub {code.integers} {n}, {half}")
    for exponent in (half, rest):
        biased = code.value(f"add {code.integers} {exponent}, {code.integer(127)}")
        bits = code.value(f"shl {code.integers} {biased}, {code.integer(23)}")
        y = code.operate("fmul", y, code.value(f"bitcast {code.integers} {bits} to {code.vector}"))
    return y


def _tanh(code: Code, x: str) -> str:
    if code.lanes == 1:
        return code.call("tanh", x)
    x = _clamp(code, x, -_TANH_LARGEST, _TANH_LARGEST)
    square = code.operate("fmul", x, x)
    quotient = code.operate("fdiv", _polynomial(code, square, _TANH_ODD), _polynomial(code, square, _TANH_EVEN))
    return code.operate("fmul", x, quotient)


def _sigmoid(code: Code, x: str) -> str:
    """0.5 + 0.5 tanh(x / 2), as autograd.sigmoid."""
    y = _tanh(code, code.operate("fmul", x, code.number(0.5)))
    return code.operate("fadd", code.operate("fmul", y, code.number(0.5)), code.number(0.5))


def _log(code: Code, x: str) -> str:
    return code.call("log", x) if code.lanes == 1 else code.call(f"llvm.log.{code.suffix}", x)


def _power(code: Code, x: str, exponent: float) -> str:
    """x ** exponent; the same exponents as numpy's are done without libm."""
    if exponent == 2:
        return code.operate("fmul", x, x)
    if exponent == 1:
        return x
    if exponent == 0:
        return code.number(1)
    if exponent == -1:
        return code.operate("fdiv", code.number(1), x)
    if exponent == 0.5:
        return code.call(f"llvm.sqrt.{code.suffix}", x)
    return code.call("pow" if code.lanes == 1 else f"llvm.pow.{code.suffix}", x, code.number(exponent))


def _relu(code: Code, x: str) -> str:
    return code.where("olt", x, code.number(0), code.number(0), x)


def _positive(code: Code, x: str) -> str:
    return code.where("ogt", x, code.number(0), code.number(1), code.number(0))


@dataclass(frozen=True)
class Function:
    """How a function is written: write(code, *values) adds its lines and returns the name of the result."""

    arguments: int
    write: Callable[..., str]


# The last argument of power is a plain float.
FUNCTIONS = {
    "add": Function(2, lambda code, a, b: code.operate("fadd", a, b)),
    "subtract": Function(2, lambda code, a, b: code.operate("fsub", a, b)),
    "multiply": Function(2, lambda code, a, b: code.operate("fmul", a, b)),
    "divide": Function(2, lambda code, a, b: code.operate("fdiv", a, b)),
    "negative": Function(1, lambda code, x: code.value(f"fneg {code.vector} {x}")),
    "exp": Function(1, _exp),
    "log": Function(1, _log),
    "tanh": Function(1, _tanh),
    "sigmoid": Function(1, _sigmoid),
    "relu": Function(1, _relu),
    "positive": Function(1, _positive),
    "copy": Function(1, lambda code, x: x),
    "power": Function(2, _power),
}
