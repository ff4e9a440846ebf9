"""Buckets: all dense parameters and their gradients as slices of few flat buffers, so that nothing is copied before an
all-reduce (swCaffe's packing)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

# A parameter starts at a multiple of this many elements: its view is aligned for SIMD whatever came before it.
ALIGNMENT = 16


@dataclass(frozen=True)
class Slice:
    """Where a parameter lies in its bucket: elements [start, stop) of the flat buffer, read as `shape`."""

    name: str
    start: int
    shape: tuple[int, ...]

    @property
    def stop(self) -> int:
        return self.start + int(np.prod(self.shape, dtype=np.int64))


class Bucket:
    """One flat buffer of values and one of gradients, with a view of each per parameter. Local."""

    def __init__(self, dtype: np.dtype, slices: list[Slice]) -> None:
        self.dtype, self.slices = dtype, slices
        length = -(-slices[-1].stop // ALIGNMENT) * ALIGNMENT if slices else 0
        self.values = np.zeros(length, dtype)
        self.gradients = np.zeros(length, dtype)

    def view(self, flat: np.ndarray, part: Slice) -> np.ndarray:
        """Return the parameter's part of `flat`, a buffer of this bucket's layout, in the parameter's shape."""
        return flat[part.start : part.stop].reshape(part.shape)


def layout(
    shapes: Iterable[tuple[str, tuple[int, ...], np.dtype]], bucket_bytes: int, first_bytes: int | None = None
) -> list[Bucket]:
    """Return the buckets for (name, shape, dtype) of all dense parameters, in this order. Local.

    One dtype per bucket. A bucket is full with the parameter that brings it to `bucket_bytes`, or to `first_bytes` for
    the first one of a dtype: a large matrix goes with the bias before it. The same on every rank, and so is the order
    of sums.
    """
    by_dtype: dict[np.dtype, list[tuple[str, tuple[int, ...]]]] = {}
    for name, shape, dtype in shapes:
        by_dtype.setdefault(np.dtype(dtype), []).append((name, tuple(shape)))
    buckets = []
    for dtype in sorted(by_dtype, key=lambda d: d.name):
        slices: list[Slice] = []
        most = bucket_bytes if first_bytes is None else first_bytes
        for name, shape in by_dtype[dtype]:
            start = -(-slices[-1].stop // ALIGNMENT) * ALIGNMENT if slices else 0
            slices.append(Slice(name, start, shape))
            if slices[-1].stop * dtype.itemsize >= most:
                buckets.append(Bucket(dtype, slices))
                slices, most = [], bucket_bytes
        if slices:
            buckets.append(Bucket(dtype, slices))
    return buckets
