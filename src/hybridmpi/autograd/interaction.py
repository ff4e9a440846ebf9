"""Interactions of feature vectors: the dot product of every two of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hybridmpi.arrays import namespace
from hybridmpi.autograd.tensor import Tensor, as_tensor, record
from hybridmpi.errors import UsageError


def pairwise_dots(vectors: Sequence[Tensor]) -> Tensor:
    """Return the dot products of every two of `vectors`, f tensors [n, d]: [n, f (f - 1) / 2]. Local.

    Ordered (1, 0), (2, 0), (2, 1), (3, 0), ...: the interaction of DLRM (Naumov et al. 2019, arXiv 1906.00091).
    Raises UsageError for fewer than two vectors or different shapes.
    """
    first = next((vector for vector in vectors if isinstance(vector, Tensor)), None)
    vectors = [as_tensor(vector, first, "pairwise_dots") for vector in vectors]
    shapes = {vector.shape for vector in vectors}
    if len(vectors) < 2 or len(shapes) != 1 or vectors[0].data.ndim != 2:
        raise UsageError(
            f"pairwise_dots of {len(vectors)} vectors of shapes {sorted(shapes)}: expected two or more, all [n, d]"
        )
    xp = namespace(vectors[0].data)
    count = len(vectors)
    stacked = xp.stack([vector.data for vector in vectors], axis=1)
    # Contiguous operands: numpy then gives each example's product to BLAS, five times as fast as its own loops.
    products = stacked @ xp.ascontiguousarray(stacked.transpose(0, 2, 1))
    rows, columns = xp.tril_indices(count, -1)
    below = rows * count + columns

    def backward(gradient: Any) -> None:
        # Both places of a pair at once: d(x_i . x_j) is g x_j for x_i and g x_i for x_j.
        pair = xp.zeros((count, count), below.dtype)
        pair[rows, columns] = pair[columns, rows] = xp.arange(len(below))
        weights = gradient.take(pair.reshape(-1), axis=1)
        weights[:, :: count + 1] = 0
        result = weights.reshape(products.shape) @ stacked
        for place, vector in enumerate(vectors):
            if vector.requires_grad:
                vector.accumulate(result[:, place])

    return record(products.reshape(-1, count * count).take(below, axis=1), vectors, backward)
