"""Products that are rounded before anything is added to them: the same bits on the CPU and on the device.

NVVM and ptxas contract a multiply and an add into one fused multiply-add, which rounds once where the CPU forms round
twice. They leave alone a multiply that names its rounding. An add needs no such name: it fuses with a multiply only.
"""

from __future__ import annotations

from typing import Any

from numba.extending import overload


def mul_rn(a: Any, b: Any) -> Any:
    """Return a * b, rounded to nearest, of two numbers of one type: never half of a fused multiply-add. Local.

    In CPU kernels, in Python and in numba's simulator it is the product, in CUDA kernels the instruction mul.rn (PTX
    ISA, floating-point `mul`).
    """
    return a * b


@overload(mul_rn, target="cpu", inline="never")
def _mul_rn_on_cpu(a, b):  # no annotations: numba compares them with those of what is returned
    return lambda a, b: a * b  # without fastmath LLVM contracts nothing
