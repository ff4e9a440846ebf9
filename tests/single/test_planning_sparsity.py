"""Expected distinct rows: exact small cases, Monte Carlo, sums by ranges against sums row by row, and speed."""

import itertools
import time

import numpy as np
import pytest

from hybridmpi import nn
from hybridmpi.data import ZipfStreams
from hybridmpi.errors import UsageError
from hybridmpi.planning.sparsity import (
    Counted,
    Draws,
    EveryRow,
    LogUniform,
    Progression,
    Zipf,
    expected_rows,
    expected_rows_within,
    scaled_to,
)


def by_enumeration(chances, draws):
    """The mean number of distinct values over all sequences of draws."""
    total = 0.0
    for sequence in itertools.product(range(len(chances)), repeat=draws):
        total += np.prod([chances[i] for i in sequence]) * len(set(sequence))
    return total


@pytest.mark.parametrize("frequencies", [Zipf(4, 1.3), LogUniform(4), Counted([5, 0, 2, 1]), Zipf(4, 0)])
def test_small_cases_equal_the_enumeration_of_all_sequences(frequencies):
    chances = frequencies.chances(np.arange(4))
    assert np.isclose(chances.sum(), 1)
    for draws in (1, 3, 6):
        assert np.isclose(expected_rows([Draws(frequencies, draws)]), by_enumeration(chances, draws))


def test_ranks_multiply_draws_and_shared_ones_count_once():
    words, candidates = Zipf(50, 1.0), LogUniform(50)
    one = [Draws(words, 10), Draws(candidates, 20, shared=True)]
    assert np.isclose(expected_rows(one, 4), expected_rows([Draws(words, 40), Draws(candidates, 20)]))
    assert expected_rows([Draws(words, 10)], 4) == expected_rows([Draws(words, 40)])
    assert expected_rows([Draws(candidates, 20, shared=True)], 4) == expected_rows([Draws(candidates, 20)])
    assert expected_rows([Draws(EveryRow(50), 1, shared=True), Draws(words, 3)]) == 50
    assert expected_rows([]) == expected_rows([Draws(words, 0)]) == expected_rows([Draws(words, 3)], 0) == 0


@pytest.mark.parametrize("exponent, rows", [(0.7, 3000), (1.0, 3000), (1.5, 400)])
def test_zipf_streams_touch_as_many_rows_as_expected(exponent, rows):
    """Within five standard errors of the means, for one rank and for the union of three."""
    ranks, tries = 3, 60
    streams = [iter(ZipfStreams(rows, exponent, 24, 20, 7, rank, ranks)) for rank in range(ranks)]
    alone, together = [], []
    for _ in range(tries):
        ids = [np.unique(next(stream).inputs) for stream in streams]
        alone += [len(part) for part in ids]
        together.append(len(np.unique(np.concatenate(ids))))
    draws = [Draws(Zipf(rows, exponent), 8 * 20)]
    for seen, expected in ((alone, expected_rows(draws)), (together, expected_rows(draws, ranks))):
        assert abs(np.mean(seen) - expected) < 5 * np.std(seen) / len(seen) ** 0.5


def test_the_sampler_draws_as_many_rows_as_expected():
    sampler, generator = nn.LogUniform(20_000, 512), np.random.default_rng(3)
    seen = [len(np.unique(sampler.draw(generator))) for _ in range(100)]
    assert abs(np.mean(seen) - expected_rows([Draws(LogUniform(20_000), 512)])) < 5 * np.std(seen) / 10


@pytest.mark.parametrize(
    "frequencies", [Zipf(300_000, 1.0), Zipf(300_000, 0.6), Zipf(300_000, 1.6), LogUniform(300_000)]
)
@pytest.mark.parametrize("part", [None, Progression(3, 7, 42_000), Progression(150_000, 1, 150_000)])
def test_sums_by_ranges_hold_the_sum_row_by_row(frequencies, part):
    ids = np.arange(frequencies.rows) if part is None else part.first + np.arange(part.count) * part.stride
    chances = frequencies.chances(ids)
    for draws in (1.0, 1280.0, 3e5):
        exact = -np.expm1(draws * np.log1p(-chances)).sum()
        low, high = expected_rows_within([Draws(frequencies, draws)], part=part)
        assert low <= exact * (1 + 1e-9) and exact <= high * (1 + 1e-9)
        assert high - low <= 3e-3 * exact
        assert abs(expected_rows([Draws(frequencies, draws)], part=part) - exact) <= 1e-5 * exact


def test_chances_sum_to_one_and_parts_to_the_whole():
    for frequencies in (Zipf(2_000_000, 1.0), Zipf(2_000_000, 0.8), Zipf(100_000, 2.0), LogUniform(2_000_000)):
        assert np.isclose(frequencies.chances(np.arange(frequencies.rows)).sum(), 1, rtol=1e-10)
    draws = [Draws(Zipf(100_003, 1.1), 4000)]
    parts = [expected_rows(draws, part=Progression(s, 7, len(range(s, 100_003, 7)))) for s in range(7)]
    assert np.isclose(sum(parts), expected_rows(draws), rtol=1e-5)


def test_ten_million_rows_take_milliseconds():
    started = time.perf_counter()
    rows = expected_rows([Draws(Zipf(10_000_000, 1.0), 1280), Draws(LogUniform(10_000_000), 8192)], 48)
    assert time.perf_counter() - started < 0.5
    assert 8192 < rows < 1280 * 48 + 8192 * 48


def test_draws_are_scaled_to_a_measured_sparsity():
    draws = [Draws(Zipf(5000, 1.0), 100), Draws(LogUniform(5000), 300, shared=True)]
    for touched in (20, 700, 4000):
        assert np.isclose(expected_rows(scaled_to(draws, touched)), touched, rtol=1e-3)
    assert expected_rows(scaled_to([Draws(Counted([1, 1, 0]), 1)], 2.5)) == 3


def test_wrong_descriptions_are_named():
    with pytest.raises(UsageError, match=r"tables of \[10, 20\] rows"):
        expected_rows([Draws(Zipf(10), 1), Draws(LogUniform(20), 1)])
    with pytest.raises(UsageError, match="not all of them 0"):
        Counted(np.zeros(3))
    with pytest.raises(UsageError, match="exponent >= 0"):
        Zipf(10, -1)
