"""What the vertices of a type compute with that is one row for all of them, or a matrix: parameters."""

from __future__ import annotations

from typing import Any

import numpy as np

from hybridmpi.dynamic.memory import address_of
from hybridmpi.dynamic.nodes import Node
from hybridmpi.dynamic.places import Buffer


class Constants:
    """Arrays of buffers in the space of constants, and their addresses: of values that lie as they are used, looked up
    once as long as they stay where they are."""

    def __init__(self) -> None:
        self._known: dict[Buffer, tuple[Any, Any, int]] = {}

    def array(self, buffer: Buffer) -> Any:
        """Return a row [1, width], or a matrix."""
        return self.found(buffer)[0]

    def found(self, buffer: Buffer) -> tuple[Any, int]:
        """Return a row [1, width], or a matrix, and where it lies, as long as the caller keeps it: what is a copy is
        made anew for the next one."""
        source = buffer.key if buffer.kind == "matrix" else _source(buffer.key)
        known = self._known.get(buffer)
        if known is None or known[0] is not source.data:
            values = source.data if buffer.kind == "matrix" else _values(buffer.key).reshape(1, buffer.width)
            values = np.ascontiguousarray(values)
            # What is a copy has to be made anew each time: the parameter may have changed.
            kept = source.data if np.may_share_memory(values, source.data) else None
            known = self._known[buffer] = kept, values, address_of(values)
        return known[1:]


def _source(node: Node) -> Any:
    """Return the parameter that a constant comes from."""
    while node.name != "parameter":
        node = node.inputs[0]
    return node.attributes[0]


def _values(node: Node) -> Any:
    if node.name == "parameter":
        return node.attributes[0].data
    values = _values(node.inputs[0])
    return values.reshape(node.shape) if node.name == "reshape" else np.broadcast_to(values, node.shape)
