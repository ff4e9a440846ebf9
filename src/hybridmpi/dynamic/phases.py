"""When a node is computed: for all vertices at once before the rounds, round by round, or at once after them.

Cavs (arXiv 1712.04048, section 3.5): what does not depend on the children runs eagerly, before; what no parent waits
for runs lazily, after, above all the gradients of parameters, in one product for all vertices.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hybridmpi.dynamic.nodes import EDGE, ELEMENTWISE, VERTEX, Node
from hybridmpi.field_types import Options

BEFORE, ROUND, AFTER = "before", "round", "after"

_CHEAP = frozenset(("add", "subtract", "multiply", "negative", "positive"))


@dataclass(frozen=True, slots=True)
class Batching(Options):
    """What is moved out of the rounds, and whether kernels are generated: all of it, but to measure its worth."""

    eager: bool = True
    lazy: bool = True
    fused: bool = True


def phases_of(
    nodes: Sequence[Node], sources: frozenset[str], sinks: frozenset[str], rows: str, batching: Batching
) -> dict[Node, str]:
    """Return the phase of each node. Local. nodes: those of forward or of backward, in order; what they use of others
    is there before. sources: names of what the rounds bring; sinks: of what later rounds wait for. rows: the phase of
    what has a row for each input row, of which there are no rounds."""
    bound: set[Node] = set()
    for node in nodes:
        if node.name in sources or any(operand in bound for operand in node.inputs):
            bound.add(node)
    awaited: set[Node] = set()
    for node in reversed(nodes):
        if node.name in sinks or node in awaited:
            awaited.add(node)
            awaited.update(node.inputs)
    phases = {}
    for node in nodes:
        if node not in bound:
            phase = BEFORE if batching.eager else ROUND
        else:
            phase = ROUND if node in awaited or not batching.lazy else AFTER
        if node.space not in (VERTEX, EDGE):
            phase = rows
        phases[node] = phase
    _put_off(nodes, phases)
    return phases


def _put_off(nodes: Sequence[Node], phases: dict[Node, str]) -> None:
    """Let what is as cheap as reading it, and only used in rounds by operations of the same kind, be computed there, in
    registers: the slope of tanh, not stored before and read again."""
    users: dict[Node, list[Node]] = {}
    for node in nodes:
        for operand in node.inputs:
            users.setdefault(operand, []).append(node)
    for node in reversed(nodes):
        used_by = users.get(node, ())
        if node.name in _CHEAP and phases[node] == BEFORE and used_by:
            together = all(user.name in ELEMENTWISE and user.space == node.space for user in used_by)
            if together and all(phases[user] != BEFORE and user.width == node.width for user in used_by):
                phases[node] = ROUND if any(phases[user] == ROUND for user in used_by) else AFTER
