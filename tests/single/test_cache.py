"""The cache of rows against a plain dict: what it holds, what makes place for what, the versions it answers with."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hybridmpi.errors import UsageError
from hybridmpi.sparse.cache import CacheOptions, RowCache

ROWS, DIM = 17, 3


class Oracle:
    """A dict of id -> [uses, last use, version, value], row by row."""

    def __init__(self, capacity, policy):
        self.capacity, self.policy, self.kept, self.tick = capacity, policy, {}, 0

    def use(self, ids):
        for i in ids:
            self.kept[i][0] += 1
            self.kept[i][1] = self.tick = self.tick + 1

    def insert(self, ids, values, versions):
        for i, value, version in zip(ids, values, versions, strict=True):
            if len(self.kept) == self.capacity:
                lfu = self.policy == "lfu"
                del self.kept[min(self.kept, key=lambda k: (self.kept[k][0] if lfu else 0, self.kept[k][1]))]
            self.tick += 1
            self.kept[i] = [1, self.tick, version, value]


@settings(deadline=None)
@given(
    st.sampled_from(["lru", "lfu"]),
    st.integers(1, ROWS),
    st.lists(st.sets(st.integers(0, ROWS - 1), max_size=10), max_size=25),
)
def test_cache_equals_a_dict(policy, capacity, requests):
    cache, oracle = RowCache(ROWS, DIM, np.dtype("f4"), capacity, policy), Oracle(capacity, policy)
    for version, request in enumerate(requests):
        ids = np.array(sorted(request), np.int64)
        slots = cache.find(ids)
        assert set(ids[slots >= 0].tolist()) == request & oracle.kept.keys()
        for i, slot in zip(ids.tolist(), slots.tolist(), strict=True):
            if slot >= 0:
                assert cache.versions[slot] == oracle.kept[i][2]
                assert (cache.values[slot] == oracle.kept[i][3]).all()
        cache.use(slots[slots >= 0])
        oracle.use(ids[slots >= 0].tolist())
        # Every third row that is here gets a new value, as if it had changed.
        newer = np.flatnonzero((slots >= 0) & (ids % 3 == version % 3))
        values = (ids[:, None] + 100 * version + np.arange(DIM)).astype("f4")
        cache.update(slots[newer], values[newer], np.full(len(newer), version, np.int32))
        for place in newer:
            oracle.kept[int(ids[place])][2:] = [version, values[place]]
        new = slots < 0
        versions = np.full(int(new.sum()), version, np.int32)
        cache.insert(ids[new], values[new], versions)
        oracle.insert(ids[new].tolist(), values[new], versions)
    everything = np.arange(ROWS)
    assert set(everything[cache.find(everything) >= 0].tolist()) == oracle.kept.keys()
    cache.clear()
    assert (cache.find(everything) < 0).all()


def test_the_least_recently_used_row_goes_first():
    def left(policy):
        cache = RowCache(9, 1, np.dtype("f4"), 2, policy)
        for row in (3, 4):
            cache.insert(np.array([row]), np.zeros((1, 1), "f4"), np.zeros(1, np.int32))
        for row in (3, 3, 4):
            cache.use(cache.find(np.array([row])))
        cache.insert(np.array([5]), np.zeros((1, 1), "f4"), np.zeros(1, np.int32))
        return np.flatnonzero(cache.find(np.arange(9)) >= 0).tolist()

    assert left("lru") == [4, 5] and left("lfu") == [3, 5]


def test_no_rows_and_more_room_than_rows():
    cache = RowCache(0, 2, np.dtype("f8"), 5)
    cache.insert(np.empty(0, np.int64), np.empty((0, 2)), np.empty(0, np.int32))
    assert len(cache.find(np.empty(0, np.int64))) == 0
    cache = RowCache(3, 2, np.dtype("f8"), 5)
    cache.insert(np.arange(3), np.ones((3, 2)), np.zeros(3, np.int32))
    assert (cache.find(np.arange(3)) >= 0).all() and cache.capacity == 3


@pytest.mark.parametrize("options", [{"rows": 0}, {"rows": 3, "staleness": -1}, {"rows": 3, "policy": "fifo"}])
def test_wrong_options_are_refused(options):
    with pytest.raises(UsageError, match=r"CacheOptions\.(rows|staleness|policy) = .*expected"):
        CacheOptions(**options)
