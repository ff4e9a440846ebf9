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

        Fixed bags: `ids` integers [bags, k]. Bags of any length: `ids` [n] and `starts` integers [bags + 1], bag b
        being ids[starts[b]:starts[b + 1]]; an empty bag gives zeros. A repeated id counts as often as it is there.
        Raises SparseIndexError for an id outside [0, rows), UsageError for shapes or starts that do not fit, or without
        a store.
        """
        distinct, positions = self.distinct(ids)
        if starts is None:
            if positions.ndim != 2:
                raise UsageError(f"EmbeddingBag: ids {positions.shape} without starts: expected [bags, k]")
            starts = namespace(positions).arange(len(positions) + 1, dtype=np.int64) * positions.shape[1]
        elif positions.ndim != 1:
            raise UsageError(f"EmbeddingBag: ids {positions.shape} with starts: expected them in one row")
        return sum_bags(self.rows_of(distinct), positions.reshape(-1), starts)
