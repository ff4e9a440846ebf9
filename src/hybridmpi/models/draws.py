"""Draws that depend on where they are made, not on the order: for models that generate."""

from __future__ import annotations

from typing import Any

import numpy as np

_WORD = (1 << 64) - 1


def below(seed: int, number: int) -> int:
    """Return the seed of part `number` of what has a seed, 64 bits (splitmix64, Steele et al. 2014). Local."""
    seed = (seed + (number + 1) * 0x9E3779B97F4A7C15) & _WORD
    seed = ((seed ^ (seed >> 30)) * 0xBF58476D1CE4E5B9) & _WORD
    seed = ((seed ^ (seed >> 27)) * 0x94D049BB133111EB) & _WORD
    return seed ^ (seed >> 31)


def choose(logits: Any, seed: int) -> int:
    """Return one of the numbers of logits [n], drawn from their softmax as `seed` says. Local."""
    weights = np.exp(logits - logits.max()).cumsum()
    place = int(weights.searchsorted(float(weights[-1]) * (below(seed, 0) / 2**64), side="right"))
    return min(place, len(weights) - 1)
