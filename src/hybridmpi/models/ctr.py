"""Click-through prediction from many categorical features: DLRM (Naumov et al. 2019, arXiv 1906.00091)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from hybridmpi import autograd
from hybridmpi.autograd import Tensor, no_grad
from hybridmpi.errors import UsageError
from hybridmpi.field_types import Count, Counts, checks_arguments
from hybridmpi.nn import EmbeddingBag, Linear, Module, binary_cross_entropy, pairwise_dots


class Clicks(Protocol):
    """n examples: `features` float [n, f], for each table a bag of ids (`ids` int64 [m], `starts` int64 [n + 1]), and
    `labels` float [n], 1 for a click."""

    features: np.ndarray
    ids: Sequence[np.ndarray]
    starts: Sequence[np.ndarray]
    labels: np.ndarray


class Layers(Module):
    """Linear layers of the given sizes, with relu after each but, if `last_is_linear`, the last one."""

    @checks_arguments
    def __init__(self, sizes: Sequence[int], last_is_linear: bool, dtype: Any) -> None:
        self.linears = [Linear(a, b, dtype=dtype) for a, b in zip(sizes[:-1], sizes[1:], strict=True)]
        self.last_is_linear = last_is_linear

    def forward(self, x: Tensor) -> Tensor:
        """Return [n, sizes[-1]] for x [n, sizes[0]]. Local."""
        for place, linear in enumerate(self.linears):
            x = linear(x)
            if not (self.last_is_linear and place == len(self.linears) - 1):
                x = autograd.relu(x)
        return x


class Tables(Module):
    """One EmbeddingBag for each categorical feature, an attribute of its name."""

    @checks_arguments
    def __init__(self, rows: Mapping[str, Count], width: Count, dtype: Any) -> None:
        self.names = list(rows)
        for name, count in rows.items():
            setattr(self, name, EmbeddingBag(count, width, dtype=dtype))

    def forward(self, ids: Sequence[np.ndarray], starts: Sequence[np.ndarray]) -> list[Tensor]:
        """Return each table's sums of bags, [n, width]. Local; pulls rows."""
        return [getattr(self, name)(i, s) for name, i, s in zip(self.names, ids, starts, strict=True)]


class ClickModel(Module):
    """Embedding bags and layers for the other features, the dot product of every two of these vectors, layers on top.

    tables: the rows of each categorical feature, by name. features: how many numbers each example has, at least 1.
    width: of the rows. bottom: sizes of the hidden layers that turn the features into one more vector of that width.
    top: sizes of the hidden layers on that vector and the dot products, before the one logit.
    """

    @checks_arguments
    def __init__(
        self,
        tables: Mapping[str, Count],
        features: Count,
        width: Count = 16,
        bottom: Counts = (64,),
        top: Counts = (64,),
        dtype: Any = np.float32,
    ) -> None:
        if not tables:
            raise UsageError("ClickModel: no tables: expected the rows of at least one, by name")
        self.bottom = Layers([features, *bottom, width], False, dtype)
        self.tables = Tables(tables, width, dtype)
        self.top = Layers([width + (len(tables) + 1) * len(tables) // 2, *top, 1], True, dtype)
        self.dtype = np.dtype(dtype)

    def loss(self, batch: Clicks) -> Tensor:
        """Return the mean logistic loss of the batch. Local; pulls rows."""
        return binary_cross_entropy(self.logits(batch), batch.labels.astype(self.dtype, copy=False))

    def rows_wanted(self, batch: Clicks) -> dict[str, np.ndarray]:
        """Return the ids of the rows that `loss` will pull for a batch, by table. Local."""
        return {f"tables.{name}": ids for name, ids in zip(self.tables.names, batch.ids, strict=True)}

    def flops(self, batch: Clicks, rows: Mapping[str, int]) -> float:
        """Return the additions and multiplications of the matrix products of `loss` and its backward, for a batch that
        takes so many different `rows` of each table. Local."""
        count, vectors = len(batch.labels), len(rows) + 1
        layers = [linear.weight.shape for part in (self.bottom, self.top) for linear in part.linears]
        products = 3 * sum(inputs * outputs for outputs, inputs in layers)
        # Of the dot products forward has one product and backward another: their two operands are the same.
        dots = 2 * vectors**2 * self.bottom.linears[-1].weight.shape[0]
        return 2.0 * count * (products + dots)

    def logits(self, batch: Clicks) -> Tensor:
        """Return the logit of a click for each example, [n]. Local; pulls rows."""
        vector = self.bottom(Tensor(batch.features.astype(self.dtype, copy=False)))
        dots = pairwise_dots([vector, *self.tables(batch.ids, batch.starts)])
        return self.top(autograd.concatenate([vector, dots], axis=1)).reshape(len(batch.labels))

    def evaluate(self, batch: Clicks) -> np.ndarray:
        """Return the logits as an array [n], remembering nothing. Local; pulls rows."""
        with no_grad():
            return self.logits(batch).data
