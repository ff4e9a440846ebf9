"""Cross entropy over all classes."""

from __future__ import annotations

from typing import Any

from hybridmpi import inputs
from hybridmpi.arrays import namespace
from hybridmpi.autograd.tensor import Tensor, as_tensor, record
from hybridmpi.errors import UsageError


def cross_entropy(logits: Tensor, targets: Any) -> Tensor:
    """Return the mean over examples of -log softmax(logits)[target]; 0 for no examples. Local.

    logits [n, classes]; targets integers [n] in [0, classes), else UsageError.
    """
    logits = as_tensor(logits, None, "cross_entropy: logits")
    xp = namespace(logits.data)
    classes = logits.shape[-1] if logits.shape else 0
    targets = inputs.integers(
        targets, "cross_entropy: target", 0, classes, remedy="Give the last layer more outputs, or map the classes"
    )
    if logits.data.ndim != 2 or targets.shape != logits.shape[:1]:
        raise UsageError(f"cross_entropy of logits {logits.shape} and targets {targets.shape}: expected [n, c] and [n]")
    count = len(targets)
    examples = xp.arange(count)
    shifted = logits.data - logits.data.max(axis=1, keepdims=True)
    true = shifted[examples, targets]
    exponentials = xp.exp(shifted, out=shifted)
    totals = exponentials.sum(axis=1)
    loss = (xp.log(totals) - true).sum() / logits.dtype.type(max(count, 1))

    def backward(gradient: Any) -> None:
        weight = gradient / max(count, 1)
        result = exponentials * (weight / totals)[:, None]
        result[examples, targets] -= weight
        logits.accumulate(result)

    return record(loss, (logits,), backward)
