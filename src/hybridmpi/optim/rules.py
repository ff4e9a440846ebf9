"""The optimisers: frozen settings, the state arrays they need, and their dense and row updates.

Row updates are *lazy*: a row that no gradient touches keeps its value and its state; nothing decays, however many steps
pass. On a table whose rows are all touched, both forms give the same bits. A row update runs once for each unique row,
after duplicates were summed, since Adagrad and Adam are not linear in the gradient.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Annotated, Any, ClassVar

import numpy as np

from hybridmpi import kernels
from hybridmpi.arrays import namespace
from hybridmpi.errors import UsageError
from hybridmpi.field_types import Amount, Positive, Range, Share, check_fields

State = dict[str, np.ndarray]

Epsilon = Annotated[float, Range(2.65e-23)]
"""What a gradient is divided by where the root beside it is 0. The square of a gradient below 2^-75, half the root of
float32's least number, is 0 in float32: divided by less than that, it would be a step longer than the rate."""
MOST_FLOAT32 = float(np.finfo(np.float32).max)


@dataclass(frozen=True)
class Optimizer:
    """What all optimisers share. Every field is a finite real number, also as float32; `rate` is above 0."""

    name: ClassVar[str]
    slots: ClassVar[tuple[str, ...]] = ()  # the names of the state arrays

    rate: Annotated[Positive, "learning rate"]

    def __post_init__(self) -> None:
        check_fields(self)

    def new_state(self, like: np.ndarray) -> State:
        """Return the state for parameters `like`: one array of its shape, dtype and kind for each slot. Local."""
        xp = namespace(like)
        return {slot: xp.zeros_like(like) for slot in self.slots}

    def update_dense(self, values: np.ndarray, gradients: np.ndarray, state: State, step: int) -> None:
        """Update flat `values` [n] in place by `gradients` [n]; `step` counts from 1. Local."""
        raise NotImplementedError

    def update_rows(
        self, table: np.ndarray, state: State, positions: np.ndarray, gradients: np.ndarray, step: int
    ) -> None:
        """Update rows `positions` int64[u] of `table` [rows, d] in place by `gradients` [u, d]. Local.

        Positions are unique and in [0, rows); `step` counts from 1. All other rows and their state stay untouched.
        """
        raise NotImplementedError

    def describe(self) -> dict[str, Any]:
        """Return name and settings as plain values; `from_description` makes the same optimiser of them. Local."""
        return {"name": self.name, **asdict(self)}


@dataclass(frozen=True)
class SGD(Optimizer):
    """Stochastic gradient descent: w -= rate g."""

    name = "sgd"

    def update_dense(self, values, gradients, state, step):
        kernels.sgd_dense(values, gradients, self.rate)

    def update_rows(self, table, state, positions, gradients, step):
        kernels.sgd_rows(table, positions, gradients, self.rate)


@dataclass(frozen=True)
class Momentum(Optimizer):
    """Heavy-ball momentum, as in torch.optim.SGD: v = momentum v + g; w -= rate v."""

    name = "momentum"
    slots = ("velocity",)

    momentum: Annotated[Share, "share of the velocity that is kept from step to step"] = 0.9

    def update_dense(self, values, gradients, state, step):
        kernels.momentum_dense(values, state["velocity"], gradients, self.rate, self.momentum)

    def update_rows(self, table, state, positions, gradients, step):
        kernels.momentum_rows(table, state["velocity"], positions, gradients, self.rate, self.momentum)


@dataclass(frozen=True)
class Adagrad(Optimizer):
    """Adagrad (Duchi et al. 2011), as in torch.optim.Adagrad: a += g^2; w -= rate g / (sqrt(a) + epsilon).

    The accumulator starts at `initial`.
    """

    name = "adagrad"
    slots = ("accumulator",)

    initial: Annotated[
        Amount, "the accumulator before the first step: small, as gradients of a mean over a batch are"
    ] = 0.1
    epsilon: Annotated[Epsilon, "added to the root of the accumulator"] = 1e-10

    def new_state(self, like):
        return {"accumulator": namespace(like).full_like(like, self.initial)}

    def update_dense(self, values, gradients, state, step):
        kernels.adagrad_dense(values, state["accumulator"], gradients, self.rate, self.epsilon)

    def update_rows(self, table, state, positions, gradients, step):
        kernels.adagrad_rows(table, state["accumulator"], positions, gradients, self.rate, self.epsilon)


@dataclass(frozen=True)
class Adam(Optimizer):
    """Adam (Kingma and Ba 2015), as in torch.optim.Adam: m = beta1 m + (1 - beta1) g; v = beta2 v + (1 - beta2) g^2;
    w -= rate m^ / (sqrt(v^) + epsilon), where ^ divides by 1 - beta^step.

    The row form is lazy Adam: moments decay only on steps that touch their row, while `step` counts all. In that it is
    as torch.optim.SparseAdam, which however adds epsilon to sqrt(v), not to sqrt(v^): its epsilon is larger than here
    by 1 / sqrt(1 - beta2^step), 32 times in the first step.
    """

    name = "adam"
    slots = ("first_moment", "second_moment")

    beta1: Annotated[Share, "share of the mean of gradients that is kept from step to step"] = 0.9
    beta2: Annotated[Share, "share of the mean of their squares that is kept"] = 0.999
    epsilon: Annotated[Epsilon, "added to the root of that mean"] = 1e-8

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.rate / (1 - self.beta1) > MOST_FLOAT32:
            raise UsageError(
                f"Adam.rate = {self.rate} with beta1 = {self.beta1}: the first step divides one by 1 minus the other, "
                "which is too large for float32; expected a smaller rate"
            )

    def update_dense(self, values, gradients, state, step):
        kernels.adam_dense(
            values,
            state["first_moment"],
            state["second_moment"],
            gradients,
            self.rate,
            self.beta1,
            self.beta2,
            self.epsilon,
            step,
        )

    def update_rows(self, table, state, positions, gradients, step):
        kernels.adam_rows(
            table,
            state["first_moment"],
            state["second_moment"],
            positions,
            gradients,
            self.rate,
            self.beta1,
            self.beta2,
            self.epsilon,
            step,
        )
