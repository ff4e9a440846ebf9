"""Minimum, maximum, mean, deviation, norm and a sample of many values, in one pass over small blocks of them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

# What is worked on at once: small enough for the second-level cache.
BLOCK = 1 << 16
# Arrays with more values than these are summed in float32 within blocks, if they are not wider themselves: the errors
# of so many blocks cancel, and it takes half the time.
EXACT = 1 << 20
# Squares of values whose greatest is between these neither overflow nor vanish, in float32 and in float64.
SQUARED = {np.dtype(np.float32): (1e-12, 1e15), np.dtype(np.float64): (1e-140, 1e150)}
# So many values, evenly taken, tell a histogram of 24 bins and a median as well as all of them do.
SAMPLE = 1 << 18
BINS = 24
# The share of the sample that a histogram leaves out at each end, lest one far value hide all others.
TAIL = 0.001


class Moments:
    """What `add` was given so far, of about `total` values. NaN and infinities are counted, and left out of the rest.

    Sums are of differences from the mean so far, so that a small deviation beside a large mean is right. `width` is
    the length of rows, lest the sample take the same columns only.
    """

    def __init__(self, total: int, width: int = 1) -> None:
        self.count = self.zeros = self.nan = self.infinite = 0
        self.minimum, self.maximum = math.inf, -math.inf
        self.norm = 0.0
        self._mean = self._squares = 0.0  # of the finite values; the squares are of their distances from the mean
        self._finite = 0
        self._is_zero = np.empty(BLOCK, bool)
        self._differences = {dtype: np.empty(BLOCK, dtype) for dtype in SQUARED}
        self._is_large = total > EXACT
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
        self._taken.append(block[-self.count % self._every :: self._every].copy())
        self.count += block.size
        low, high = float(block.min()), float(block.max())  # NaN if there is one
        if not (low > 0 or high < 0):
            self.zeros += int(np.count_nonzero(np.equal(block, 0, out=self._is_zero[: block.size])))
        greatest = max(-low, high)
        is_narrow = block.dtype.kind == "f" and block.dtype.itemsize <= 4
        for dtype, (least, most) in SQUARED.items():
            if (dtype.itemsize == 8 or (is_narrow and self._is_large)) and (
                least < greatest < most or low == high == 0
            ):
                self._add_sane(block, dtype, low, high)
                return
        self._add_strange(block.astype(np.float64))

    def _add_sane(self, block: np.ndarray, dtype: np.dtype, low: float, high: float) -> None:
        """Add a block whose squares and sums can be taken in `dtype`."""
        shift = dtype.type(self._mean if self._finite else block.mean(dtype=np.float64))
        differences = np.subtract(block, shift, out=self._differences[dtype][: block.size])
        shift, count = float(shift), block.size
        total, squares = float(differences.sum()), float(differences @ differences)
        norm = math.sqrt(max(0.0, squares + shift * (2 * total + count * shift)))
        self._merge(count, shift + total / count, max(0.0, squares - total * (total / count)), norm, low, high)

    def _add_strange(self, wide: np.ndarray) -> None:
        """Add a block with values that are not finite, or whose squares overflow or vanish."""
        self.nan += int(np.count_nonzero(np.isnan(wide)))
        self.infinite += int(np.count_nonzero(np.isinf(wide)))
        finite = wide[np.isfinite(wide)]
        if not finite.size:
            return
        low, high = float(finite.min()), float(finite.max())
        scale = max(-low, high) or 1.0
        finite /= scale
        mean = float(finite.mean())
        squares = float(np.square(finite - mean).sum()) * scale * scale
        self._merge(finite.size, mean * scale, squares, float(np.linalg.norm(finite)) * scale, low, high)

    def _merge(self, count: int, mean: float, squares: float, norm: float, low: float, high: float) -> None:
        """Take in what is known of `count` finite values, as in Chan, Golub and LeVeque (1979)."""
        self.minimum, self.maximum = min(self.minimum, low), max(self.maximum, high)
        self.norm = math.hypot(self.norm, norm)
        away, both = mean - self._mean, self._finite + count
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
