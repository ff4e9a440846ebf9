"""The one small reduction of a step: what every rank must know before anything is changed.

Bad input, a failed rank, a non-finite gradient, a signal, the end of the data: each is seen by one rank, and all must
act on it alike. Flags travel beside the data, never by it: a NaN would hide or show depending on who reduces.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from hybridmpi.rendezvous import ROOM
from hybridmpi.world import World


@dataclass
class Report:
    """One rank's side of a step; `batch`: whether it has one, also of no examples; `loss` is the mean over its `weight`
    examples, `signal` whether it is to stop by a signal, `rows` how many distinct rows it touches of each table."""

    batch: bool = False
    weight: float = 0.0
    loss: float = 0.0
    failed: bool = False
    nonfinite: bool = False
    stop: bool = False
    signal: bool = False
    rows: np.ndarray = field(default_factory=lambda: np.empty(0, np.int64))


@dataclass(frozen=True)
class Verdict:
    """What all ranks now know: sums over the compute ranks; `loss` is the mean over all examples, NaN without any."""

    batch: int
    weight: float
    loss: float
    failed: int
    nonfinite: int
    stop: int
    signal: int
    rows: np.ndarray


def agree(world: World, report: Report, tables: int = 0, what: str = "agreement") -> Verdict:
    """Return the verdict on all compute ranks' reports, the same on each. Collective over compute.

    `tables`: of how many every report counts rows, also one that has counted none. `what`: see World.meet.
    """
    # That one is not finite is told by its flag. The mean is then NaN: it is not that of the other ranks.
    loss = report.loss * report.weight if np.isfinite(report.loss) else np.nan
    told = (report.weight, loss, report.batch, report.failed, report.nonfinite, report.stop, report.signal)
    mine = np.zeros(len(told) + tables)
    mine[: len(told)] = told
    mine[len(told) : len(told) + len(report.rows)] = report.rows
    total = np.empty_like(mine)
    total[:ROOM] = world.meet(what, *mine[:ROOM])
    if len(mine) > ROOM:
        world.wait_all([world.compute.Iallreduce(mine[ROOM:], total[ROOM:])])
    weight, loss, batch, *flags = total[: len(told)].tolist()
    rows = total[len(told) :].astype(np.int64)
    return Verdict(int(batch), weight, loss / weight if weight else np.nan, *map(int, flags), rows)


class Announcement:
    """How many examples all ranks have in a step: known before the gradients are, so that a sum can begin with each
    rank's share in it. Collective over compute; nobody waits."""

    def __init__(self, world: World, weight: float, step: int, trainer: int) -> None:
        # Which step of which trainer: a rank that is elsewhere is found out here (see rendezvous.py).
        of = f" of trainer {trainer}" if trainer else ""
        where = f"Trainer.fit or train_step, step {step}{of}"
        self._met = world.begin_meeting(f"step {step} of trainer {trainer}", (weight,), where)

    def total(self) -> float | None:
        """Return the sum over the ranks, or None as long as it is not known. Local."""
        return float(self._met.sums[0]) if self._met.complete() else None
