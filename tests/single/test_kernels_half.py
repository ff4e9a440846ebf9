"""16-bit forms of float32: float16 against numpy, bfloat16 against exact arithmetic, all patterns and all ties."""

import numpy as np
import pytest

from hybridmpi import kernels

ALL_HALVES = np.arange(1 << 16, dtype=np.uint16)
NANS = np.array([0x7F800001, 0x7FBFFFFF, 0x7FC00000, 0x7FFFFFFF, 0x7FFF8000, 0xFF800001, 0xFFFFFFFF], np.uint32)


def bits_of_all_kinds():
    """Float32 bits: random ones, and those in the middle between two 16-bit numbers, with their neighbours."""
    random = np.random.default_rng(0).integers(0, 1 << 32, 300_000, dtype=np.uint32)
    float16_ties = np.arange(0, 1 << 32, 1 << 12, dtype=np.uint32)
    subnormal_ties = (np.arange(2048) * 2.0**-25).astype(np.float32).view(np.uint32)
    bfloat16_ties = np.arange(0, 1 << 32, 1 << 15, dtype=np.uint32)
    ties = np.concatenate([float16_ties, subnormal_ties, subnormal_ties | 0x80000000, bfloat16_ties])
    return np.concatenate([random, ties, ties - np.uint32(1), ties + np.uint32(1), NANS])


def to_half(kind, values):
    out = np.full(values.shape, 0xABCD, np.uint16)
    getattr(kernels, f"to_{kind}")(values, out)
    return out


def from_half(kind, halves):
    out = np.full(halves.shape, np.nan, np.float32)
    getattr(kernels, f"from_{kind}")(halves, out)
    return out


def nearest_bfloat16(bits):
    """Return the bits of the bfloat16 nearest to finite float32 `bits`, by distances in float64, which are exact."""
    below = bits & np.uint32(0xFFFF0000)  # towards zero
    above = below + np.uint32(0x10000)
    value, lower = (part.view(np.float32).astype(np.float64) for part in (bits, below))
    with np.errstate(over="ignore"):
        upper = above.view(np.float32).astype(np.float64)
    upper = np.where(np.isinf(upper), np.copysign(2.0**128, upper), upper)  # what comes after the largest number
    to_lower, to_upper = abs(value - lower), abs(upper - value)
    even = (below >> np.uint32(16)) & np.uint32(1) == 0
    down = (to_lower < to_upper) | ((to_lower == to_upper) & even)
    return (np.where(down, below, above) >> np.uint32(16)).astype(np.uint16)


def test_every_float16_has_numpys_value():
    expected = ALL_HALVES.view(np.float16).astype(np.float32)
    found = from_half("float16", ALL_HALVES)
    nan = np.isnan(expected)
    assert np.isnan(found[nan]).all()
    np.testing.assert_array_equal(found.view(np.uint32)[~nan], expected.view(np.uint32)[~nan])


def test_float16_rounds_as_numpy_does():
    values = bits_of_all_kinds().view(np.float32)
    with np.errstate(over="ignore", invalid="ignore"):
        expected = values.astype(np.float16)
    found = to_half("float16", values)
    nan = np.isnan(values)
    np.testing.assert_array_equal(found[~nan], expected.view(np.uint16)[~nan])
    assert np.isnan(found.view(np.float16)[nan]).all()


@pytest.mark.parametrize(
    ("value", "half"),
    [  # IEEE 754 binary16, from its definition
        (1.0, 0x3C00),
        (-2.0, 0xC000),
        (65504.0, 0x7BFF),
        (65519.996, 0x7BFF),
        (65520.0, 0x7C00),
        (-1e30, 0xFC00),
        (2.0**-14, 0x0400),
        (2.0**-24, 0x0001),
        (2.0**-25, 0x0000),
        (1.5 * 2.0**-24, 0x0002),
        (2.0**-25 * 1.0001, 0x0001),
        (-1e-30, 0x8000),
        (2.0**-14 - 2.0**-26, 0x0400),
    ],
)
def test_float16_known_answers(value, half):
    assert to_half("float16", np.array([value], np.float32))[0] == half


def test_every_bfloat16_is_the_upper_half_of_a_float32():
    found = from_half("bfloat16", ALL_HALVES).view(np.uint32)
    np.testing.assert_array_equal(found, ALL_HALVES.astype(np.uint32) * 65536)


def test_bfloat16_rounds_to_the_nearest():
    bits = bits_of_all_kinds()
    values = bits.view(np.float32)
    found = to_half("bfloat16", values)
    finite = np.isfinite(values)
    np.testing.assert_array_equal(found[finite], nearest_bfloat16(bits[finite]))
    np.testing.assert_array_equal(to_half("bfloat16", np.float32([np.inf, -np.inf])), [0x7F80, 0xFF80])
    assert np.isnan(from_half("bfloat16", found)[np.isnan(values)]).all()


@pytest.mark.parametrize(("kind", "quiet"), [("float16", 0x7E00), ("bfloat16", 0x7FC0)])
def test_nan_stays_nan_with_its_sign_and_quiet(kind, quiet):
    found = to_half(kind, NANS.view(np.float32))
    np.testing.assert_array_equal(found & quiet, quiet)
    np.testing.assert_array_equal(found >> 15, NANS >> 31)


@pytest.mark.parametrize("kind", ["float16", "bfloat16"])
def test_there_and_back_is_the_same(kind):
    values = from_half(kind, ALL_HALVES)
    number = ~np.isnan(values)
    np.testing.assert_array_equal(to_half(kind, values[number]), ALL_HALVES[number])


@pytest.mark.parametrize("kind", ["float16", "bfloat16"])
@pytest.mark.parametrize("n", [0, 1, 7, 33, 1 << 16])
def test_add_is_float32_addition_of_the_values(kind, n):
    random = np.random.default_rng(n)
    halves = random.permutation(ALL_HALVES)[:n]
    target = (random.standard_normal(n) * 10.0 ** random.integers(-30, 30, n)).astype(np.float32)
    values, before = from_half(kind, halves), target.copy()
    with np.errstate(over="ignore", invalid="ignore"):
        expected = before + values
    getattr(kernels, f"add_{kind}")(halves, target)
    nan = np.isnan(expected)
    assert np.isnan(target[nan]).all()
    np.testing.assert_array_equal(target.view(np.uint32)[~nan], expected.view(np.uint32)[~nan])


@pytest.mark.parametrize("kind", ["float16", "bfloat16"])
def test_other_shapes_and_dtypes_are_refused(kind):
    to, back, add = (getattr(kernels, f"{verb}_{kind}") for verb in ("to", "from", "add"))
    full, half = np.zeros(4, np.float32), np.zeros(4, np.uint16)
    for values, halves in (
        (full[:3], half),
        (full.reshape(2, 2), half.reshape(2, 2)),
        (full.astype(np.float64), half),
        (full, half.view(np.float16)),
        (full, half.astype(np.uint32)),
    ):
        for call, arguments in ((to, (values, halves)), (back, (halves, values)), (add, (halves, values))):
            with pytest.raises(ValueError, match=r"expected float32\[n\] and uint16\[n\]"):
                call(*arguments)
