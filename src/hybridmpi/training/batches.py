"""What a step is given: a batch, none, or the error of reading one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from hybridmpi.errors import UsageError


@dataclass(frozen=True)
class Failure:
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
