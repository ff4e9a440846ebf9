"""Alpha as a moving mean; load of owners by partition."""

import json

import numpy as np
import pytest

from hybridmpi.errors import UsageError
from hybridmpi.planning.access import balance, owner_access, part_access, shares, uneven
from hybridmpi.planning.alpha import Alpha, AlphaMean
from hybridmpi.planning.sparsity import Counted, Draws, Zipf, expected_rows
from hybridmpi.sparse.partition import Partition


def test_alpha_is_the_mean_from_the_first_step_and_follows_changes():
    mean = AlphaMean(decay=0.9)
    assert mean.mean is None
    mean.add(0.1, 0.2, 0.3)
    assert np.allclose(mean.mean, (0.1, 0.2, 0.3))
    values = [0.1]
    for step in range(80):
        values.append(0.5 if step >= 40 else 0.1)
        mean.add(values[-1], 0.6, 0.7)
    weights = 0.9 ** np.arange(len(values))[::-1]
    assert np.isclose(mean.mean.rank, np.average(values, weights=weights))
    again = AlphaMean.restored(json.loads(json.dumps(mean.state())))
    mean.add(0.2, 0.6, 0.8)
    again.add(0.2, 0.6, 0.8)
    assert again.mean == mean.mean and isinstance(again.mean, Alpha)


@pytest.mark.parametrize("levels", [(0.3, 0.2, 0.5), (0.1, 0.2, 1.5), (-0.1, 0.2, 0.3), (0.1, float("nan"), 0.3)])
def test_impossible_alphas_are_refused(levels):
    with pytest.raises(UsageError, match="expected 0 <= rank <= node <= all <= 1"):
        AlphaMean().add(*levels)


def test_block_loads_the_owner_of_the_head_and_cyclic_does_not():
    draws, owners = [Draws(Zipf(100_000, 1.0), 2000)], 4
    block, cyclic = (Partition.even(100_000, owners, kind) for kind in ("block", "cyclic"))
    by_block, by_cyclic = (balance(p, owner_access(draws, p, 8)) for p in (block, cyclic))
    assert by_block.bytes == by_cyclic.bytes == 1
    assert by_block.access > 1.9 and by_cyclic.access < 1.01
    for partition in (block, cyclic):
        assert np.isclose(owner_access(draws, partition).sum(), expected_rows(draws), rtol=1e-4)
        assert np.isclose(sum(shares(draws, partition)), 1)


def test_access_of_parts_equals_counting():
    counts = np.array([40, 1, 30, 2, 20, 0, 10, 3, 9])
    partition = Partition(9, 2, "block", (0, 1, 1))
    chances = counts / counts.sum()
    touched = 1 - (1 - chances) ** 5
    draws = [Draws(Counted(counts), 5)]
    assert np.allclose(part_access(draws, partition), [touched[:3].sum(), touched[3:6].sum(), touched[6:].sum()])
    assert np.allclose(owner_access(draws, partition), [touched[:3].sum(), touched[3:].sum()])
    assert np.isclose(balance(partition, np.array([3.0, 1.0])).bytes, 6 / 4.5)
    assert uneven([0, 0]) == 1
