"""Row ids with the frequencies of Zipf's law: the same draws as those of benchmarks/peers."""

from __future__ import annotations

import numpy as np


def zipf_ids(
    random: np.random.Generator, table: int, exponent: float, count: int, place: np.ndarray | None = None
) -> np.ndarray:
    """Return `count` ids int64 below `table`, with Zipf's frequencies, the frequent ones scattered over it. Local.

    `place` int64[table]: a permutation, the ids by falling frequency; None: one that `random` draws after the ids.
    """
    weights = np.arange(1, table + 1, dtype=np.float64) ** -exponent
    drawn = np.searchsorted(np.cumsum(weights) / weights.sum(), random.random(count))
    if place is None:
        place = random.permutation(table)
    return place[np.minimum(drawn, table - 1)].astype(np.int64)  # the last sum may round to just below 1
