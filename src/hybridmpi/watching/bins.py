"""A run of any length in bounded memory: sums over so many steps each, which grow as the run does."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

# Bins of a run: more than a picture has pixels. A run of fewer steps is kept step by step.
BINS = 2048


class Bins:
    """What was measured of steps 1, 2, ..., summed in at most BINS bins of `width` steps each. Local.

    Every measure is a mean over the steps of a bin that have it. When a step comes that lies beyond the last bin, bins
    are joined two by two.
    """

    def __init__(self) -> None:
        self.width = 1
        self._sums: dict[str, np.ndarray] = {}
        self._counts: dict[str, np.ndarray] = {}

    def add(self, steps: np.ndarray, measures: Mapping[str, np.ndarray]) -> None:
        """Add values of `steps`, int64 [n] from 1 up, each measure float64 [n]; what is not finite is left out."""
        if not len(steps):
            return
        while steps.max() > BINS * self.width:
            self._join()
        places = (steps - 1) // self.width
        for name, values in measures.items():
            if name not in self._sums:
                self._sums[name], self._counts[name] = np.zeros((2, BINS))
            finite = np.isfinite(values)
            np.add.at(self._sums[name], places[finite], values[finite])
            np.add.at(self._counts[name], places[finite], 1.0)

    def mean(self, name: str) -> np.ndarray:
        """Return a measure's mean in every bin, NaN where there is none, float64 [BINS]."""
        if name not in self._sums:
            return np.full(BINS, np.nan)
        with np.errstate(invalid="ignore"):
            return self._sums[name] / self._counts[name]

    def count(self, name: str) -> np.ndarray:
        """Return how many values of a measure every bin has, float64 [BINS]."""
        return self._counts.get(name, np.zeros(BINS))

    def names(self) -> list[str]:
        """Return the measures there are, in the order in which they came."""
        return list(self._sums)

    def _join(self) -> None:
        self.width *= 2
        for kept in (self._sums, self._counts):
            for name, values in kept.items():
                kept[name] = np.concatenate([values.reshape(-1, 2).sum(1), np.zeros(BINS // 2)])
