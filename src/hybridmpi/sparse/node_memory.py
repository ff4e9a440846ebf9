"""Memory that the compute ranks of a node share, and how they divide their work on it: what local aggregation, the sum
of row gradients (node_sum.py) and pulls that the node makes together (node_pull.py), stands on.

Each rank has a region of its own. It begins with flags, a cache line each, then words that all ranks read (its *head*),
then what the rank lays out in a step. A rank writes to its own region only.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from hybridmpi.collectives.flags import LINE, all_reached, signal
from hybridmpi.collectives.shared_buffer import FEW_POLLS, POLLS
from hybridmpi.kernels import argsort_ids
from hybridmpi.shared_windows import shared_window
from hybridmpi.sparse.partition import Partition
from hybridmpi.sparse.spec import TableSpec
from hybridmpi.world import World

if TYPE_CHECKING:
    from mpi4py import MPI

# A rank's region takes up to this much of the node's memory, of which only what is used is touched. What does not fit
# goes rank by rank.
LARGEST_REGION = 128 << 20


class Share(NamedTuple):
    """What one of `ranks` ranks does of an owner's rows: from `first` to `last` of `ranks` equal parts."""

    owner: int
    first: int
    last: int


def shares_of(owners: int, ranks: int, rank: int) -> list[Share]:
    """Return what a rank does: of the owners, laid end to end, the rank's one of `ranks` equal stretches. Local.

    A node of `ranks` ranks so sends owners + ranks - gcd(owners, ranks) messages.
    """
    start, stop = rank * owners, (rank + 1) * owners
    return [
        Share(owner, max(start - owner * ranks, 0), min(stop - owner * ranks, ranks))
        for owner in range(start // ranks, -(-stop // ranks))
    ]


def sharers_of(owner: int | np.ndarray, owners: int, ranks: int) -> int | np.ndarray:
    """Return how many ranks of a node divide an owner's rows. Local."""
    return ((owner + 1) * ranks - 1) // owners - owner * ranks // owners + 1


def by_owner(partition: Partition, ids: np.ndarray) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return, per owner, (its rows' local numbers, ascending; where they stand in `ids`), for sorted unique `ids`.
    Local."""
    result = []
    for owner, (where, local) in enumerate(partition.split(ids)):
        place = np.arange(where.start, where.stop) if isinstance(where, slice) else where
        if (local[1:] < local[:-1]).any():  # an owner of several parts
            order = argsort_ids(local, partition.count_of(owner))
            local, place = local[order], place[order]
        result.append((local, place))
    return result


def lines(size: int | np.ndarray) -> int | np.ndarray:
    """Return `size` bytes rounded up to whole cache lines. Local."""
    return -(-size // 64) * 64


class NodeMemory:
    """The regions of the compute ranks of one node, `comm`. Collective over `comm`; all else is Local.

    `flags`: how many there are; `head_words`: words of a head; `most`: bytes that a rank ever lays out beside these.
    `memory`: all regions as bytes, `words` as int64, `heads` [ranks, head words], `region` bytes of each, of which what
    is laid out begins at `data_at`.
    """

    def __init__(
        self, world: World, comm: MPI.Intracomm, flags: int, head_words: int, most: int, largest: int, what: str
    ) -> None:
        """`largest`: bytes that a region has at most; `what` it is for, in an error."""
        mpi = world.mpi
        self.world, self.comm = world, comm
        self.ranks, self.rank = comm.Get_size(), comm.Get_rank()
        self.data_at = lines(8 * (flags * LINE + head_words))
        self.region = -(-(self.data_at + min(most, largest)) // 4096) * 4096
        total = self.ranks * self.region
        remedy = "let every rank pull and push for itself: sparse.aggregate = 'never'"
        self._window = shared_window(
            mpi, total if self.rank == 0 else 0, 1, comm, comm, f"{what} of {self.ranks} ranks", remedy
        )
        memory, _ = self._window.Shared_query(0)
        self.memory = np.frombuffer(memory, np.uint8)[:total]
        self.words = self.memory.view(np.int64)
        self.heads = self.words.reshape(self.ranks, -1)[:, flags * LINE : self.data_at // 8]
        # Every rank touches its own region first: on machines with several memories it then lies near that rank.
        self.memory.reshape(self.ranks, -1)[self.rank, : self.data_at] = 0
        comm.Barrier()

    def rows_of(self, spec: TableSpec) -> np.ndarray:
        """Return all regions as rows of a table, [*, dim], which begin at multiples of a row's bytes."""
        whole = len(self.memory) // spec.row_bytes * spec.row_bytes
        return self.memory[:whole].view(spec.dtype).reshape(-1, spec.dim)

    def cut(self, share: Share, keys: np.ndarray, counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return what of each rank's rows for an owner lies in a share: (how many come before it, how many are in it).

        Rank r's are the `counts[r]` ascending numbers from word `keys[r]` on. All ranks cut at the same rows: those
        that divide the longest list evenly.
        """
        if share.last - share.first == self.ranks:
            return np.zeros_like(counts), counts
        lists = [self.words[key : key + count] for key, count in zip(keys, counts, strict=True)]
        longest = max(lists, key=len)

        def before(part: int) -> np.ndarray:
            if part in (0, self.ranks) or not len(longest):
                return counts if part else np.zeros_like(counts)
            row = longest[len(longest) * part // self.ranks]
            return np.array([np.searchsorted(numbers, row) for numbers in lists])

        skipped = before(share.first)
        return skipped, before(share.last) - skipped

    # -- flags -----------------------------------------------------------------------------------------------------

    def signal(self, flag: int, epoch: int) -> None:
        """Raise this rank's flag to `epoch`, after everything it has written before."""
        signal(self.words, self.rank * (self.region // 8) + flag * LINE, epoch)

    def wait_for(self, flag: int, epoch: int) -> None:
        """Wait until all ranks of the node have raised a flag to `epoch`, serving meanwhile."""
        reached = partial(all_reached, self.words, flag * LINE, self.region // 8, self.ranks, epoch)
        if not reached(POLLS):
            self.world.wait_until(lambda: reached(FEW_POLLS))

    def close(self) -> None:
        """Free the window. Collective over the node's compute ranks."""
        self.memory = self.words = self.heads = None
        self._window.Free()
