"""The search for the number of partitions of a table, in a running job (Parallax, arXiv 1808.02621, section 3.2).

More partitions spread the owners' work, and cost more messages and more pieces to look at: t(P) = c0 + c1 / P + c2 P.
The search samples few P, fits the three constants and takes the best P of the curve:

    start at max(least, machines); double while the time falls
    then halve, from half the start, while the time falls
    fit by least squares in seconds (not in their logarithm, not in a rate), c1 and c2 not below 0, over all samples,
    those included that ended the doubling and the halving; take the integer with the smallest t(P) in the sampled range
    with fewer than three samples: the best sample

Fitted so, the published samples give the published answers: 48 for the language model, 19 for translation. Rates
instead of times give 58 and 22, errors relative to the time 50 and 19, without the sample that ended the halving 51
and 18.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from statistics import median
from typing import Any, Self

import numpy as np

from hybridmpi.errors import UsageError

FEWEST_TO_FIT = 3

# The first steps with another number of partitions fault pages in and fill caches; they say nothing about the others.
WARM_UP_STEPS = 5


@dataclass(frozen=True)
class Curve:
    """t(P) = c0 + c1 / P + c2 P, in seconds; c1 and c2 are at least 0."""

    c0: float
    c1: float
    c2: float

    def seconds(self, partitions: float) -> float:
        """Return the time of a step with so many partitions. Local."""
        return self.c0 + self.c1 / partitions + self.c2 * partitions

    def best(self, low: int, high: int) -> int:
        """Return the integer in [low, high] with the smallest time, the smallest of equal ones. Local."""
        lowest = math.sqrt(self.c1 / self.c2) if self.c2 > 0 else math.inf
        around = {low, high, *(min(max(low, n), high) for n in (_floor(lowest, high), _floor(lowest, high) + 1))}
        # Without c1 and c2 all are equal, and fewer partitions are less to look after.
        return min(sorted(around), key=self.seconds)


def _floor(value: float, high: int) -> int:
    return high if value >= high else int(value)


def fit(samples: Mapping[int, float]) -> Curve:
    """Return the curve through `samples`, seconds by number of partitions: least squares with c1, c2 >= 0. Local.

    Raises UsageError for no samples.
    """
    if not samples:
        raise UsageError("fit: no samples; expected seconds by number of partitions")
    count = np.array(list(samples), np.float64)
    seconds = np.array(list(samples.values()), np.float64)
    columns = np.stack([np.ones_like(count), 1 / count, count])
    best = (math.inf, Curve(float(seconds.mean()), 0.0, 0.0))
    # The constrained optimum is the unconstrained one of some subset of the two terms: there are four.
    for used in product((True, False), repeat=2):
        chosen = columns[[True, *used]]
        found = np.linalg.lstsq(chosen.T, seconds, rcond=None)[0]
        if (found[1:] < 0).any():
            continue
        error = float(((found @ chosen - seconds) ** 2).sum())
        if error < best[0]:
            rest = iter(found[1:].tolist())
            best = (error, Curve(float(found[0]), *(next(rest) if use else 0.0 for use in used)))
    return best[1]


def typical(step_seconds: Sequence[float], warm_up: int = WARM_UP_STEPS) -> float:
    """Return the median of the steps after the first `warm_up`: what to report for a sample. Local.

    Raises UsageError if no step is left.
    """
    if len(step_seconds) <= warm_up:
        raise UsageError(
            f"{len(step_seconds)} steps with this number of partitions, of which {warm_up} warm up: expected more"
        )
    return median(step_seconds[warm_up:])


class PartitionSearch:
    """Which number of partitions to try next, and which is best: a state machine that a running job drives. Local.

    `machines`: where the search starts; `least` and `most`: the bounds of P (`most`: the rows of the table). Take
    `next()`, run some steps with so many partitions, `report` their seconds, until `next()` is None; then `result()`.
    The same reports give the same proposals, so ranks that report the same (agreed) seconds stay together.
    """

    def __init__(self, machines: int, least: int = 1, most: int = 1 << 20) -> None:
        if not (1 <= least <= most and machines >= 1):
            raise UsageError(
                f"PartitionSearch(machines={machines}, least={least}, most={most}): expected machines >= 1 and "
                "1 <= least <= most"
            )
        self.machines, self.least, self.most = machines, least, most
        self.samples: dict[int, float] = {}

    @property
    def start(self) -> int:
        """The first number of partitions to try."""
        return min(self.most, max(self.least, self.machines))

    def next(self) -> int | None:
        """Return the number of partitions to sample next, None when the search is done. Local."""
        for factor in (2.0, 0.5):
            here = self.start
            while True:
                if here not in self.samples:
                    return here
                other = int(here * factor)
                if not self.least <= other <= self.most:
                    break
                if other not in self.samples:
                    return other
                if self.samples[other] >= self.samples[here]:
                    break
                here = other
        return None

    def report(self, partitions: int, seconds: float) -> None:
        """Take in the time of a step with `partitions`, which must be what `next()` asked for. Local.

        Raises UsageError for another number, or a time that is not a finite number above 0.
        """
        if partitions != self.next():
            raise UsageError(f"a time for {partitions} partitions, where {self.next()} were to be sampled")
        if not (math.isfinite(seconds) and seconds > 0):
            raise UsageError(f"{partitions} partitions: {seconds} seconds a step; expected a finite number above 0")
        self.samples[partitions] = float(seconds)

    def result(self) -> int:
        """Return the best number of partitions by the samples so far. Local. Raises UsageError without any."""
        if not self.samples:
            raise UsageError("the partition search has no sample yet: report the time of next() first")
        if len(self.samples) < FEWEST_TO_FIT:
            return min(self.samples, key=self.samples.__getitem__)
        return fit(self.samples).best(min(self.samples), max(self.samples))

    def state(self) -> dict[str, Any]:
        """Return all that `restored` needs, as JSON values. Local."""
        return {
            "machines": self.machines,
            "least": self.least,
            "most": self.most,
            "samples": [[partitions, seconds] for partitions, seconds in self.samples.items()],
        }

    @classmethod
    def restored(cls, state: Mapping[str, Any]) -> Self:
        """Return the search that `state()` described, to go on where it was. Local."""
        search = cls(state["machines"], state["least"], state["most"])
        for partitions, seconds in state["samples"]:
            search.report(partitions, seconds)
        return search
