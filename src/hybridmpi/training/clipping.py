"""Clipping by the global norm of the gradient: dense and sparse, whoever holds which part."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hybridmpi.sparse.client import Client


def limit_norm(client: Client, parts: Sequence[tuple[str, float]], limit: float) -> tuple[float, str]:
    """Return (the factor that limits the norm of a step's summed gradient to `limit`, ""), the same on all ranks.
    Collective over compute, after the push; waits for the owners, who scale their rows.

    `parts`: (name, sum of squares) of all that every rank has alike, in the same order. Where the norm is not finite
    the step is dropped by the owners, and the second value says why, in words. Pascanu et al. 2013.
    """
    norm = client.clip(limit, [squares for _, squares in parts])
    if not np.isnan(norm.scale):
        return norm.scale, ""
    owners = client.world.owners[: len(norm.parts) - len(parts)]
    names = [
        *(f"rows at owner {owner} (rank {rank})" for owner, rank in enumerate(owners)),
        *(name for name, _ in parts),
    ]
    guilty = [name for name, part in zip(names, norm.parts, strict=True) if not np.isfinite(part)]
    return norm.scale, (
        f"the norm of the gradient, summed over the ranks, is {norm.value}: {', '.join(guilty) or 'all parts together'}"
    )
