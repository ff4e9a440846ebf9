"""Click logs as batches: numbers and bags of ids for each example, and whether it was clicked."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from hybridmpi.data.sharding import block
from hybridmpi.field_types import Count, Natural, checks_arguments


@dataclass(frozen=True, slots=True)
class ClickBatch:
    """n examples: `features` float32 [n, f]; for each table `ids` int64 [m] and `starts` int64 [n + 1], where example e
    has ids[starts[e]:starts[e + 1]]; `labels` float32 [n], 1 for a click.

    `logits` float64 [n]: those that the labels were drawn from, where they are known: no model can do better.
    """

    features: np.ndarray
    ids: tuple[np.ndarray, ...]
    starts: tuple[np.ndarray, ...]
    labels: np.ndarray
    logits: np.ndarray | None = None

    @property
    def weight(self) -> int:
        """The number of examples: what a mean over ranks is weighted by."""
        return len(self.labels)


class Clicks(Protocol):
    """A click log: `tables`, the rows of each by name; `features`, numbers of an example; `held_out`, how many examples
    are only evaluated on. Both methods are Local, and functions of their arguments: any rank can make any example."""

    tables: dict[str, int]
    features: int
    held_out: int

    def training(self, first: int, count: int) -> ClickBatch:
        """Return examples [first, first + count) of the endless stream that is trained on."""

    def held_out_part(self, first: int, count: int) -> ClickBatch:
        """Return examples [first, first + count) of the `held_out` ones."""


@checks_arguments
def training_batches(
    clicks: Clicks, batch: Count, step: Natural, rank: Natural, ranks: Count
) -> Iterator[ClickBatch | None]:
    """Yield a rank's share of the global batches of `batch` examples, from that of `step` (from 0) on, without end.

    None where the rank has none of it. Together the ranks get the same examples in the same step, whatever their
    number. Local. Raises UsageError for an impossible rank.
    """
    first, count = block(batch, rank, ranks)
    while True:
        yield clicks.training(step * batch + first, count) if count else None
        step += 1


@checks_arguments
def held_out_batches(clicks: Clicks, batch: Count, rank: Natural, ranks: Count) -> Iterator[ClickBatch]:
    """Yield a rank's share of the held-out examples, up to `batch` at a time. Local. UsageError: an impossible rank."""
    first, count = block(clicks.held_out, rank, ranks)
    for start in range(first, first + count, batch):
        yield clicks.held_out_part(start, min(batch, first + count - start))
