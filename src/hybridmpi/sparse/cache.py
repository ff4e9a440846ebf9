"""Rows of other nodes that a rank keeps, each with the version that it is known to hold for (HET, VLDB 2022)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from hybridmpi import kernels
from hybridmpi.field_types import Count, Natural, Options
from hybridmpi.kernels.cpu import cpu_kernel

Policy = Literal["lru", "lfu"]

# A row's key says when it goes: the lowest first. Above these bits stands how often it was used, which least-recently-
# used leaves out; below them when it was last: a number that counts uses of any row, enough for 10^12 of them.
USE_BITS = 40
MOST_USES = 1 << 22


@dataclass(frozen=True)
class CacheOptions(Options):
    """How many rows of each table a rank keeps, and for how long it uses them.

    `rows`: the most, of each table. `policy`: the row that makes place for a new one is the one used least recently
    ("lru") or least often ("lfu", of equals the least recently). `staleness`: a kept row is used without asking its
    owner until it is so many steps old; older, the owner is asked whether it has changed. 0: the owner is always
    asked, so that every step reads the same bits as without a cache, and saves the bytes of rows that have not changed.
    """

    rows: Count
    policy: Policy = "lru"
    staleness: Natural = 0


class RowCache:
    """Up to `capacity` rows of a table of `rows` x `dim`, found by id. Local.

    Rows lie in slots. Beside them it takes 4 bytes of address space for each row of the table, of which only pages
    with ids that were kept are ever touched.
    """

    def __init__(self, rows: int, dim: int, dtype: np.dtype, capacity: int, policy: Policy = "lru") -> None:
        self.capacity = min(capacity, rows)
        self.values = np.empty((self.capacity, dim), dtype)
        self.versions = np.empty(self.capacity, np.int32)
        self.used = 0
        self._counts = policy == "lfu"
        self._tick = 0
        self._slot_of = np.zeros(rows, np.int32)  # plus 1; 0: not here
        self._ids = np.empty(self.capacity, np.int64)
        self._keys = np.empty(self.capacity, np.int64)
        # A heap of (key, slot), each slot once. A key only grows while its row is here, so the heap may hold an older
        # one: it is brought up to date when it comes to the top. Using a row costs nothing but its key.
        self._heap_keys = np.empty(self.capacity, np.int64)
        self._heap_slots = np.empty(self.capacity, np.int64)

    def find(self, ids: np.ndarray) -> np.ndarray:
        """Return the slots of `ids` int64[n], -1 where a row is not here, as int64[n]."""
        return self._slot_of[ids].astype(np.int64) - 1

    def use(self, slots: np.ndarray) -> None:
        """Note that the rows in `slots` were used now, one after the other."""
        uses = (self._keys[slots] >> USE_BITS) + self._counts
        self._keys[slots] = np.minimum(uses, MOST_USES) << USE_BITS | np.arange(self._tick, self._tick + len(slots))
        self._tick += len(slots)

    def update(self, slots: np.ndarray, values: np.ndarray, versions: np.ndarray) -> None:
        """Put newer values [n, dim] into `slots`, and the versions int32[n] that they hold for."""
        kernels.scatter(self.values, slots, values)
        self.versions[slots] = versions

    def insert(self, ids: np.ndarray, values: np.ndarray, versions: np.ndarray) -> None:
        """Keep rows `ids` int64[n] that are not here, in their order, with their values [n, dim] and versions int32[n].
        Each, once all slots are taken, replaces the one that the policy names."""
        if self.capacity == 0 or len(ids) == 0:
            return
        self.used = _insert(
            ids, values, versions, self.used, self._tick, int(self._counts), self._slot_of, self._ids, self._keys,
            self._heap_keys, self._heap_slots, self.values, self.versions,
        )  # fmt: skip
        self._tick += len(ids)

    def clear(self) -> None:
        """Keep nothing."""
        self._slot_of[self._ids[: self.used]] = 0
        self.used = 0


@cpu_kernel
def _insert(ids, values, versions, used, tick, uses, slot_of, ids_of, keys, heap_keys, heap_slots, kept, kept_versions):
    """Return how many slots are used then."""
    for i in range(len(ids)):
        key = (uses << USE_BITS) | (tick + i)
        if used < len(keys):
            slot = used
            used += 1
            place = slot
            while place > 0 and heap_keys[(place - 1) // 2] > key:
                above = (place - 1) // 2
                heap_keys[place], heap_slots[place] = heap_keys[above], heap_slots[above]
                place = above
            heap_keys[place], heap_slots[place] = key, slot
        else:
            while heap_keys[0] != keys[heap_slots[0]]:
                _replace_top(heap_keys, heap_slots, keys[heap_slots[0]])
            slot = heap_slots[0]
            slot_of[ids_of[slot]] = 0
            _replace_top(heap_keys, heap_slots, key)
        keys[slot], ids_of[slot], slot_of[ids[i]] = key, ids[i], slot + 1
        kept_versions[slot] = versions[i]
        for c in range(values.shape[1]):
            kept[slot, c] = values[i, c]
    return used


@cpu_kernel
def _replace_top(heap_keys, heap_slots, key):
    """Give the top of a full heap another key, and bring it to its place."""
    slot, place, size = heap_slots[0], 0, len(heap_keys)
    while 2 * place + 1 < size:
        below = 2 * place + 1
        if below + 1 < size and heap_keys[below + 1] < heap_keys[below]:
            below += 1
        if heap_keys[below] >= key:
            break
        heap_keys[place], heap_slots[place] = heap_keys[below], heap_slots[below]
        place = below
    heap_keys[place], heap_slots[place] = key, slot
