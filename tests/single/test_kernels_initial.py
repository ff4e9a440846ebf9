"""Initial values: the generator's published answers, independence of the partition, and the distributions."""

import math
import statistics

import numpy as np
import pytest

from hybridmpi import kernels
from hybridmpi.kernels.initial import normal_quantile, philox
from hybridmpi.kernels.logarithm import log_normal

FILLS = [kernels.uniform_rows, kernels.normal_rows]


@pytest.mark.parametrize(
    ("counter", "key", "words"),
    [  # Random123's kat_vectors, philox4x32 with 10 rounds
        ((0, 0), 0, (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        ((2**64 - 1, 2**64 - 1), 2**64 - 1, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
        (
            (0x85A308D3243F6A88, 0x0370734413198A2E),
            0x299F31D0A4093822,
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ],
)
def test_philox_known_answers(counter, key, words):
    assert tuple(int(w) for w in philox(*(np.uint64(part) for part in (*counter, key)))) == words


@pytest.mark.parametrize("fill", FILLS)
def test_an_element_depends_on_seed_row_and_column_only(fill):
    whole = np.empty((12, 10), np.float32)
    fill(whole, 0, 1, 7, -1.0, 1.0)
    for first, stride in ((0, 3), (1, 3), (2, 3), (5, 1)):  # cyclic and block partitions
        part = np.empty_like(whole[first::stride])
        fill(part, first, stride, 7, -1.0, 1.0)
        np.testing.assert_array_equal(part, whole[first::stride])
    narrow = np.empty((12, 3), np.float32)
    fill(narrow, 0, 1, 7, -1.0, 1.0)
    np.testing.assert_array_equal(narrow, whole[:, :3])
    other = np.empty_like(whole)
    fill(other, 0, 1, 8, -1.0, 1.0)
    assert (other != whole).all()
    double = np.empty((12, 10))
    fill(double, 0, 1, 7, -1.0, 1.0)
    np.testing.assert_array_equal(double.astype(np.float32), whole)
    assert len(np.unique(double)) == double.size


def test_uniform_range_and_moments():
    values = np.empty((2000, 50), np.float32)
    kernels.uniform_rows(values, 0, 1, 3, -0.05, 0.15)
    assert values.min() >= np.float32(-0.05) and values.max() <= np.float32(0.15)
    assert abs(values.mean() - 0.05) < 1e-3
    assert abs(values.std() - 0.2 / 12**0.5) < 1e-3


def test_normal_moments_and_tails():
    values = np.empty((2000, 50))
    kernels.normal_rows(values, 0, 1, 3, 2.0, 0.5)
    z = (values - 2.0) / 0.5
    assert abs(z.mean()) < 0.02 and abs(z.std() - 1) < 0.01
    assert abs((np.abs(z) > 2).mean() - 0.0455) < 0.003
    assert abs(np.corrcoef(z[:, 0], z[:, 1])[0, 1]) < 0.08


def test_normal_quantile_against_the_standard_library():
    oracle = statistics.NormalDist().inv_cdf
    for p in [1.2e-10, 1e-9, 1e-5, 0.01, 0.0749, 0.0751, 0.3, 0.5001, 0.9249, 0.9251, 0.999, 1 - 1e-9]:
        assert normal_quantile(p) == pytest.approx(oracle(p), rel=3e-7)
    assert normal_quantile(0.5) == 0


def spread():
    """Return numbers from all over float64's range, around 1, where a logarithm vanishes, and at the ends."""
    rng = np.random.default_rng(5)
    ends = [
        np.finfo(float).tiny,
        np.finfo(float).max,
        0.5,
        1,
        2,
        0.5**0.5,
        2**0.5,
        np.nextafter(1, 0),
        np.nextafter(1, 2),
    ]
    return np.concatenate(
        [rng.random(2000), 10.0 ** rng.uniform(-307, 308, 2000), 1 + rng.uniform(-1, 1, 2000) / 512, ends]
    )


def test_logarithm_to_one_unit_in_the_last_place():
    for x in spread():
        expected = math.log(x)
        assert abs(log_normal(x) - expected) <= math.ulp(expected), x.hex()


def test_each_operation_is_rounded_by_itself():
    """Compiled, nothing is contracted: the bits are those of the same operations one by one, in Python."""
    for x in spread():
        assert log_normal(x) == log_normal.py_func(x)
    for p in np.concatenate([(np.arange(2000) + 0.5) / 2000, 10.0 ** np.linspace(-12, -1, 500)]):
        assert normal_quantile(p) == normal_quantile.py_func(p)


@pytest.mark.parametrize("fill", FILLS)
def test_no_rows_no_columns_and_refusals(fill):
    for shape in ((0, 3), (3, 0)):
        fill(np.empty(shape, np.float32), 0, 1, 0, 0.0, 1.0)
    fill(np.empty((2, 3), np.float32), 0, 1, 2**64 - 1, 0.0, 1.0)
    for first, stride, seed in ((-1, 1, 0), (0, -1, 0), (0, 1, -1), (0, 1, 2**64)):
        with pytest.raises(ValueError, match="expected rows >= 0 and a seed"):
            fill(np.empty((2, 3), np.float32), first, stride, seed, 0.0, 1.0)
