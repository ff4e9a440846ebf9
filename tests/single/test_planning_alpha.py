"""The moving mean of alpha: a weighted mean of what was seen, and the same in a run that goes on with it."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hybridmpi.errors import UsageError
from hybridmpi.planning.alpha import AlphaMean

levels = st.lists(st.floats(0, 1), min_size=3, max_size=3).map(sorted)


@given(st.lists(levels, min_size=1, max_size=30), st.sampled_from([0.5, 0.9, 0.98]), st.integers(0, 30))
def test_it_is_the_weighted_mean_of_all_that_was_added(seen, decay, resumed):
    mean = AlphaMean(decay)
    assert mean.mean is None
    for number, alpha in enumerate(seen):
        if number == resumed:
            mean = AlphaMean.restored(json.loads(json.dumps(mean.state())))
        mean.add(*alpha)
        weights = decay ** np.arange(number, -1, -1)
        np.testing.assert_allclose(mean.mean, np.average(seen[: number + 1], axis=0, weights=weights), 1e-9, 1e-12)


@pytest.mark.parametrize("alpha", [(0.5, 0.4, 0.6), (-0.1, 0, 0), (0, 0.2, 0.1), (0, 0, 1.1), (float("nan"), 1, 1)])
def test_what_is_no_alpha_is_refused(alpha):
    with pytest.raises(UsageError, match="expected 0 <= rank <= node <= all <= 1"):
        AlphaMean().add(*alpha)
