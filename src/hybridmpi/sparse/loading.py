"""An owner's rows out of a checkpoint, whatever partition wrote it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from hybridmpi.sparse.shard import Shard

if TYPE_CHECKING:
    from hybridmpi.checkpoint import Checkpoint

# Rows are loaded in slabs of so many bytes: memory stays bounded beside the shard itself.
LOAD_BYTES = 64 << 20

Dense = tuple[dict[str, np.ndarray], dict[str, dict[str, np.ndarray]]]


def load_rows(saved: Checkpoint, shard: Shard, dense: Callable[[], Dense]) -> None:
    """Fill a shard, values and state, from `saved`, where it may be a dense parameter, which `dense` reads. Local."""
    spec, pieces = shard.spec, shard.pieces
    if spec.name not in saved.tables:
        values, state = dense()
        shape = (spec.rows, spec.dim)
        for piece in pieces:
            rows = slice(piece.first, None, piece.stride)
            shard.values[piece.rows] = values[spec.name].reshape(shape)[rows][: piece.count]
            for slot, array in shard.state.items():
                array[piece.rows] = state[slot][spec.name].reshape(shape)[rows][: piece.count]
    elif len(pieces) == 1:
        _load_stretch(saved, shard)
    elif pieces:
        _load_pieces(saved, shard)


def _load_stretch(saved: Checkpoint, shard: Shard) -> None:
    """Read the rows of the one part that there is."""
    (piece,) = shard.pieces
    slab = max(1, LOAD_BYTES // shard.spec.row_bytes)
    for start in range(0, piece.count, slab):
        count = min(slab, piece.count - start)
        first = piece.first + start * piece.stride
        values, state = saved.read_rows(shard.spec.name, first, piece.stride, count)
        shard.values[start : start + count] = values
        for slot, array in state.items():
            shard.state[slot][start : start + count] = array


def _load_pieces(saved: Checkpoint, shard: Shard) -> None:
    """Read all rows of the table once, and keep those of each part: a part by itself would read what lies between its
    rows as well."""
    from hybridmpi.checkpoint.layout import Progression, overlap

    spec = shard.spec
    slab = max(1, LOAD_BYTES // spec.row_bytes)
    for start in range(0, spec.rows, slab):
        count = min(slab, spec.rows - start)
        values, state = saved.read_rows(spec.name, start, 1, count)
        for piece in shard.pieces:
            shared = overlap(Progression(start, 1, count), Progression(piece.first, piece.stride, piece.count))
            if shared is None:
                continue
            source = slice(shared.start, shared.start + (shared.count - 1) * shared.step + 1, shared.step)
            first = piece.start + shared.other_start
            target = slice(first, first + (shared.count - 1) * shared.other_step + 1, shared.other_step)
            shard.values[target] = values[source]
            for slot, array in state.items():
                shard.state[slot][target] = array[source]
