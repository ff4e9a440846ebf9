"""What a step took in and what it did."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from hybridmpi.autograd import Tensor
from hybridmpi.errors import UsageError
from hybridmpi.nn import Module


@dataclass(frozen=True)
class StepResult:
    """What a step did, the same on every compute rank, but for the times and bytes, which are this rank's. Where ranks
    do not train synchronously, all of it is this rank's own.

    `loss`: mean over all examples of all ranks, NaN without any, or where the loss of a rank is not finite; `examples`:
    how many; `skipped`: nothing was updated since something was not finite. `seconds` by phase and `bytes` by category
    are of this step; `hidden_seconds`: how long sums of dense gradients were under way while backward went on. `notes`:
    what was changed after it, and why, in words. `rows`: with prefetch or a cache, what became of the rows wanted of
    other nodes (sparse/reader.py: COUNTS).
    """

    step: int
    loss: float
    examples: int
    skipped: bool
    total_seconds: float
    hidden_seconds: float
    seconds: dict[str, float] = field(repr=False)
    bytes: dict[str, int] = field(repr=False)
    notes: tuple[str, ...] = ()
    rows: dict[str, int] = field(repr=False, default_factory=dict)


@dataclass(frozen=True)
class ReadFailure:
    """In place of a batch: the error that reading it raised, which all ranks must hear of."""

    error: BaseException


def loss_of(model: Module, batch: Any) -> tuple[Tensor, float]:
    """Return what `model.loss` returns for a batch, and its value. Local. Raises UsageError unless it is a Tensor of
    one number."""
    loss = model.loss(batch)
    if not isinstance(loss, Tensor) or loss.size != 1:
        found = f"{loss!r}" if isinstance(loss, Tensor) else f"a {type(loss).__name__}"
        raise UsageError(
            f"{type(model).__name__}.loss(batch) returned {found}: expected a Tensor of one number, the mean loss over "
            "the batch's examples, such as hybridmpi.autograd.mean(...) or nn.cross_entropy(...) returns"
        )
    return loss, float(loss.data.item())
