"""Clipping by the global norm of the gradient: dense and sparse, whoever holds which part."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hybridmpi import kernels
from hybridmpi.collectives import Bucket
from hybridmpi.sparse.norms import norm_of
from hybridmpi.training.phases import Phases
from hybridmpi.training.tables import TableExchange


def clip_whole_norm(exchange: TableExchange, buckets: Sequence[Bucket], limit: float, phases: Phases) -> str:
    """Limit the norm of a step's gradient, summed over the ranks, to `limit`. Collective over compute, after all sums.

    What every rank has alike, buckets and the gradients of replicas, is scaled in place; the owners scale their rows.
    Return "", or in words, the same on all ranks, why the step was dropped, with nothing updated anywhere: its norm is
    not finite. Pascanu et al. 2013.
    """
    alike = [(", ".join(part.name for part in bucket.slices), bucket.gradients) for bucket in buckets]
    alike += exchange.replica_gradients()
    squares = [kernels.square_sum(array) for _, array in alike]
    phases.lap("update")
    client, owners = exchange.service.client, []
    if exchange.at_owners:
        norm, owners = client.clip(limit, squares), client.world.owners
    else:
        norm = norm_of(squares, limit)
    phases.lap("wait")
    if np.isnan(norm.scale):
        exchange.forget()
        names = [f"rows at owner {owner} (rank {rank})" for owner, rank in enumerate(owners)]
        names += [name for name, _ in alike]
        guilty = [name for name, part in zip(names, norm.parts, strict=True) if not np.isfinite(part)]
        return f"the norm of the gradient, summed over the ranks, is {norm.value}: {', '.join(guilty) or 'their sum'}"
    if norm.scale != 1.0:
        for _, array in alike:
            array *= array.dtype.type(norm.scale)
    return ""
