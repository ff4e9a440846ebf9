"""Clipping by the global norm of the gradient: dense and sparse, whoever holds which part."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hybridmpi import kernels
from hybridmpi.sparse.client import Client
from hybridmpi.training.phases import Phases


def clip_whole_norm(client: Client, gradients: Sequence[tuple[str, np.ndarray]], limit: float, phases: Phases) -> str:
    """Limit the norm of a step's gradient, summed over the ranks, to `limit`. Collective over compute, after the push.

    `gradients`: (name, array) of all that every rank has alike, in the same order: scaled in place. The owners scale
    their rows. Return "", or in words, the same on all ranks, why the step was dropped, with nothing updated anywhere:
    its norm is not finite. Pascanu et al. 2013.
    """
    squares = [kernels.square_sum(array) for _, array in gradients]
    phases.lap("update")
    norm = client.clip(limit, squares)
    phases.lap("wait")
    if np.isnan(norm.scale):
        owners = client.world.owners[: len(norm.parts) - len(gradients)]
        names = [f"rows at owner {owner} (rank {rank})" for owner, rank in enumerate(owners)]
        names += [name for name, _ in gradients]
        guilty = [name for name, part in zip(names, norm.parts, strict=True) if not np.isfinite(part)]
        return f"the norm of the gradient, summed over the ranks, is {norm.value}: {', '.join(guilty) or 'their sum'}"
    if norm.scale != 1.0:
        for _, array in gradients:
            array *= array.dtype.type(norm.scale)
    return ""
