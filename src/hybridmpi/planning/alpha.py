"""Measured sparsity: which fraction of a table's rows a step touches, as a moving mean."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Self

from hybridmpi.errors import UsageError

# A step's weight falls by this factor with every later one: the mean is over the last 50 steps or so, long beside
# the scatter of batches (a few percent), short beside the time in which a run's text changes.
DECAY = 0.98


class Alpha(NamedTuple):
    """Fractions of a table's rows that a step touches: one rank's, those of a node's ranks together, those of all."""

    rank: float
    node: float
    all: float


@dataclass
class AlphaMean:
    """The moving mean of one table's alpha, unbiased from the first step on (Kingma and Ba 2015, section 3). Local.

    Every rank that is to decide alike must be fed the same numbers: means over the ranks.
    """

    decay: float = DECAY
    steps: int = 0
    _sums: list[float] = field(default_factory=lambda: [0.0, 0.0, 0.0])

    def add(self, rank: float, node: float, everybody: float) -> None:
        """Take in a step's alpha at the three levels. Raises UsageError unless 0 <= rank <= node <= everybody <= 1."""
        # A mean over ranks of unequal batches may pass a node's by rounding.
        if not -1e-9 <= rank <= node + 1e-9 <= everybody + 2e-9 <= 1 + 3e-9:
            raise UsageError(
                f"alpha of a rank {rank}, of a node {node}, of all {everybody}: expected 0 <= rank <= node <= all <= 1"
            )
        self.steps += 1
        for level, value in enumerate((rank, node, everybody)):
            self._sums[level] += (1 - self.decay) * (value - self._sums[level])

    @property
    def mean(self) -> Alpha | None:
        """The mean so far; None before the first step."""
        if not self.steps:
            return None
        return Alpha(*(value / (1 - self.decay**self.steps) for value in self._sums))

    def state(self) -> dict[str, Any]:
        """Return all that `restored` needs, as JSON values. Local."""
        return {"decay": self.decay, "steps": self.steps, "sums": list(self._sums)}

    @classmethod
    def restored(cls, state: Mapping[str, Any]) -> Self:
        """Return the mean that `state()` described, to go on where it was. Local."""
        return cls(state["decay"], state["steps"], list(state["sums"]))
