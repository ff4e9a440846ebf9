"""Wires: the form that float32 values have while they travel, as they are or in 16 bits.

Sums are always kept in float32: what arrives is widened and added. What a rank keeps of its own is rounded wherever
others only ever see it rounded (`settle`), so that all ranks end with the same bits.
"""

from __future__ import annotations

import numpy as np

from hybridmpi import kernels
from hybridmpi.errors import UsageError

WIRES = ("float32", "bfloat16", "float16")


class Wire:
    """Values travel as they are. Local."""

    name = "float32"

    def outgoing(self, values: np.ndarray) -> np.ndarray:
        """Return the flat `values` in the form that is sent."""
        return values

    def landing(self, values: np.ndarray) -> np.ndarray:
        """Return where to receive what will replace `values`."""
        return values

    def land(self, landed: np.ndarray, values: np.ndarray) -> None:
        """Replace `values` by what was received at `landing(values)`."""

    def scratch(self, shape: int | tuple[int, ...], values: np.ndarray) -> np.ndarray:
        """Return memory to receive what will be added to parts of `values`."""
        return np.empty(shape, values.dtype)

    def add(self, received: np.ndarray, values: np.ndarray) -> None:
        """Add what was received into `scratch` to `values`."""
        np.add(values, received, out=values)

    def settle(self, values: np.ndarray) -> None:
        """Round `values` to what the others receive of them."""


class HalfWire(Wire):
    """float32 values travel in 16 bits, rounded to nearest even; `name`: "float16" or "bfloat16". Local.

    bfloat16 has float32's range and 8 bits of precision; float16 has 11 bits, and what exceeds 65504 becomes infinite.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self._narrow = getattr(kernels, f"to_{name}")
        self._add = getattr(kernels, f"add_{name}")
        self._widen = getattr(kernels, f"from_{name}")

    def outgoing(self, values: np.ndarray) -> np.ndarray:
        """Return `values` rounded to 16 bits."""
        narrow = np.empty(values.size, np.uint16)
        self._narrow(values, narrow)
        return narrow

    def landing(self, values: np.ndarray) -> np.ndarray:
        """Return room for `values` in 16 bits."""
        return np.empty(values.size, np.uint16)

    def land(self, landed: np.ndarray, values: np.ndarray) -> None:
        """Widen what was received into `values`."""
        self._widen(landed, values)

    def scratch(self, shape: int | tuple[int, ...], values: np.ndarray) -> np.ndarray:
        """Return room for numbers of 16 bits."""
        return np.empty(shape, np.uint16)

    def add(self, received: np.ndarray, values: np.ndarray) -> None:
        """Widen what was received and add it to `values`."""
        self._add(received, values)

    def settle(self, values: np.ndarray) -> None:
        """Round `values` to 16 bits."""
        self._widen(self.outgoing(values), values)


PLAIN = Wire()


def wire_for(name: str, dtype: np.dtype) -> Wire:
    """Return the wire `name` for values of `dtype`; what is not float32 travels as it is. Local. Raises UsageError."""
    if name not in WIRES:
        raise UsageError(f"wire '{name}': expected one of {', '.join(WIRES)}")
    return PLAIN if name == "float32" or dtype != np.float32 else HalfWire(name)
