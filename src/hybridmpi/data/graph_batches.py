"""Batches of instance graphs, dealt out to the ranks by their numbers of vertices."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from hybridmpi.data.sharding import shard
from hybridmpi.errors import DataError, UsageError
from hybridmpi.field_types import Count, Natural, Seed, checks_arguments
from hybridmpi.graphs import Graphs
from hybridmpi.inputs import integers


def deal(sizes: np.ndarray, ranks: int) -> np.ndarray:
    """Return the rank of each graph, int64 [graphs], for `sizes` int [graphs], their numbers of vertices. Local.

    The largest graph that is left goes to the rank with the fewest vertices (ties: the lower graph, the lower rank):
    what ranks get differs by one graph's vertices at most, and the fullest rank has at most 4/3 of the least possible
    (Graham, Bounds on multiprocessing timing anomalies, 1969). O(n log n). Raises UsageError for no ranks.
    """
    if ranks < 1:
        raise UsageError(f"graphs for {ranks} ranks: expected at least 1")
    sizes = integers(sizes, "sizes of graphs", 0)
    owners = np.zeros(len(sizes), np.int64)
    loads = [(0, rank) for rank in range(ranks)]  # sorted, therefore a heap
    for graph in np.argsort(-sizes, kind="stable").tolist():
        load, rank = loads[0]
        owners[graph] = rank
        heapq.heapreplace(loads, (load + int(sizes[graph]), rank))
    return owners


@dataclass(frozen=True, slots=True)
class GraphBatch:
    """A rank's share of a batch: `graphs`, and `numbers` int64 [graphs], which graphs of the data set these are.

    `weight`: the number of labelled vertices (data "label" >= 0), 0 on a rank without any: what a mean over ranks is
    weighted by. `position`: batches read before this one since training began.
    """

    graphs: Graphs
    weight: int
    position: int
    numbers: np.ndarray


class GraphBatches:
    """Batches of `size` graphs over all ranks, shared out by `deal`.

    Each epoch shuffles the graphs and cuts them into batches; up to size - 1 graphs of an epoch are not read. All of it
    is a function of `seed` and the epoch: the same graphs in the same step on any number of ranks. A rank that gets
    none has empty batches; their number is the same on every rank.

    Iterating yields batches without end from `position` (0, or set it to resume) and never changes it. To resume after
    a batch, set `position` to the position of that batch plus one. Local.
    Raises UsageError for sizes below 1 or an impossible rank; DataError for fewer graphs than one batch, or graphs
    without data "label".
    """

    @checks_arguments
    def __init__(self, graphs: Graphs, size: Count, seed: Seed, rank: Natural = 0, ranks: Count = 1) -> None:
        shard((), rank, ranks)  # refuses an impossible rank
        if len(graphs) < size:
            raise DataError(
                f"{len(graphs)} graphs are too few for a batch of {size}: give more data, or fewer graphs a batch"
            )
        if "label" not in graphs.data:
            raise DataError(
                f"graphs without labels, with data {sorted(graphs.data)}: expected 'label', one integer for each "
                "vertex, -1 where there is nothing to learn"
            )
        self.size, self.position = size, 0
        self.batches_per_epoch = len(graphs) // size
        self._graphs, self._sizes = graphs, np.diff(graphs.starts)
        self._seed, self._rank, self._ranks = seed, rank, ranks
        self._epoch, self._order = -1, np.empty(0, np.int64)

    def batch(self, position: int) -> GraphBatch:
        """Return the batch at `position` >= 0: a function of the position alone. Local."""
        epoch, number = divmod(position, self.batches_per_epoch)
        if epoch != self._epoch:
            self._epoch = epoch
            self._order = np.random.default_rng([self._seed, epoch]).permutation(len(self._graphs))
        return self._batch(self._order[number * self.size : (number + 1) * self.size], position)

    def __iter__(self) -> Iterator[GraphBatch]:
        position = self.position
        while True:
            yield self.batch(position)
            position += 1

    def one_pass(self) -> Iterator[GraphBatch]:
        """Yield every graph once, in order; the last batch may be smaller. Local.

        For evaluation. The number of batches is the same on every rank.
        """
        for position, first in enumerate(range(0, len(self._graphs), self.size)):
            yield self._batch(np.arange(first, min(first + self.size, len(self._graphs))), position)

    def _batch(self, numbers: np.ndarray, position: int) -> GraphBatch:
        mine = numbers[deal(self._sizes[numbers], self._ranks) == self._rank]
        graphs = self._graphs.select(mine)
        return GraphBatch(graphs, int(np.count_nonzero(graphs.data["label"] >= 0)), position, mine)


@checks_arguments
def held_out_graph_batches(graphs: Graphs, size: Count, rank: Natural = 0, ranks: Count = 1) -> GraphBatches:
    """Return batches for one pass over held-out graphs, of which there is at least one; few graphs make smaller ones.

    The sums over them are the same for any number of ranks. Local. Raises DataError for no graphs.
    """
    if not len(graphs):
        raise DataError("no held-out graphs: raise data.held_out, or give more data")
    return GraphBatches(graphs, min(size, len(graphs)), 0, rank, ranks)
