"""Softmax cross entropy over the true class and some candidate classes, as one operation.

Jean et al. 2015 (arXiv 1412.2007); the offsets carry the correction for the candidates' expected counts. With every
class a candidate and no offsets it is the full softmax.

What makes it fast: the block of logits is exponentiated in place and never normalised: each example's factor 1 / total
is applied to the small arrays on the other side of the two products of backward. The block has the candidates first,
[s, n], so that maxima over them are taken between whole rows, which vectorises, and an offset is one number for a row.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from hybridmpi import inputs, kernels
from hybridmpi.arrays import namespace
from hybridmpi.autograd.tensor import Tensor, as_tensor, record
from hybridmpi.errors import UsageError
from hybridmpi.kernels.cpu import cpu_kernel


def sampled_softmax(
    hidden: Tensor,
    rows: Tensor,
    bias: Tensor,
    targets: Any,
    candidates: Any,
    target_offsets: Any = None,
    candidate_offsets: Any = None,
) -> Tensor:
    """Return the mean over n examples of -log of the true class' share; 0 for no examples. Local.

    hidden [n, d]; rows [u, d] and bias [u, 1]: the output layer's rows of the classes involved.
    targets: integers [n], the row of each example's class. candidates: integers [s], distinct rows, or None for all.
    target_offsets [n], candidate_offsets [s]: added to the logits. A candidate that is an example's own class is left
    out of that example's sum (the true class is counted once). Raises UsageError where shapes do not fit.
    """
    hidden = as_tensor(hidden, rows if isinstance(rows, Tensor) else None, "sampled_softmax: hidden")
    rows, bias = (as_tensor(part, hidden, "sampled_softmax: rows and bias") for part in (rows, bias))
    xp = namespace(hidden.data)
    count_rows = rows.shape[0] if rows.shape else 0
    targets = inputs.integers(targets, "sampled_softmax: target", 0, count_rows)
    if candidates is not None:
        candidates = inputs.integers(candidates, "sampled_softmax: candidate", 0, count_rows)
    if hidden.shape[1:] != rows.shape[1:] or bias.shape != (len(rows), 1) or targets.shape != hidden.shape[:1]:
        raise UsageError(
            f"sampled_softmax: hidden {hidden.shape}, rows {rows.shape}, bias {bias.shape}, targets {targets.shape}: "
            "expected [n, d], [u, d], [u, 1], [n]"
        )
    target_offsets, candidate_offsets = (
        None if given is None else inputs.floats(given, hidden.dtype, f"sampled_softmax: {name}", shape)
        for name, given, shape in (
            ("target_offsets", target_offsets, targets.shape),
            ("candidate_offsets", candidate_offsets, (count_rows,) if candidates is None else candidates.shape),
        )
    )
    count = len(targets)
    candidate_rows = rows.data if candidates is None else kernels.gather(rows.data, candidates)

    true_rows = kernels.gather(rows.data, targets)
    true = xp.einsum("nd,nd->n", hidden.data, true_rows) + bias.data[targets, 0]
    offsets = bias.data[:, 0] if candidates is None else bias.data[candidates, 0]
    if target_offsets is not None:
        true += target_offsets
    if candidate_offsets is not None:
        offsets = offsets + candidate_offsets
    hits = targets if candidates is None else _find(candidates, targets, len(rows))
    block = candidate_rows @ hidden.data.T
    shift_by_maximum(block, xp.ascontiguousarray(offsets), true, hits)
    exponentials = xp.exp(block, out=block)
    true_exponentials = xp.exp(true)
    totals = xp.ones(len(block), block.dtype) @ exponentials + true_exponentials
    loss = (xp.log(totals) - true).sum() / hidden.dtype.type(max(count, 1))

    def backward(gradient: Any) -> None:
        shares = (gradient / max(count, 1)) / totals
        d_true = (true_exponentials - totals) * shares
        if rows.requires_grad:
            weighted = hidden.data * shares[:, None]
            d_rows = _place(exponentials @ weighted, candidates, rows)
            kernels.scatter_add(d_rows, targets, hidden.data * d_true[:, None])
            rows.accumulate(d_rows)
        if bias.requires_grad:
            d_bias = _place((exponentials @ shares)[:, None], candidates, bias)
            kernels.scatter_add(d_bias, targets, d_true[:, None])
            bias.accumulate(d_bias)
        if hidden.requires_grad:
            d_hidden = exponentials.T @ candidate_rows
            d_hidden *= shares[:, None]
            d_hidden += true_rows * d_true[:, None]
            hidden.accumulate(d_hidden)

    return record(loss, (hidden, rows, bias), backward)


def _find(candidates: Any, targets: Any, rows: int) -> Any:
    """Return where each target stands among the candidates, -1 where it does not; all of them are in [0, rows)."""
    xp = namespace(targets)
    place = xp.full(rows, -1)
    place[candidates] = xp.arange(len(candidates))
    return place[targets]


def _place(values: Any, candidates: Any, rows: Tensor) -> Any:
    """Return an array like `rows` with the candidates' `values` and zeros elsewhere."""
    if candidates is None:
        return values
    whole = namespace(values).zeros(rows.shape, rows.dtype)
    kernels.scatter(whole, candidates, values)
    return whole


def shift_by_maximum(block: Any, offsets: Any, true: Any, hits: Any) -> None:
    """Add `offsets` [s] to logits `block` [s, n], exclude hits, subtract each example's maximum, all in place. Local.

    true [n]: the true classes' logits, which take part in the maximum and are shifted too. hits int64 [n]: the
    candidate to be excluded (minus infinity), -1 for none.
    """
    if namespace(block) is np:
        _shift_by_maximum(block, offsets, true, hits)
        return
    xp = namespace(block)
    block += offsets[:, None]
    hit = xp.flatnonzero(hits >= 0)
    block[hits[hit], hit] = -xp.inf
    maxima = xp.maximum(block.max(axis=0, initial=-xp.inf), true)
    block -= maxima
    true -= maxima


@cpu_kernel
def _shift_by_maximum(block, offsets, true, hits):
    for i in range(len(hits)):
        if hits[i] >= 0:
            block[hits[i], i] = -np.inf
    maxima = true.copy()
    for j in range(block.shape[0]):
        row, offset = block[j], offsets[j]
        for i in range(row.shape[0]):
            row[i] += offset
            maxima[i] = row[i] if row[i] > maxima[i] else maxima[i]
    for j in range(block.shape[0]):
        row = block[j]
        for i in range(row.shape[0]):
            row[i] -= maxima[i]
    for i in range(len(true)):
        true[i] -= maxima[i]
