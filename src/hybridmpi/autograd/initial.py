"""Initial values of dense parameters: a function of the seed and the parameter's name, of nothing else."""

from __future__ import annotations

import math
import zlib
from typing import Any

import numpy as np

from hybridmpi.errors import UsageError

Initial = tuple[str, float] | tuple[str, float, float]

_NUMBERS = {"uniform": ("low", "high"), "normal": ("mean", "deviation"), "constant": ("value",)}


def check_initial(init: Initial, whose: str) -> None:
    """Raise UsageError unless `init` is ("uniform", low, high), ("normal", mean, deviation) or ("constant", value)."""
    kind, *numbers = init if isinstance(init, tuple) and init else (init,)
    expected = _NUMBERS.get(kind) if isinstance(kind, str) else None
    if expected is None or len(numbers) != len(expected) or not all(_is_number(number) for number in numbers):
        forms = ", ".join(f'("{name}", {", ".join(names)})' for name, names in _NUMBERS.items())
        raise UsageError(f"the initial values of {whose} are {init!r}: expected one of {forms}")


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and math.isfinite(value)


def generator_for(seed: int, name: str) -> np.random.Generator:
    """Return the generator of the initial values of the parameter with this dotted name. Local."""
    return np.random.Generator(np.random.Philox(np.random.SeedSequence([seed, zlib.crc32(name.encode())])))


def draw(init: Initial, shape: tuple[int, ...], dtype: Any, generator: np.random.Generator) -> np.ndarray:
    """Return an array of `shape` drawn as `init` says. Local."""
    kind, *numbers = init
    if kind == "constant":
        return np.full(shape, numbers[0], dtype)
    if kind == "uniform":
        return generator.uniform(*numbers, shape).astype(dtype)
    return generator.normal(*numbers, shape).astype(dtype)
