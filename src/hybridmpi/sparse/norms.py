"""The norm of the whole gradient, dense and sparse, with only scalars travelling.

Rows are summed where they live, so only their owners know the squares of a sparse gradient. In a service with norms, an
owner that has aggregated a step tells every client its sum of squares, and waits. Each client adds those sums in the
order of the owners to the squares of the dense gradient, which all ranks have alike: the same norm everywhere. One
client then tells every owner what to multiply its sums by, and the owner updates its rows.

A step whose norm is not finite is dropped: the factor is NaN, the owners forget their sums, and the number of the step
is used again.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from hybridmpi.sparse.exchange import Exchange

SCALAR_BYTES = 8


@dataclass(frozen=True)
class Norm:
    """The Euclidean norm of a step's gradient, and the factor that brings it down to the limit: 1.0 where it is not
    above it, NaN where it is not finite. `parts`: the sum of squares of each owner, then of each of the caller's."""

    value: float
    scale: float
    parts: tuple[float, ...]


def norm_of(parts: Sequence[float], limit: float) -> Norm:
    """Return the norm of a gradient from its sums of squares, added in their order. Local."""
    norm = math.sqrt(sum(parts))
    scale = math.nan if not math.isfinite(norm) else min(1.0, limit / norm) if norm else 1.0
    return Norm(norm, scale, tuple(parts))


class OwnerNorms:
    """An owner's side: tells the clients its sum of squares of each step, hears the factor. Local; nothing waits."""

    def __init__(self, exchange: Exchange, owner: int) -> None:
        self._exchange, self._owner, self._steps = exchange, owner, 0
        self._scale, self._scale_sent = exchange.watch("scale").view(float), exchange.watch("scale_sent")
        self._waiting = False

    def announce(self, squares: float) -> None:
        """Tell every client this step's sum of squares; the factor is waited for from now on."""
        self._steps += 1
        self._exchange.tell("squares", self._owner, self._exchange.world.clients, squares, self._steps)
        self._waiting = True

    def scale(self) -> float | None:
        """Return the factor for this step, once, or None as long as it is not known."""
        if not self._waiting or self._scale_sent[0] != self._steps:
            return None
        self._exchange.see_counters()
        self._waiting = False
        return float(self._scale[0])


class ClientNorms:
    """A client's side: hears the owners' sums; the first client tells them the factor. Local; waits for the owners."""

    def __init__(self, exchange: Exchange) -> None:
        self._exchange, self._steps = exchange, 0
        self._squares, self._squares_sent = exchange.watch("squares").view(float), exchange.watch("squares_sent")

    def squares(self) -> list[float]:
        """Return every owner's sum of squares of the step that has been pushed. Waits until all clients have pushed."""
        self._steps += 1
        self._exchange.world.wait_until(lambda: self._squares_sent.min() >= self._steps)
        self._exchange.see_counters()
        return self._squares.tolist()

    def tell(self, scale: float) -> None:
        """Tell the owners the factor: one client does."""
        self._exchange.tell("scale", 0, self._exchange.world.owners, scale, self._steps)
