"""EmbeddingBag: a table of which each example sums several rows."""

from __future__ import annotations

from typing import Any

import numpy as np

from hybridmpi.arrays import namespace
from hybridmpi.autograd import Tensor, sum_bags
from hybridmpi.errors import UsageError
from hybridmpi.nn.embedding import Embedding


class EmbeddingBag(Embedding):
    """A table of `rows` x `dim` that is asked for sums of rows, without making the rows of each example."""

    def forward(self, ids: Any, starts: Any = None) -> Tensor:
        """Return the sum of the rows of each bag: [bags, dim]. Local; pulls from the store.

        Fixed bags: `ids` integers [bags, k]. Bags of any length: `ids` [n] and `starts` int64 [bags + 1], bag b being
        ids[starts[b]:starts[b + 1]]; an empty bag gives zeros. A repeated id counts as often as it is there. Raises
        SparseIndexError for an id outside [0, rows), UsageError for shapes or starts that do not fit, or without a
        store.
        """
        if starts is None:
            if ids.ndim != 2:
                raise UsageError(f"EmbeddingBag: ids {ids.shape} without starts: expected [bags, k]")
            starts = namespace(ids).arange(len(ids) + 1, dtype=np.int64) * ids.shape[1]
        elif not _cuts(starts, ids):
            raise UsageError(
                f"EmbeddingBag: starts {starts.shape} of {starts.dtype} for ids {ids.shape}: expected int64 [bags + 1] "
                "rising from 0 to the number of ids, which are one-dimensional"
            )
        distinct, positions = self.distinct(ids)
        return sum_bags(self.rows_of(distinct), positions.reshape(-1), starts)


def _cuts(starts: Any, ids: Any) -> bool:
    """Return whether `starts` cuts `ids` into bags: what the kernels rely on."""
    return (
        ids.ndim == starts.ndim == 1
        and starts.dtype == np.int64
        and len(starts) > 0
        and int(starts[0]) == 0
        and int(starts[-1]) == len(ids)
        and bool((starts[1:] >= starts[:-1]).all())
    )
