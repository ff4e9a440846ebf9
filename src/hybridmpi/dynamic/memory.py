"""The memory of passes: one block for all that a pass computes, used again by the next."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

_ALIGNED = 64  # bytes: a cache line, and the widest vector register


class Block:
    """Memory of one pass, of which places are taken one after the other. Local."""

    def __init__(self, nbytes: int) -> None:
        memory = np.empty(nbytes + _ALIGNED, np.uint8)
        first = -address_of(memory) % _ALIGNED
        self._memory = memory[first : first + nbytes]
        self.address = address_of(memory) + first
        self._next = 0

    def __len__(self) -> int:
        return len(self._memory)

    def clear(self) -> None:
        """Take all of it back."""
        self._next = 0

    def take(self, nbytes: int) -> int:
        """Return the first byte of a place of so many, a multiple of 64."""
        first = self._next
        self._next += nbytes
        return first

    def view(self, first: int, rows: int, width: int, dtype: np.dtype) -> np.ndarray:
        """Return what begins at a byte as an array [rows, width] with whatever values."""
        return self._memory[first : first + rows * width * dtype.itemsize].view(dtype).reshape(rows, width)


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


def size_of(nbytes: int) -> int:
    """Return the bytes that so many take of a block. Local."""
    return (nbytes + _ALIGNED - 1) // _ALIGNED * _ALIGNED


def address_of(array: Any) -> int:
    """Return the address of an array's first element. Local."""
    try:
        return _address(_first_byte(array))  # takes a tenth of the time of the ways that numpy offers
    except (BufferError, TypeError, ValueError):  # read-only, not contiguous, or empty
        return array.__array_interface__["data"][0]


_address, _first_byte = ctypes.addressof, ctypes.c_char.from_buffer
