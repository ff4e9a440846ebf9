"""LLVM text, line by line: straight code on vectors of one type."""

from __future__ import annotations

import struct

import numpy as np

# float32 goes 16 at a time, a register of AVX-512; on other machines LLVM splits it. float64, which finite differences
# run on, goes one by one, by the functions of libm.
LANES = {"float32": 16, "float64": 1}


class Code:
    """Lines of one function, with fresh names, and the declarations of what they call. Local.

    dtype: float32 or float64. `vector`, `integers`, `bits` are the text of the types of a value, of integers as wide,
    and of comparisons; `suffix` is that of the intrinsic functions on values. lanes: elements of a value, if not
    those of LANES.
    """

    def __init__(self, dtype: np.dtype, lanes: int | None = None):
        self.dtype = np.dtype(dtype)
        if self.dtype.name not in LANES:
            raise ValueError(f"kernels of {self.dtype}: only of {' and '.join(LANES)}")
        self.lanes = LANES[self.dtype.name] if lanes is None else lanes
        size = 8 * self.dtype.itemsize
        self.scalar = "float" if size == 32 else "double"
        self.vector, self.integers, self.bits = (self._type(name) for name in (self.scalar, f"i{size}", "i1"))
        self.suffix = f"v{self.lanes}f{size}" if self.lanes > 1 else f"f{size}"
        self.lines: list[str] = []
        self.declared: set[str] = set()
        self._names = 0

    def _type(self, element: str) -> str:
        return f"<{self.lanes} x {element}>" if self.lanes > 1 else element

    def constants(self, element: str, texts: list[str]) -> str:
        """Return the constant of one text for each lane, each of type `element`."""
        return f"<{', '.join(f'{element} {text}' for text in texts)}>" if self.lanes > 1 else texts[0]

    def number(self, value: float) -> str:
        """Return `value`, rounded to the dtype, in all lanes. LLVM writes all floats by the bits of a double."""
        with np.errstate(over="ignore"):
            rounded = float(self.dtype.type(value))
        bits = struct.unpack("<Q", struct.pack("<d", rounded))[0]
        return self.constants(self.scalar, [f"0x{bits:016X}"] * self.lanes)

    def integer(self, value: int) -> str:
        """Return `value` in all lanes of integers as wide as the dtype."""
        return self.constants(f"i{8 * self.dtype.itemsize}", [str(value)] * self.lanes)

    def line(self, text: str) -> None:
        """Add a line that has no result."""
        self.lines.append(f"  {text}")

    def label(self, name: str) -> None:
        """Begin a block."""
        self.lines.append(f"{name}:")

    def value(self, text: str) -> str:
        """Add a line, and return the name of its result."""
        self._names += 1
        name = f"%t{self._names}"
        self.lines.append(f"  {name} = {text}")
        return name

    def declare(self, text: str) -> None:
        """Declare a function that is called."""
        self.declared.add(f"declare {text}")

    def operate(self, operation: str, a: str, b: str) -> str:
        """Return the result of an instruction on two values: fadd, fsub, fmul, fdiv."""
        return self.value(f"{operation} {self.vector} {a}, {b}")

    def call(self, function: str, *arguments: str) -> str:
        """Return function(arguments), all of the vector type."""
        self.declare(f"{self.vector} @{function}({', '.join([self.vector] * len(arguments))})")
        given = ", ".join(f"{self.vector} {argument}" for argument in arguments)
        return self.value(f"call {self.vector} @{function}({given})")

    def where(self, comparison: str, a: str, b: str, chosen: str, other: str) -> str:
        """Return `chosen` where the comparison (ogt, olt: false for NaN) of a and b holds, else `other`."""
        holds = self.value(f"fcmp {comparison} {self.vector} {a}, {b}")
        return self.value(f"select {self.bits} {holds}, {self.vector} {chosen}, {self.vector} {other}")
