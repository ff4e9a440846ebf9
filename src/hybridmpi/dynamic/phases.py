"""When a node is computed: for all vertices at once before the rounds, round by round, or at once after them.

Cavs (arXiv 1712.04048, section 3.5): what does not depend on the children runs eagerly, before; what no parent waits
for runs lazily, after, above all the gradients of parameters, in one product for all vertices.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hybridmpi.dynamic.nodes import EDGE, VERTEX, Node

BEFORE, ROUND, AFTER = "before", "round", "after"


@dataclass(frozen=True, slots=True)
class Batching:
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
    return phases
