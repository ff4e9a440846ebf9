"""Minimum, maximum, mean, deviation, norm and a sample of many values, in one pass over small blocks of them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

# What is widened to float64 at a time: small enough for the second-level cache.
BLOCK = 1 << 15
# So many values, evenly taken, tell a histogram of 24 bins and a median as well as all of them do.
SAMPLE = 1 << 18
BINS = 24
# The share of the sample that a histogram leaves out at each end, lest one far value hide all others.
TAIL = 0.001


class Moments:
    """What `add` was given so far, of about `total` values. NaN and infinities are counted, and left out of the rest.

    Sums are in float64 and relative to a value near the mean, so that a small deviation beside a large mean is right.
    `width` is the length of rows, lest the sample take the same columns only.
    """

    def __init__(self, total: int, width: int = 1) -> None:
        self.count = self.zeros = self.nan = self.infinite = 0
        self.minimum, self.maximum = math.inf, -math.inf
        self.norm = 0.0
        self._mean = self._squares = 0.0  # of the finite values; the squares are of their distances from the mean
        self._finite = 0
        self._wide, self._is_zero = np.empty(BLOCK), np.empty(BLOCK, bool)
        self._every = max(1, total // SAMPLE)
        while math.gcd(self._every, max(1, width)) > 1:
            self._every += 1
        self._taken: list[np.ndarray] = []

    def add(self, values: np.ndarray) -> None:
        """Take in values, [n] or [n, width], C-contiguous. Local."""
        flat = values.reshape(-1)
        for begin in range(0, flat.size, BLOCK):
            self._add_block(flat[begin : begin + BLOCK])

    def _add_block(self, block: np.ndarray) -> None:
        wide = self._wide[: block.size]
        np.copyto(wide, block)
        self._taken.append(block[-self.count % self._every :: self._every].copy())
        self.count += block.size
        self.zeros += int(np.count_nonzero(np.equal(block, 0, out=self._is_zero[: block.size])))
        with np.errstate(over="ignore", invalid="ignore"):
            square = float(wide @ wide)
        if math.isfinite(square):
            self._add_finite(wide, math.sqrt(square), float(block.min()), float(block.max()))
        else:
            self._add_strange(wide)

    def _add_strange(self, wide: np.ndarray) -> None:
        """Add a block with values that are not finite, or whose squares are not."""
        self.nan += int(np.isnan(wide).sum())
        self.infinite += int(np.isinf(wide).sum())
        finite = wide[np.isfinite(wide)]
        if finite.size:
            largest = float(np.abs(finite).max())
            norm = largest * float(np.linalg.norm(finite / largest)) if largest else 0.0
            self._add_finite(finite, norm, float(finite.min()), float(finite.max()))

    def _add_finite(self, wide: np.ndarray, norm: float, minimum: float, maximum: float) -> None:
        """Add finite values, which are overwritten. Means and squares meet as in Chan, Golub, LeVeque (1979)."""
        self.minimum, self.maximum = min(self.minimum, minimum), max(self.maximum, maximum)
        self.norm = math.hypot(self.norm, norm)
        count, shift = wide.size, float(wide[0])
        with np.errstate(over="ignore", invalid="ignore"):
            wide -= shift
            beyond = float(wide.sum()) / count
            squares = max(0.0, float(wide @ wide) - count * beyond * beyond)
            away = shift + beyond - self._mean
            both = self._finite + count
            self._squares += squares + away * away * (self._finite / both * count)
            self._mean += away * (count / both)
            self._finite = both

    def summary(self) -> dict[str, Any]:
        """Return all as plain data; None where it cannot be told, as the mean of nothing or what overflows. Local."""
        known = self._finite > 0
        return {
            "count": self.count,
            "min": self.minimum if known else None,
            "max": self.maximum if known else None,
            "mean": _finite(self._mean) if known else None,
            "std": _finite(math.sqrt(self._squares / self._finite)) if known and self._squares >= 0 else None,
            "norm": _finite(self.norm) if known else None,
            "zeros": self.zeros,
            "nan": self.nan,
            "infinite": self.infinite,
        }

    def sample(self) -> np.ndarray:
        """Return the finite values of an even sample, float64. Local."""
        sample = np.concatenate(self._taken).astype(np.float64) if self._taken else np.empty(0)
        return sample[np.isfinite(sample)]


def histogram(sample: np.ndarray) -> dict[str, Any] | None:
    """Return {"from", "to", "counts", "sample"} of finite values without the last TAIL at each end; None of none."""
    if not sample.size:
        return None
    low, high = (float(end) for end in np.quantile(sample, (TAIL, 1 - TAIL), method="nearest"))
    if low == high:
        low, high = float(sample.min()), float(sample.max())
    if low == high or not math.isfinite(high - low):
        return {"from": low, "to": high, "counts": [int(sample.size)], "sample": int(sample.size)}
    counts = np.histogram(sample, BINS, (low, high))[0]
    return {"from": low, "to": high, "counts": counts.tolist(), "sample": int(sample.size)}


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
