"""How well scores order examples."""

from __future__ import annotations

import math

import numpy as np


def area_under_curve(scores: np.ndarray, labels: np.ndarray) -> float:
    """Return the chance that a positive example scores above a negative one, ties counting half. Local.

    scores [n]; labels [n], positive where above 0. Exact: the rank statistic (Mann and Whitney 1947) in whole numbers.
    NaN where one kind of example is missing, or a score is NaN, which is neither above nor below.
    """
    if np.isnan(scores).any():
        return math.nan
    distinct, place = np.unique(scores, return_inverse=True)
    positive = np.bincount(place[labels > 0], minlength=len(distinct))
    negative = np.bincount(place[labels <= 0], minlength=len(distinct))
    pairs = int(positive.sum()) * int(negative.sum())
    below = np.cumsum(negative) - negative
    return int((positive * (2 * below + negative)).sum()) / (2 * pairs) if pairs else math.nan
