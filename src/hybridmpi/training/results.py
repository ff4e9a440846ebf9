"""What a step took in and what it did."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from hybridmpi.errors import UsageError


@dataclass(frozen=True)
class StepResult:
    """What a step did, the same on every compute rank, but for the times and bytes, which are this rank's. Where ranks
    do not train synchronously, all of it is this rank's own.

    `loss`: mean over all examples of all ranks; `examples`: how many; `skipped`: nothing was updated since something
    was not finite. `seconds` by phase and `bytes` by category are of this step; `hidden_seconds`: how long sums of
    dense gradients were under way while backward went on. `notes`: what was changed after it, and why, in words.
    `rows`: with prefetch or a cache, what became of the rows wanted of other nodes (sparse/reader.py: COUNTS).
    """

    step: int
    loss: float
    examples: int
    skipped: bool
    total_seconds: float
    hidden_seconds: float
    seconds: dict[str, float] = field(repr=False)
    bytes: dict[str, int] = field(repr=False)
    notes: tuple[str, ...] = ()
    rows: dict[str, int] = field(repr=False, default_factory=dict)


@dataclass(frozen=True)
class ReadFailure:
    """In place of a batch: the error that reading it raised, which all ranks must hear of."""

    error: BaseException


def examples(batch: Any) -> float:
    """Return how many examples a batch has, which its mean loss is weighted by: its `weight`, or the length of it or of
    its first array. Local."""
    weight = getattr(batch, "weight", None)
    if weight is None:
        first = batch[0] if isinstance(batch, (tuple, list)) else batch
        weight = len(first)
    weight = float(weight)
    if not (np.isfinite(weight) and weight >= 0):
        raise UsageError(f"a batch of {weight} examples: expected a finite number from 0 up")
    return weight
