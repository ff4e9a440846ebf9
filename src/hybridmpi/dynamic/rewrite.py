"""Rewriting an operation list before it becomes steps: what is sliced is not computed as a whole."""

from __future__ import annotations

from collections.abc import Sequence

from hybridmpi.dynamic.nodes import Node, Trace

# Computed again for each use in place of once: as cheap as reading it.
_CHEAP = frozenset(("add", "subtract", "multiply", "negative", "copy"))


def sink_slices(trace: Trace, backward: Sequence[Node]) -> tuple[Trace, list[Node]]:
    """Return the same lists with the slices of what is computed element by element, and used in slices only, replaced
    by the operation on slices. Local.

    So the bias of four gates in one product is added where each gate is computed, in registers.
    """
    others = {operand for node in trace.nodes if node.name != "slice" for operand in node.inputs}
    new, mapped = Trace(), {}
    first = len(trace.nodes) - len(backward)
    before = 0
    for node in trace.nodes:
        if node.number == first:
            before = len(new.nodes)
        inputs = [mapped[operand] for operand in node.inputs]
        if node.name == "slice" and node.inputs[0] not in others:
            mapped[node] = _sliced(new, inputs[0], *node.attributes)
        else:
            mapped[node] = new.add(
                node.name, inputs, node.attributes, space=node.space, shape=node.shape, follows=node.follows
            )
    return new, new.nodes[before:] if backward else []


def _sliced(trace: Trace, node: Node, first: int, stop: int) -> Node:
    if node.name not in _CHEAP or len(node.shape) != 1:
        return trace.slice(node, first, stop)
    parts = [operand if operand.name == "number" else _sliced(trace, operand, first, stop) for operand in node.inputs]
    return trace.add(node.name, parts, node.attributes, space=node.space, shape=(stop - first,), follows=node.follows)
