"""What may be summed: the bound on each part makes the sum over the ranks finite."""

import numpy as np
import pytest

from hybridmpi.collectives.summands import largest_summand, unfit_to_sum


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("ranks", [1, 2, 3, 7, 64, 1000])
def test_what_is_let_through_has_a_finite_sum_and_mean(dtype, ranks):
    with np.errstate(over="raise"):
        part = dtype(largest_summand(np.dtype(dtype), ranks, False))
        assert np.isfinite(np.full(ranks, part).cumsum(dtype=dtype)).all()
        part, random = dtype(largest_summand(np.dtype(dtype), ranks, True)), np.random.default_rng(ranks)
        for weights in (np.ones(ranks), random.random(ranks), random.pareto(0.5, ranks)):
            shares = (weights / weights.sum()).astype(dtype)
            assert np.isfinite((part * shares).cumsum(dtype=dtype)).all()


def test_what_is_refused_is_said():
    largest = np.finfo(np.float32).max
    values = np.array([[1, -largest], [largest / 5, 0]], np.float32)
    assert unfit_to_sum(values, "words", 1) == "" == unfit_to_sum(values / 4, "words", 2)
    assert unfit_to_sum(values, "words", 2) == (
        "1 of 4 values in the gradient of 'words' exceed 1.7e+38, above which their mean over 2 ranks may leave float32"
    )
    assert unfit_to_sum(values, "words", 4, mean=False).startswith(
        "2 of 4 values in the gradient of 'words' exceed 4.25"
    )
    values[0, 0] = np.nan
    for ranks in (1, 2):
        assert unfit_to_sum(values, "words", ranks) == "1 of 4 values in the gradient of 'words' are not finite"
