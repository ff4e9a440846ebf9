"""Generated click logs: any rank makes any example, ids follow the power law, labels the hidden model."""

import numpy as np
import pytest

from hybridmpi.data import GeneratedClicks, held_out_batches, training_batches
from hybridmpi.data.generated_clicks import CRITEO_ROWS
from hybridmpi.errors import UsageError


def small(divide=100_000, exponent=1.2, bag=3, held_out=50, seed=1):
    return GeneratedClicks(divide, exponent, bag, held_out, seed)


def joined(batches):
    """Return (features, ids of each table, labels, logits) of batches one after the other; bags here have one size."""
    return [
        np.concatenate([batch.features for batch in batches]),
        *(np.concatenate([batch.ids[t] for batch in batches]) for t in range(len(CRITEO_ROWS))),
        np.concatenate([batch.labels for batch in batches]),
        np.concatenate([batch.logits for batch in batches]),
    ]


def assert_same(first, second):
    for one, other in zip(first, second, strict=True):
        np.testing.assert_array_equal(one, other)


def test_batches_have_the_promised_arrays():
    clicks = small()
    batch = clicks.training(7, 5)
    assert batch.weight == 5 and batch.features.shape == (5, clicks.features) and batch.features.dtype == np.float32
    assert len(batch.ids) == len(batch.starts) == len(clicks.tables) == 26
    for ids, starts, rows in zip(batch.ids, batch.starts, clicks.tables.values(), strict=True):
        np.testing.assert_array_equal(starts, [0, 3, 6, 9, 12, 15])
        assert ids.dtype == starts.dtype == np.int64 and ids.shape == (15,) and 0 <= ids.min() <= ids.max() < rows
    assert set(batch.labels) <= {0.0, 1.0} and batch.labels.dtype == np.float32
    assert clicks.training(3, 0).features.shape == (0, 13)


@pytest.mark.parametrize("ranks", [1, 2, 3, 7])
def test_ranks_share_the_examples_of_one(ranks):
    """A batch of 5 leaves some of seven ranks without any."""
    clicks = small()
    whole = joined([clicks.training(step * 5, 5) for step in (2, 3)])
    parts = []
    streams = [training_batches(clicks, 5, 2, rank, ranks) for rank in range(ranks)]
    for _ in range(2):
        parts += [part for stream in streams if (part := next(stream)) is not None]
    assert_same(joined(parts), whole)
    held_out = [part for rank in range(ranks) for part in held_out_batches(clicks, 4, rank, ranks)]
    assert_same(joined(held_out), joined([clicks.held_out_part(0, 50)]))


def test_the_seed_and_the_part_decide():
    clicks = small()
    assert_same(joined([clicks.training(0, 40)]), joined([small().training(0, 40)]))
    for other in (small(seed=2).training(0, 40), clicks.held_out_part(0, 40), clicks.training(40, 40)):
        for one, two in zip(joined([clicks.training(0, 40)]), joined([other]), strict=True):
            assert (one != two).any()


def test_tables_are_the_benchmarks():
    rows = list(GeneratedClicks(1000, 1.0, 1, 0, 1).tables.values())
    assert len(rows) == 26 and sum(CRITEO_ROWS) == 33_762_577
    assert all(
        max(3, count / 1000) <= own < max(3, count / 1000) + 1 for count, own in zip(CRITEO_ROWS, rows, strict=True)
    )


@pytest.mark.parametrize("exponent", [0.0, 0.7, 1.0, 1.6])
def test_ids_follow_the_power_law(exponent):
    """Frequencies against the integral, within five standard deviations, in a table of 101 rows."""
    clicks = small(exponent=exponent, bag=2)
    (table,) = [t for t, rows in enumerate(clicks.tables.values()) if rows == 102]
    found = np.bincount(clicks.training(0, 20_000).ids[table], minlength=102)
    edges = np.arange(1.0, 104)
    mass = np.log(edges) if exponent == 1 else edges ** (1 - exponent) / (1 - exponent)
    expected = np.diff(mass) / (mass[-1] - mass[0]) * found.sum()
    assert len(found) == 102 and (np.abs(found - expected) <= 5 * np.sqrt(expected) + 1).all()


def test_labels_are_drawn_from_the_logits():
    batch = small().training(0, 40_000)
    p = 1 / (1 + np.exp(-batch.logits))
    assert 0.15 < p.mean() < 0.4 and batch.logits.std() > 1
    for low in np.arange(0, 1, 0.2):  # calibrated in every fifth
        mine = (p >= low) & (p < low + 0.2)
        deviation = np.sqrt((p * (1 - p))[mine].sum())
        assert abs(batch.labels[mine].sum() - p[mine].sum()) < 5 * deviation + 1


def test_large_tables_make_ids_of_all_sizes():
    clicks = GeneratedClicks(1, 0.5, 1, 0, 3)
    ids = clicks.training(10**12, 4000).ids[2]
    assert ids.max() > 9_000_000 and ids.min() < 50_000


def test_impossible_sizes():
    for sizes in ({"divide": 0}, {"bag": 0}, {"held_out": -1}):
        with pytest.raises(UsageError, match=rf"GeneratedClicks\.{next(iter(sizes))} = .*at least"):
            small(**sizes)
