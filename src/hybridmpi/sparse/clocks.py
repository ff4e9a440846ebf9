"""Clocks of hosts, held against each other: how far one rank's time.perf_counter is ahead of another's.

A rank asks another for its time and knows that the answer was given between question and answer; of several tries the
one that took least says most (Cristian 1989, Probabilistic clock synchronization).
"""

from __future__ import annotations

import time
from typing import NamedTuple

import numpy as np

from hybridmpi.tags import Tag
from hybridmpi.world import World

# The first try finds the other rank asleep; of the others some meet nobody on their way.
TRIES = 24


class Reading(NamedTuple):
    """Another rank's clock showed `theirs` when this rank's showed `ours`, or up to `error` seconds from it."""

    ours: float
    theirs: float
    error: float

    @property
    def ahead(self) -> float:
        """Seconds that the other clock is ahead."""
        return self.theirs - self.ours


def read_clock(world: World, rank: int) -> Reading:
    """Return what the clock of world rank `rank` shows, which calls `show_clock`. Local; serves while it waits."""
    word, best = np.zeros(1), Reading(0.0, 0.0, np.inf)
    for _ in range(TRIES):
        asked = time.perf_counter()
        world.wait_all([world.comm.Isend(np.zeros(1), rank, Tag.CLOCK), world.comm.Irecv(word, rank, Tag.CLOCK)])
        answered = time.perf_counter()
        if (error := (answered - asked) / 2) < best.error:
            best = Reading((asked + answered) / 2, float(word[0]), error)
    return best


def show_clock(world: World, rank: int) -> None:
    """Tell world rank `rank`, which calls `read_clock`, this rank's time whenever it asks. Local; serves while it
    waits."""
    question = np.zeros(1)
    for _ in range(TRIES):
        world.wait_all([world.comm.Irecv(question, rank, Tag.CLOCK)])
        world.wait_all([world.comm.Isend(np.array([time.perf_counter()]), rank, Tag.CLOCK)])


def to_ours(theirs: float, before: Reading, after: Reading) -> float:
    """Return what this rank's clock showed when the other's showed `theirs`, by readings before and after. Local.

    Clocks drift apart evenly. A drift that is less than the readings may be wrong by is none.
    """
    if abs(after.ahead - before.ahead) <= before.error + after.error:
        return theirs - min(before, after, key=lambda reading: reading.error).ahead
    share = (theirs - before.theirs) / (after.theirs - before.theirs)
    return theirs - (before.ahead + share * (after.ahead - before.ahead))
