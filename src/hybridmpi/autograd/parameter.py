"""Parameter: a dense trainable array whose values and gradient can live in buffers that someone else owns."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import numpy as np

from hybridmpi import inputs
from hybridmpi.arrays import namespace, trained_dtype
from hybridmpi.autograd.initial import Initial, check_initial, draw
from hybridmpi.autograd.tensor import Tensor
from hybridmpi.errors import UsageError

_NO_VALUES = np.empty(0, np.float32)


class Parameter(Tensor):
    """A dense trainable array of `shape`, without values until `initialise` or `attach` of initialised values. Local.

    The gradient protocol of a step: `begin_step` marks the gradient as unwritten, the first contribution of backward is
    written straight into its place (no zero fill, no addition), later ones are added, `finish_step` fills with zeros
    what nothing was written to.

    init: ("uniform", low, high), ("normal", mean, deviation) or ("constant", value).
    on_written: called with this parameter when backward() has delivered its last contribution, so that the exchange of
        a bucket can start while backward goes on. Once per backward().
    """

    __slots__ = ("_data", "_grad", "_written", "custody", "init", "name", "on_written", "wanted_dtype", "wanted_shape")

    def __init__(self, shape: tuple[int, ...], init: Initial, dtype: Any = np.float32) -> None:
        check_initial(init, "a Parameter")
        self.wanted_shape = _checked_shape(shape)
        self.wanted_dtype = trained_dtype(dtype, f"a Parameter of shape {self.wanted_shape}")
        self.init = init
        self.name = "?"
        self.custody = ""  # whether a Trainer has it, or has trained it: see training/custody.py
        self.on_written: Callable[[Parameter], None] | None = None
        self._data = None
        self._grad = None
        self._written = False
        super().__init__(_NO_VALUES, requires_grad=True)

    @property
    def data(self) -> Any:
        """The values; UsageError before there are any."""
        if self._data is None:
            raise UsageError(
                f"parameter '{self.name}' of shape {self.wanted_shape} has no values: the Trainer draws those of all "
                "parameters that it finds in the model's attributes and in lists, tuples and dicts of them, else "
                "model.initialise(seed) does"
            )
        return self._data

    @data.setter
    def data(self, values: Any) -> None:
        # Tensor.__init__ passes through here with nothing; values come from initialise, attach or assign.
        pass

    @property
    def grad(self) -> Any:
        """The gradient, or None as long as nothing was written in this step."""
        return self._grad if self._written else None

    @grad.setter
    def grad(self, gradient: None) -> None:
        self._written = False

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape, also before there are values."""
        return self.wanted_shape

    @property
    def dtype(self) -> np.dtype:
        """The dtype, also before there are values."""
        return self.wanted_dtype

    @property
    def size(self) -> int:
        """The number of elements, also before there are values."""
        return math.prod(self.wanted_shape)

    def initialise(self, generator: np.random.Generator) -> None:
        """Draw the values from `init` with `generator`, in place if there is a place. Local."""
        self.assign(draw(self.init, self.wanted_shape, self.wanted_dtype, generator))

    def assign(self, values: Any) -> None:
        """Copy `values` of this shape into the parameter (a checkpoint's, another rank's). Local."""
        values = inputs.floats(values, self.wanted_dtype, f"the values of parameter '{self.name}'", self.wanted_shape)
        if self._data is None:
            self._data = namespace(values).array(values, self.wanted_dtype, copy=True, order="C")
        else:
            self._data[...] = values

    def attach(self, data_view: Any, grad_view: Any) -> None:
        """Move values and gradient into views of buffers that the caller owns; the present values go along. Local.

        Both views have this parameter's shape and dtype and are C-contiguous, so that products are written in place.
        """
        for what, view in (("data", data_view), ("gradient", grad_view)):
            if view.shape != self.wanted_shape or view.dtype != self.wanted_dtype or not view.flags.c_contiguous:
                raise UsageError(
                    f"the {what} view for parameter '{self.name}' has shape {view.shape}, dtype {view.dtype}; expected "
                    f"a C-contiguous one of shape {self.wanted_shape}, dtype {self.wanted_dtype}"
                )
        if self._data is not None:
            data_view[...] = self._data
            self._data = data_view
        else:
            raise UsageError(f"parameter '{self.name}' is attached before it has values: call model.initialise(seed)")
        self._grad, self._written = grad_view, False

    def begin_step(self) -> None:
        """Mark the gradient as unwritten; its memory keeps what it held. Local."""
        self._written = False

    def finish_step(self) -> bool:
        """Fill an unwritten gradient with zeros; return whether backward had written it. Local."""
        written = self._written
        if not written:
            self._place()[...] = 0
            self._written = True
        return written

    def accumulate(self, gradient: Any) -> None:
        """Write (the first of a step) or add an array of this shape to the gradient. Local."""
        place = self._place()
        if self._written:
            place += gradient
        else:
            place[...] = gradient
            self._written = True

    def accumulate_product(self, left: Any, right: Any) -> None:
        """Write or add the matrix product left @ right; the first of a step goes straight into its place. Local."""
        place = self._place()
        xp = namespace(place)
        # Of one column and one row numpy's product takes ten times as long as the multiplications.
        product = xp.multiply if left.shape[1] == 1 else xp.matmul
        if self._written:
            place += product(left, right)
        else:
            product(left, right, out=place)
            self._written = True

    def take_place(self) -> tuple[Any, bool]:
        """Return where the gradient lies, and whether it is to be added to there or written: the caller does it at
        once. Local."""
        place, written = self._place(), self._written
        self._written = True
        return place, written

    def _place(self) -> Any:
        if self._grad is None:
            self._grad = namespace(self.data).empty_like(self.data)
        return self._grad

    def __repr__(self) -> str:
        return f"Parameter('{self.name}', shape={self.wanted_shape}, dtype={self.wanted_dtype})"


def _checked_shape(shape: Any) -> tuple[int, ...]:
    try:
        found = tuple(operator.index(length) for length in shape)
    except TypeError:
        found = None
    if found is None or min(found, default=0) < 0:
        raise UsageError(f"a Parameter of shape {shape!r}: expected a tuple of lengths, such as (4, 3)")
    return found
