"""Steps one after the other as one call: what is done for a few rows takes less time than a call from Python."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from hybridmpi.dynamic import fusing
from hybridmpi.dynamic.nodes import EDGE, VERTEX
from hybridmpi.dynamic.steps import ANY, Ranges, Step, Work


class Joined(Step):
    """Steps of vertices and their children that all have kernels. `steps`: each by itself."""

    def __init__(self, steps: Iterable[Step]) -> None:
        self.steps = list(steps)
        self.space, self.label = self.steps[0].space, ", then ".join(step.label for step in self.steps)
        calls = [(fusing.address_of_kernel(step.kernel), int(step.space == EDGE)) for step in self.steps]
        self._calls = np.array(calls, np.int64)  # kept: its address is what is called with
        self._address, self._count = fusing.table_address(self._calls), len(calls)
        self._few = [
            min((step.few for step in self.steps if step.space == space), default=ANY) for space in (VERTEX, EDGE)
        ]
        self._call = fusing.sequence()

    def run(self, work: Work, ranges: Ranges) -> None:
        """Do the steps: in one call if there are few rows."""
        first, last = ranges[VERTEX]
        first_edge, last_edge = ranges[EDGE]
        if last - first <= self._few[0] and last_edge - first_edge <= self._few[1]:
            self._call(self._address, self._count, first, last, first_edge, last_edge, work.address)
            return
        for step in self.steps:
            step.run(work, ranges)

    def plan(self, work: Work) -> tuple[int, int, int, int, int]:
        """Return what `fusing.rounds` has to know. Local."""
        return self._address, self._count, *self._few, work.address


def plan_of(steps: Sequence[Step], work: Work) -> tuple[int, int, int, int, int]:
    """Return what `fusing.rounds` has to know of the steps of a round: also that there are none, or that these cannot
    be called at once. Local."""
    if not steps:
        return 0, 0, ANY, ANY, 0
    if len(steps) == 1 and isinstance(steps[0], Joined):
        return steps[0].plan(work)
    return 0, 0, -1, -1, 0


def joined(steps: Iterable[Step]) -> list[Step]:
    """Return steps with those joined to sequences that follow one another and have kernels. Local."""
    found: list[Step] = []
    together: list[Step] = []
    for step in (*steps, None):
        if step is not None and step.kernel is not None and step.space in (VERTEX, EDGE):
            together.append(step)
            continue
        found += [Joined(together)] if together else []
        together = []
        if step is not None:
            found.append(step)
    return found
