"""Logistic loss: the binary cross entropy of logits, computed so that no exponential overflows."""

from __future__ import annotations

from typing import Any

from hybridmpi import inputs
from hybridmpi.arrays import namespace
from hybridmpi.autograd.tensor import Tensor, as_tensor, record
from hybridmpi.errors import UsageError


def logistic_loss(logits: Any, labels: Any) -> Any:
    """Return -log of the probability of each label, of the shape of `logits`, for arrays. Local.

    With z the logit and y the label, -(y log p + (1 - y) log(1 - p)), p = 1 / (1 + exp(-z)), which is
    max(z, 0) - z y + log(1 + exp(-|z|)).
    """
    logits = inputs.real_array(logits, "logistic_loss: logits")
    labels = inputs.real_array(labels, "logistic_loss: labels")
    xp = namespace(logits)
    return xp.maximum(logits, 0) - logits * labels + xp.log1p(xp.exp(-xp.abs(logits)))


def binary_cross_entropy(logits: Tensor, labels: Any) -> Tensor:
    """Return the mean over examples of the logistic loss; 0 for no examples. Local.

    logits [n]; labels [n] in [0, 1], else UsageError.
    """
    logits = as_tensor(logits, None, "binary_cross_entropy: logits")
    labels = inputs.floats(labels, logits.dtype, "binary_cross_entropy: labels")
    if logits.data.ndim != 1 or labels.shape != logits.shape:
        raise UsageError(f"binary_cross_entropy of logits {logits.shape} and labels {labels.shape}: expected [n] each")
    if len(labels) and not (float(labels.min()) >= 0 and float(labels.max()) <= 1):
        raise UsageError(f"binary_cross_entropy: labels span {labels.min()} to {labels.max()}: expected them in [0, 1]")
    z, count = logits.data, logits.dtype.type(max(len(labels), 1))

    def backward(gradient: Any) -> None:
        p = 0.5 + 0.5 * namespace(z).tanh(0.5 * z)
        logits.accumulate((p - labels) * (gradient / count))

    return record(logistic_loss(z, labels).sum() / count, (logits,), backward)
