"""An owner's rows out of a checkpoint, whatever partition wrote it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from hybridmpi.sparse.partition import Piece
from hybridmpi.sparse.shard import Shard

if TYPE_CHECKING:
    from hybridmpi.checkpoint import Checkpoint
    from hybridmpi.checkpoint.layout import Progression

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
    elif pieces:
        saved.read_into(spec.name, [_target(shard, piece) for piece in pieces])


def _target(shard: Shard, piece: Piece) -> tuple[Progression, np.ndarray, dict[str, np.ndarray]]:
    """Return which rows of the table a part is, and where their values and state go."""
    from hybridmpi.checkpoint.layout import Progression

    state = {slot: array[piece.rows] for slot, array in shard.state.items()}
    return Progression(piece.first, piece.stride, piece.count), shard.values[piece.rows], state
