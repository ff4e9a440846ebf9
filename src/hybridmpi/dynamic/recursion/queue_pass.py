"""Passes of calls that wait for values: what can run does, and brings up more, until all have ended.

Calls are frames, not stacks: one that waits is kept, and what all of them wait for runs as batches of one type, from
all roots (EuroSys 2018, arXiv 1809.00832, section 4, batched). Backward goes over the same batches in reverse.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from hybridmpi.autograd import Tensor
from hybridmpi.dynamic.graph_pass import outputs_of
from hybridmpi.dynamic.phases import Batching
from hybridmpi.dynamic.program import parameters_of
from hybridmpi.dynamic.recursion.expansion import Context, Expansion
from hybridmpi.dynamic.recursion.frames import Frame
from hybridmpi.dynamic.recursion.level_pass import Programs
from hybridmpi.dynamic.recursion.lowering import numbers, put_out
from hybridmpi.dynamic.recursion.queue_run import QueueRun
from hybridmpi.dynamic.recursion.serial import values_of
from hybridmpi.dynamic.recursion.types import PieceType
from hybridmpi.dynamic.recursion.vertices import Location, Vertex

Waiting = dict[Vertex, list[tuple[Frame, int, Location]]]
"""Calls that wait for a vertex: each with the width and the place of what it waits for."""


class QueuePass:
    """Runs calls of a context that wait for values."""

    def __init__(self, context: Context) -> None:
        self.context = context
        self.programs = Programs(context, Batching(eager=False), by_row=False)
        self.sizes: dict[Any, int] = {}

    def run(
        self, expansion: Expansion, given: Sequence[Tensor]
    ) -> tuple[dict[str, Tensor], dict[str, Any], dict[str, Any]]:
        """Return what the calls push, by name: tensors, data, and the root of each row. Local."""
        vertices = expansion.vertices
        run = QueueRun(self, given)
        waiting: Waiting = {}
        while True:
            self._park(expansion, run, waiting)
            if not waiting and not expansion.blocked:
                break
            batch = vertices.take()
            if batch is None:
                expansion.stop_unknown()
                self._park(expansion, run, waiting)
                batch = vertices.take()
                assert batch is not None, "calls wait, and nothing can run"
            run.forward(*batch)
            vertices.finish(batch[1])
            answered = [one for vertex in batch[1] if vertex in waiting for one in waiting.pop(vertex)]
            self._answer(expansion, run, answered)
        for root in expansion.roots:
            put_out(expansion, root)
        free = vertices.rest()
        while free:
            by_type: dict[PieceType, list[Vertex]] = {}
            for vertex in free:
                by_type.setdefault(vertex.kind, []).append(vertex)
            for kind, together in by_type.items():
                run.forward(kind, together)
            free = vertices.finish(free)
        run.finish()
        self.sizes |= run.sizes()
        return self._outputs(expansion, run)

    def _park(self, expansion: Expansion, run: QueueRun, waiting: Waiting) -> None:
        """Let calls that wait for values of a vertex wait for it, or go on if it has run."""
        while expansion.parked:
            parked, expansion.parked = expansion.parked, []
            answered = []
            for frame, (producer, what), width in parked:
                location = producer.location(what)
                if location is None:
                    expansion.block(frame, producer, what, width)
                elif location[0].done:
                    answered.append((frame, width, location))
                else:
                    expansion.vertices.need(location[0])
                    waiting.setdefault(location[0], []).append((frame, width, location))
            self._answer(expansion, run, answered)

    def _answer(self, expansion: Expansion, run: QueueRun, answered: list[tuple[Frame, int, Location]]) -> None:
        """Give calls the values that they wait for, and let them go on."""
        by_width: dict[int, list[tuple[Frame, Location]]] = {}
        for frame, width, location in answered:
            by_width.setdefault(width, []).append((frame, location))
        for width, waited in by_width.items():
            rows = run.state[width].rows[[run.row(width, location) for _, location in waited]]
            for (frame, _), row in zip(waited, rows, strict=True):
                frame.answers.append(values_of(row))
        for frame, _, _ in answered[::-1]:
            expansion.resume(frame)
        expansion.run()

    def _outputs(self, expansion: Expansion, run: QueueRun) -> tuple[dict[str, Tensor], dict[str, Any], dict[str, Any]]:
        vertices = expansion.vertices.all
        rank = np.arange(len(vertices))  # of those forgotten, which were in order
        ordered = [vertex.number for frame in expansion.in_order() for vertex in frame.vertices]
        rank[ordered] = np.arange(len(ordered)) + len(vertices)
        roots = np.fromiter((vertex.root for vertex in vertices), np.int64, len(vertices))
        rank = np.lexsort((rank, roots)).argsort()
        owners: dict[str, Any] = {}
        for name, pushers in run.pushers.items():
            order = np.argsort(rank[pushers])
            run.orders[name] = order
            owners[name] = roots[pushers][order]
            run.outputs[name] = run.pushed[name].rows[order]
        labels: dict[str, list[Any]] = {}
        for number in np.argsort(rank):
            for name, value in vertices[number].labels.items():
                labels.setdefault(name, []).append(value)
        data = {name: numbers(name, values) for name, values in labels.items()}
        tensors = outputs_of(run, run.inputs, parameters_of(chunk.program for chunk in run.chunks))
        for kind in self.context.types.all:
            for name, entry in kind.pushes:
                if name not in tensors:  # of calls that this pass did not make
                    tensors[name] = Tensor(np.empty((0, entry.width), run.dtype))
                    owners[name] = np.empty(0, np.int64)
            for name in kind.labels:
                data.setdefault(name, np.empty(0, np.int64))
        return tensors, data, owners
