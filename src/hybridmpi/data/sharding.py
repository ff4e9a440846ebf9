"""Which elements belong to which shard: every k-th for files and examples, a block for streams."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import TypeVar

from hybridmpi.errors import UsageError

T = TypeVar("T")


def shard(items: Iterable[T], index: int, count: int) -> Iterator[T]:
    """Yield the elements of shard `index` of `count`: element i belongs to shard i mod count. Local.

    The shards are disjoint and cover `items`, whose order must be the same on every rank (sort file names first).
    Parallax, section 5 (arXiv 1808.02621). Raises UsageError for an index outside [0, count).
    """
    _check(index, count)
    return islice(items, index, None, count)


def block(total: int, index: int, count: int) -> tuple[int, int]:
    """Return (first, length) of part `index` when `total` elements are cut into `count` contiguous parts. Local.

    Lengths differ by at most one, longer parts first; with fewer elements than parts some are empty.
    Raises UsageError for an index outside [0, count).
    """
    _check(index, count)
    length, longer = divmod(total, count)
    return index * length + min(index, longer), length + (index < longer)


def _check(index: int, count: int) -> None:
    if not 0 <= index < count:
        raise UsageError(f"shard {index} of {count}: expected 0 <= index < count")
