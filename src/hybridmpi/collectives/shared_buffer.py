"""A buffer in the memory that the ranks of a node share: all ranks' rows, and the flags that say how far each is."""

from __future__ import annotations

from functools import partial

import numpy as np

from hybridmpi.collectives import shared_kernels as loops
from hybridmpi.collectives.flags import LINE, all_reached, signal
from hybridmpi.collectives.steps import Ready, Steps

# Bytes before the data of a row: the rank's two flags, "my buffer is full" and "my slice is summed".
HEADER = 2 * LINE * 8

# The word of a row's header in which its rank's share stands, behind the first flag.
SHARE = 1

# Polls before a rank that waits goes back to Python, where it sleeps or serves: some tens of microseconds at once, and
# a few between other work.
POLLS = 4000
FEW_POLLS = 8


class SharedBuffer:
    """One buffer of every rank of a node: `rows` [p, n], of which `rows[rank]` is this rank's. Local.

    `flags`: the window as int64, in which rank r's two flags lie at `first` + r `stride` and one line on. Buffers have
    flags of their own, so any number of them can be under way at once, in any order. `number`: in the order in which
    they were made, the same on all ranks. `share`: what this rank's row counts in the sums that `steps` make.
    `started`: when the last sum of it began, by time.perf_counter.
    """

    def __init__(self, rows: np.ndarray, rank: int, flags: np.ndarray, first: int, stride: int, number: int) -> None:
        self.number = number
        self.share = 1.0
        self.started = 0.0
        self._shares = flags.view(np.float64)[first + SHARE :: stride][: rows.shape[0]]
        self.rows, self.rank, self.ranks = rows, rank, rows.shape[0]
        self.mine = rows[rank]
        self._flags, self._first, self._stride = flags, first, stride
        self._epoch = 0

    def arrive(self) -> Ready:
        """Say that this rank's row is full; return whether all rows are, to be polled. Local."""
        self._epoch += 1
        self._shares[self.rank] = self.share
        signal(self._flags, self._first + self.rank * self._stride, self._epoch)
        return partial(all_reached, self._flags, self._first, self._stride, self.ranks, self._epoch, FEW_POLLS)

    def leave(self) -> Ready:
        """Say that this rank's slice is summed and spread; return whether all are, to be polled. Local."""
        first = self._first + LINE
        signal(self._flags, first + self.rank * self._stride, self._epoch)
        return partial(all_reached, self._flags, first, self._stride, self.ranks, self._epoch, FEW_POLLS)

    def slice_of(self, parts: int) -> tuple[int, int]:
        """Return (start, stop) of this rank's slice when the first `parts` ranks have one each. Local."""
        return loops.slice_of(self.rows.shape[1], parts, self.rank) if self.rank < parts else (0, 0)

    def steps(self) -> Steps:
        """Return the steps of the sum over the node's ranks. Collective over the node."""
        yield self.arrive()
        loops.weighted_sum_and_spread(self.rows, self._weights(), *self.slice_of(self.ranks))
        yield self.leave()

    def _weights(self) -> np.ndarray:
        """Return the shares of all ranks, which have arrived."""
        return self._shares.astype(self.rows.dtype)

    def at_once(self) -> Steps:
        """Return the same steps in compiled calls that wait inside, for nothing else to be done meanwhile."""
        self._epoch += 1
        stage = loops.direct(self.rows, self._flags, self._first, self._stride, self.rank, self._epoch, POLLS, 0)

        def ready() -> bool:
            nonlocal stage
            stage = loops.direct(self.rows, self._flags, self._first, self._stride, self.rank, self._epoch, 1, stage)
            return stage == 2

        if stage != 2:
            yield ready

    def across_steps(self, lanes: int, across: Steps | None) -> Steps:
        """Return the steps of the two-level sum: the first `lanes` ranks sum a slice each within the node, `across`
        sums that slice of this rank's row over the nodes, then it is copied to the others. Collective over the node."""
        start, stop = self.slice_of(lanes)
        yield self.arrive()
        if across is not None:
            loops.weighted_sum_into(self.rows, self._weights(), start, stop, self.rank)
            yield from across
            loops.spread(self.rows, start, stop, self.rank)
        yield self.leave()
