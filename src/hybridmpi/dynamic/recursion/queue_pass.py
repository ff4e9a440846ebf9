"""Passes of calls that wait for values: what can run does, and brings up more, until all have ended.

Calls are frames, not stacks: one that waits is kept, and what all of them wait for runs as batches of one type, from
all roots (EuroSys 2018, arXiv 1809.00832, section 4, batched). Backward goes over the same batches in reverse.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from hybridmpi.autograd import Tensor, is_recording
from hybridmpi.dynamic.graph_pass import recorded
from hybridmpi.dynamic.phases import Batching
from hybridmpi.dynamic.recursion.expansion import Context, Expansion
from hybridmpi.dynamic.recursion.frames import Frame
from hybridmpi.dynamic.recursion.level_pass import Programs, parameters_of
from hybridmpi.dynamic.recursion.lowering import put_out
from hybridmpi.dynamic.recursion.queue_run import QueueRun
from hybridmpi.dynamic.recursion.ready import QueueRecord
from hybridmpi.dynamic.recursion.types import PieceType


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
        record = expansion.record
        assert isinstance(record, QueueRecord)
        run = QueueRun(self, record, given)
        waiting: dict[int, list[tuple[Frame, int, int]]] = {}
        while True:
            self._park(expansion, run, waiting)
            if not waiting and not expansion.parked:
                break
            batch = record.take()
            if batch is None:
                expansion.stop_unknown()
                self._park(expansion, run, waiting)
                batch = record.take()
                assert batch is not None, "calls wait, and nothing can run"
            run.forward(*batch)
            record.finish(batch[1])
            for vertex in batch[1]:
                for frame, width, number in waiting.pop(vertex, ()):
                    frame.answers.append(run.values(vertex, width, number))
                    expansion.begin(frame)
            expansion.run()
        for root in expansion.roots:
            put_out(expansion, root)
        free = record.rest()
        while free:
            by_type: dict[PieceType, list[int]] = {}
            for vertex in free:
                by_type.setdefault(record.types[vertex], []).append(vertex)
            free = []
            for kind, vertices in by_type.items():
                run.forward(kind, vertices)
            for vertices in by_type.values():
                free += record.finish(vertices)
        run.finish()
        self.sizes |= run.sizes()
        return self._outputs(expansion, run)

    def _park(self, expansion: Expansion, run: QueueRun, waiting: dict[int, list[tuple[Frame, int, int]]]) -> None:
        """Let calls that wait for values of a vertex wait for it, or go on if it has run."""
        record = run.record
        while expansion.parked:
            parked, expansion.parked = expansion.parked, []
            went_on = False
            for frame, (producer, what), width in parked:
                location = producer.location(what)
                if location is None:
                    expansion.parked.append((frame, (producer, what), width))
                    continue
                vertex, number = location
                if record.done[vertex]:
                    frame.answers.append(run.values(vertex, width, number))
                    expansion.begin(frame)
                    went_on = True
                else:
                    record.need(vertex)
                    waiting.setdefault(vertex, []).append((frame, width, number))
            if not went_on:
                break
            expansion.run()

    def _outputs(self, expansion: Expansion, run: QueueRun) -> tuple[dict[str, Tensor], dict[str, Any], dict[str, Any]]:
        record = run.record
        rank = np.arange(len(record.types))  # of those forgotten, which were in order
        ordered = [vertex for frame in expansion.in_order() for vertex in frame.vertices]
        rank[ordered] = np.arange(len(ordered)) + len(record.types)
        roots = np.array(record.roots)
        rank = np.lexsort((rank, roots)).argsort()
        owners: dict[str, Any] = {}
        for name, vertices in run.pushers.items():
            order = np.argsort(rank[vertices])
            run.orders[name] = order
            owners[name] = roots[vertices][order]
            run.outputs[name] = run.pushed[name].rows[order]
        data: dict[str, Any] = {}
        for name, (vertices, values) in record.labels.items():
            data[name] = np.array(values)[np.argsort(rank[vertices])]
        if is_recording():
            tensors = recorded(run, run.inputs, parameters_of(chunk.program for chunk in run.chunks))
            if tensors is not None:
                return tensors, data, owners
        return {name: Tensor(rows) for name, rows in run.outputs.items()}, data, owners
