"""Attention of one sequence over another, for a batch of sequences of different lengths, as one operation.

Luong et al. 2015 (arXiv 1508.04025), section 3.1, global attention: for each query the softmax of its scores q . m_s
over the sequence's memory, and the sum of the memory under it. The form with weights ("general") is a linear layer on
the queries before.
"""

from __future__ import annotations

from typing import Any

from hybridmpi import inputs
from hybridmpi.arrays import namespace
from hybridmpi.autograd.tensor import Tensor, as_tensor, record
from hybridmpi.errors import UsageError


def attention(queries: Tensor, memory: Tensor, lengths: Any) -> Tensor:
    """Return the contexts [b, T, d]: for each query the mean of its sequence's memory, weighted by softmax(q . m).
    Local.

    queries [b, T, d]; memory [b, S, d]; lengths: int64 [b], in [1, S]: what of each sequence's memory counts. The rest
    has weight 0 and gradient 0, whatever (finite) values it holds. Raises UsageError where shapes or lengths do not
    fit.
    """
    queries = as_tensor(queries, memory if isinstance(memory, Tensor) else None, "attention: queries")
    memory = as_tensor(memory, queries, "attention: memory")
    lengths = inputs.integers(lengths, "attention: lengths")
    xp = namespace(queries.data)
    if (
        queries.data.ndim != 3
        or memory.data.ndim != 3
        or (queries.shape[0], queries.shape[2]) != (memory.shape[0], memory.shape[2])
        or lengths.shape != memory.shape[:1]
    ):
        raise UsageError(
            f"attention: queries {queries.shape}, memory {memory.shape}, lengths {lengths.shape}: expected [b, T, d], "
            "[b, S, d], [b]"
        )
    steps = memory.shape[1]
    if len(lengths) and not (int(lengths.min()) >= 1 and int(lengths.max()) <= steps):
        raise UsageError(f"attention: lengths span {lengths.min()} to {lengths.max()}: expected 1 to {steps}")
    q, m = queries.data, memory.data
    weights = q @ m.transpose(0, 2, 1)
    beyond = xp.arange(steps)[None, :] >= lengths[:, None]
    if beyond.any():
        xp.copyto(weights, -xp.inf, where=beyond[:, None, :])
    weights -= weights.max(axis=2, keepdims=True, initial=-xp.inf)
    xp.exp(weights, out=weights)
    weights /= weights.sum(axis=2, keepdims=True)

    def backward(gradient: Any) -> None:
        d_scores = gradient @ m.transpose(0, 2, 1)
        d_scores -= xp.einsum("bts,bts->bt", weights, d_scores)[:, :, None]
        d_scores *= weights
        if queries.requires_grad:
            queries.accumulate(d_scores @ m)
        if memory.requires_grad:
            d_memory = weights.transpose(0, 2, 1) @ gradient
            d_memory += d_scores.transpose(0, 2, 1) @ q
            memory.accumulate(d_memory)

    return record(weights @ m, (queries, memory), backward)
