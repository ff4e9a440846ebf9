"""The partition search: published samples, the rule's order of visits, bounds, and going on from a saved state."""

import json

import numpy as np
import pytest

from hybridmpi.errors import UsageError
from hybridmpi.planning.search import Curve, PartitionSearch, fit, typical

# Words/s by number of partitions (Parallax, arXiv 1808.02621).
LM = {2: 62_291, 4: 109_056, 8: 190_609, 16: 279_107, 32: 299_567, 64: 303_882, 128: 286_200}
NMT = {2: 105_720, 4: 119_880, 8: 128_160, 16: 133_080, 32: 130_680}


def run(search, seconds):
    visited = []
    while (partitions := search.next()) is not None:
        visited.append(partitions)
        search.report(partitions, seconds(partitions))
    return visited


@pytest.mark.parametrize("words", [1.0, 1e6], ids=["a word", "many words"])
def test_published_samples_give_the_published_answers(words):
    lm, nmt = PartitionSearch(machines=8), PartitionSearch(machines=4)
    assert run(lm, lambda p: words / LM[p]) == [8, 16, 32, 64, 128, 4]
    assert run(nmt, lambda p: words / NMT[p]) == [4, 8, 16, 32, 2]
    assert (lm.result(), nmt.result()) == (48, 19)


def test_a_search_goes_on_from_its_state_after_any_sample():
    whole = PartitionSearch(machines=8)
    order = run(whole, lambda p: 1 / LM[p])
    for stop in range(len(order)):
        first = PartitionSearch(machines=8)
        for partitions in order[:stop]:
            first.report(partitions, 1 / LM[partitions])
        second = PartitionSearch.restored(json.loads(json.dumps(first.state())))
        assert run(second, lambda p: 1 / LM[p]) == order[stop:]
        assert second.result() == whole.result() and second.samples == whole.samples


@pytest.mark.parametrize("c1, c2, start", [(1.0, 0.01, 2), (9.0, 0.02, 64), (0.3, 0.3, 16), (50.0, 1e-4, 4)])
def test_exact_curves_are_found_from_either_side(c1, c2, start):
    curve = Curve(2.0, c1, c2)
    search = PartitionSearch(start)
    run(search, curve.seconds)
    low, high = min(search.samples), max(search.samples)
    brute = min(range(low, high + 1), key=curve.seconds)
    assert search.result() == brute
    found = fit(search.samples)
    assert np.allclose([found.c0, found.c1, found.c2], [2.0, c1, c2], rtol=1e-6)


def test_bounds_are_kept():
    search = PartitionSearch(machines=8, least=8, most=40)
    assert run(search, lambda p: 1 / p) == [8, 16, 32]
    assert search.result() == 32
    search = PartitionSearch(machines=8, least=1, most=3)
    assert run(search, lambda p: float(p)) == [3, 1] and search.result() == 1
    search = PartitionSearch(machines=1)
    assert run(search, lambda p: 1.0) == [1, 2] and search.result() == 1


def test_wrong_signs_are_no_part_of_the_curve():
    falling = fit({2: 4.0, 4: 3.0, 8: 1.0, 16: 0.1})
    rising = fit({1: 1.0, 2: 3.0, 4: 4.0, 8: 4.5})
    assert falling.c2 == 0 and falling.best(2, 16) == 16
    assert rising.c1 == 0 and rising.best(1, 8) == 1
    assert fit({2: 1.0, 4: 1.0, 8: 1.0}).best(2, 8) == 2


def test_samples_are_medians_after_the_warm_up():
    assert typical([9, 9, 9, 1, 2, 30], warm_up=3) == 2
    with pytest.raises(UsageError, match="of which 3 warm up"):
        typical([1.0] * 3, warm_up=3)


def test_wrong_use_is_named():
    search = PartitionSearch(machines=4)
    with pytest.raises(UsageError, match="no sample yet"):
        search.result()
    with pytest.raises(UsageError, match="a time for 7 partitions, where 4"):
        search.report(7, 1.0)
    with pytest.raises(UsageError, match="finite number above 0"):
        search.report(4, float("nan"))
    with pytest.raises(UsageError, match="1 <= least <= most"):
        PartitionSearch(4, least=9, most=8)
