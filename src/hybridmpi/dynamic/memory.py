"""The memory of passes: one block for all that a pass computes, used again by the next."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

_ALIGNED = 64  # bytes: a cache line, and the widest vector register


class Block:
    """Memory of one pass, from which arrays are cut one after the other. Local."""

    def __init__(self, nbytes: int) -> None:
        memory = np.empty(nbytes + _ALIGNED, np.uint8)
        first = -address_of(memory) % _ALIGNED
        self._memory = memory[first : first + nbytes]
        self._next = 0

    def __len__(self) -> int:
        return len(self._memory)

    def clear(self) -> None:
        """Take all of it back."""
        self._next = 0

    def array(self, rows: int, width: int, dtype: np.dtype) -> np.ndarray:
        """Return an array [rows, width] with whatever values."""
        first, nbytes = self._next, rows * width * dtype.itemsize
        self._next = first + size_of(rows, width, dtype)
        return self._memory[first : first + nbytes].view(dtype).reshape(rows, width)


class Pool:
    """The blocks that are free. Passes that are under way at the same time have one each. Local."""

    def __init__(self) -> None:
        self._free: list[Block] = []

    def take(self, nbytes: int) -> Block:
        """Return a block of at least so many bytes: one that was used before if it is large enough."""
        block = self._free.pop() if self._free else None
        if block is None or len(block) < nbytes:
            block = Block(nbytes + nbytes // 4)  # batches differ a little: room for the next ones
        block.clear()
        return block

    def give_back(self, block: Block) -> None:
        """Let a block be used again."""
        self._free.append(block)


def size_of(rows: int, width: int, dtype: np.dtype) -> int:
    """Return the bytes that an array [rows, width] takes of a block. Local."""
    return math.ceil(rows * width * dtype.itemsize / _ALIGNED) * _ALIGNED


def address_of(array: Any) -> int:
    """Return the address of an array's first element. Local."""
    return array.__array_interface__["data"][0]
