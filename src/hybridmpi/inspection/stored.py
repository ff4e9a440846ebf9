"""One array of a checkpoint, wherever its rows lie: read by rows, or slab by slab, never as a whole."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import numpy as np

from hybridmpi.checkpoint import Checkpoint
from hybridmpi.checkpoint.layout import Overlap, Progression, overlap
from hybridmpi.checkpoint.places import Place

# Of so many shards the files stay open while rows are read in order; systems allow some 1,000 files for a process.
KEPT_OPEN = 256


@dataclass(frozen=True)
class StoredArray:
    """The values of a parameter, or one slot of its optimiser state: `kind` is "table", "dense" or "carried".

    All arrays are looked at as rows: a scalar is one row, a vector has rows of one value, and further axes are laid
    out within their row.
    """

    checkpoint: Checkpoint
    name: str
    slot: str | None
    kind: str
    shape: tuple[int, ...]
    dtype: np.dtype
    pieces: tuple[Place, ...]

    @property
    def rows(self) -> int:
        """How many rows there are."""
        return self.shape[0] if self.shape else 1

    @property
    def width(self) -> int:
        """How many values a row has."""
        return math.prod(self.shape[1:])

    @property
    def nbytes(self) -> int:
        """The size of all values in bytes."""
        return math.prod(self.shape) * self.dtype.itemsize

    @property
    def title(self) -> str:
        """What to call it: emb.weight, or emb.weight/accumulator for a slot of its state."""
        return self.name if self.slot is None else f"{self.name}/{self.slot}"

    def rows_of(self, size: int) -> int:
        """Return how many rows, at least one, have about `size` bytes. Local."""
        return max(1, size // max(1, self.width * self.dtype.itemsize))

    def read(self, first: int, count: int) -> np.ndarray:
        """Return `count` rows from `first` on, [count, width]; they must be in the array. Local.

        Raises CheckpointError naming the file that is missing, damaged or not what the manifest says.
        """
        return next(values for _, values in self._ordered(Progression(first, 1, count), count)) if count else (
            np.empty((0, self.width), self.dtype)
        )  # fmt: skip

    def in_order(self, at_once: int) -> Iterator[tuple[Progression, np.ndarray]]:
        """Yield (which rows, their values [n, width]) in the order of rows, `at_once` rows together. Local.

        Values are overwritten by the next ones. Raises as `read` does.
        """
        return self._ordered(Progression(0, 1, self.rows), at_once)

    def _ordered(self, wanted: Progression, at_once: int) -> Iterator[tuple[Progression, np.ndarray]]:
        out = np.empty((min(at_once, wanted.count), *self.shape[1:]), self.dtype)
        with ExitStack() as stack:
            pieces = [piece for piece in self.pieces if self.width and overlap(piece.span, wanted)]
            keep = len(pieces) <= KEPT_OPEN
            opened = [stack.enter_context(self.opened(piece)) for piece in pieces] if keep else []
            for first in range(wanted.first, wanted.last + 1, at_once):
                rows = Progression(first, 1, min(at_once, wanted.last + 1 - first))
                values = out[: rows.count]
                for number, piece in enumerate(pieces):
                    shared = overlap(piece.span, rows)
                    if shared is not None and keep:
                        opened[number](shared, values)
                    elif shared is not None:
                        with self.opened(piece) as read:
                            read(shared, values)
                yield rows, values.reshape(rows.count, self.width)

    @contextmanager
    def opened(self, piece: Place) -> Iterator[Callable[[Overlap, np.ndarray], None]]:
        """Yield a function (shared, out) that reads rows of a piece into the rows of `out` [n, ...] they go to. Local.

        Raises CheckpointError as `read` does.
        """
        with self.checkpoint.opened(piece.file) as file:

            def read(shared: Overlap, out: np.ndarray) -> None:
                file.read(piece, [(shared, out.reshape(len(out), *self.shape[1:]))])

            yield read

    def slabs(self, at_once: int) -> Iterator[tuple[Progression, np.ndarray]]:
        """Yield (which rows, their values [n, width]), at most `at_once` together, as they lie on disk. Local.

        Values are overwritten by the next ones. Raises as `read` does.
        """
        if not self.width:
            return
        buffer = np.empty(
            (min(at_once, max((piece.span.count for piece in self.pieces), default=0)), *self.shape[1:]), self.dtype
        )
        for piece in self.pieces:
            span = piece.span
            if not span.count:
                continue
            with self.opened(piece) as read:
                for begin in range(0, span.count, at_once):
                    count = min(at_once, span.count - begin)
                    read(Overlap(begin, 1, 0, 1, count), buffer)
                    rows = Progression(span.first + begin * span.stride, span.stride, count)
                    yield rows, buffer[:count].reshape(count, self.width)
