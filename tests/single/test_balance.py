"""Where parts should lie: the load is spread, few rows move, and the text says why."""

import itertools

import numpy as np
import pytest

from hybridmpi.errors import UsageError
from hybridmpi.planning.balance import MOST_STORED, Part, propose


def parts_of(pushed, homes, stored=None):
    stored = stored or [100] * len(pushed)
    return [Part("t", i, s, p, h) for i, (s, p, h) in enumerate(zip(stored, pushed, homes, strict=True))]


def loads(parts, proposal, owners, what="pushed"):
    total = [0] * owners
    for part in parts:
        total[proposal.homes[part.table, part.number]] += getattr(part, what)
    return total


def test_a_hot_part_gets_an_owner_for_itself():
    parts = parts_of([60, 20, 20, 20], [0, 0, 1, 1])
    proposal = propose(parts, 2)
    assert proposal.pays and sorted(loads(parts, proposal, 2)) == [60, 60]
    assert proposal.before == pytest.approx(80 / 60) and proposal.after == 1
    assert proposal.moved == 100 and "1.33 times the mean, 1.00 after 1 of 4 parts move (100 bytes)" in proposal.reason


def test_what_is_balanced_stays():
    proposal = propose(parts_of([10, 11, 10, 11], [0, 1, 1, 0]), 2)
    assert not proposal.pays and proposal.moved == 0 and "nothing to gain" in proposal.reason
    assert list(proposal.homes.values()) == [0, 1, 1, 0]


def test_small_gains_move_nothing():
    parts = parts_of([11, 10, 10, 9], [0, 0, 1, 1])
    proposal = propose(parts, 2)
    assert not proposal.pays and proposal.after == 1.05 and "1.00 at best: not worth moving" in proposal.reason
    assert propose(parts, 2, least_gain=0.04).pays


def test_one_part_that_is_too_hot_is_named():
    proposal = propose(parts_of([90, 5, 5], [0, 1, 2]), 3)
    assert not proposal.pays and "part 0 of 't' alone has 2.70 times the mean: more parts would help" in proposal.reason


def test_before_any_push_bytes_stored_count():
    parts = parts_of([0, 0, 0, 0], [0, 0, 0, 1], [10, 10, 10, 10])
    proposal = propose(parts, 2)
    assert proposal.pays and loads(parts, proposal, 2, "stored") == [20, 20] and "bytes stored" in proposal.reason


def test_no_owner_stores_too_much():
    """All pushes go to small parts: by pushes alone one owner could have all the large ones."""
    parts = parts_of([50, 50, 1, 1, 1, 1], [0, 0, 0, 0, 0, 0], [1, 1, 100, 100, 100, 100])
    proposal = propose(parts, 2)
    assert max(loads(parts, proposal, 2, "stored")) <= MOST_STORED * 402 / 2


def test_nothing_at_all():
    assert not propose([], 3).pays and not propose(parts_of([0], [0], [0]), 1).pays
    with pytest.raises(UsageError, match="an owner from 0 to 1"):
        propose(parts_of([1], [2]), 2)


@pytest.mark.parametrize("seed", range(30))
def test_within_four_thirds_of_the_best(seed):
    rng = np.random.default_rng(seed)
    owners, count = int(rng.integers(1, 4)), int(rng.integers(1, 8))
    pushed = rng.integers(0, 50, count).tolist()
    parts = parts_of(pushed, rng.integers(0, owners, count).tolist(), [1] * count)
    proposal = propose(parts, owners, least_gain=0.0)
    best = min(
        max(np.bincount(homes, weights=pushed, minlength=owners))
        for homes in itertools.product(range(owners), repeat=count)
    )
    assert max(loads(parts, proposal, owners)) <= 1.4 * best + 1e-9
    again = [Part(p.table, p.number, p.stored, p.pushed, proposal.homes[p.table, p.number]) for p in parts]
    assert not propose(again, owners).pays
