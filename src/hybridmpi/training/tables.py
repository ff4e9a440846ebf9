"""The tables of a model, each in its way: rows at owners, or replicas whose gradients are gathered or summed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from hybridmpi import kernels
from hybridmpi.autograd import Parameter
from hybridmpi.collectives import AllReduce
from hybridmpi.nn import Embedding
from hybridmpi.optim import Optimizer
from hybridmpi.planning.modes import Way
from hybridmpi.sparse.cache import CacheOptions
from hybridmpi.sparse.client import Path as PullPath
from hybridmpi.sparse.gathering import RowGather
from hybridmpi.sparse.partition import Kind
from hybridmpi.sparse.reader import RowReader
from hybridmpi.sparse.replica import Replica
from hybridmpi.sparse.rows import SparseRows
from hybridmpi.sparse.service import Service
from hybridmpi.sparse.spec import TableSpec
from hybridmpi.sparse.summing import TableSums
from hybridmpi.sparse.table import Table
from hybridmpi.training.served import ServedParameters, spec_of
from hybridmpi.world import World


@dataclass(frozen=True)
class SparseOptions:
    """How rows lie at their owners, and travel.

    `partition`: how a table's rows are dealt to parts, "cyclic" or "block". `parts`: into how many; 0: one for each
    owner. Where they are fewer than the owners, tables begin at owners in turn. `pull_path` forces one way of pulling
    rows, for measurements. `prefetch`: rows of the next batch are asked for while a step computes, where the model says
    which (`rows_wanted`); every step reads the same bits as without. `cache`: each rank keeps rows from step to step.
    Both are about owners on other nodes: rows of this node are read from its memory as they are.
    """

    partition: Kind = "cyclic"
    parts: int = 0
    pull_path: PullPath = "auto"
    prefetch: bool = False
    cache: CacheOptions | None = None


Stores = list[Table | Replica]


class TableExchange:
    """All tables of a model on a compute rank. Collective over compute; the servers come along.

    `embeddings`: (name, layer) of every table; `served`: dense parameters that lie at owners. `ways`: by name.
    In a step: `begin_step`, backward, `end_backward`; when all ranks have agreed, `send`, `finish`, `update`.
    """

    def __init__(
        self,
        world: World,
        embeddings: Sequence[tuple[str, Embedding]],
        served: Sequence[Parameter],
        ways: Mapping[str, Way],
        optimizer: Optimizer,
        seed: int,
        options: SparseOptions,
        make_allreduce: Callable[[int], AllReduce],
    ) -> None:
        self.world, self.ways = world, dict(ways)
        self._embeddings, self._make_allreduce = list(embeddings), make_allreduce
        near = options.pull_path in ("auto", "shared") and world.nodes == 1  # all rows are in this node's memory
        reads = (options.prefetch or options.cache is not None) and not near
        self.specs = [
            TableSpec(name, e.rows, e.dim, e.dtype, tuple(e.init), e.reduction, options.partition, optimizer, seed)
            for name, e in embeddings
        ] + [spec_of(parameter, optimizer, options.partition, seed) for parameter in served]
        for number, spec in enumerate(self.specs):
            clocks = reads and number < len(embeddings) and self.ways[spec.name] == "ps"
            self.specs[number] = replace(spec, homes=self._homes(number, options.parts), clocks=clocks)
        self.service = Service.open(world, self.specs, options.pull_path)
        client = self.service.client
        self.tables: Stores = []
        for number, (name, embedding) in enumerate(embeddings):
            lies = self.ways[name] == "ps"
            table = Table(client, number, self.specs[number]) if lies else Replica(number, self.specs[number])
            self.tables.append(table)
            embedding.store = table
        clocked = [table for table in self.tables if isinstance(table, Table) and table.spec.clocks]
        self.reader = RowReader(client, [table.number for table in clocked], options.cache) if clocked else None
        for table in clocked:
            table.reader = self.reader
        first = len(self.tables)
        stores = [Table(client, first + number, self.specs[first + number]) for number in range(len(served))]
        self.served = ServedParameters(served, stores)
        self._gather = RowGather(world, self.replicas("allgather"), client.traffic)
        self._sums = TableSums(world, self.replicas("allreduce"), make_allreduce, client.traffic)
        self.updates = 0
        self.gradients: list[SparseRows] = []
        self.found: list[str] = []

    def _homes(self, number: int, parts: int) -> tuple[int, ...] | None:
        """Return the owners of a table's parts; none for a table of which every compute rank has a replica."""
        owners = len(self.world.owners)
        if self.ways[self.specs[number].name] != "ps":
            return ()
        return tuple((part + number * parts) % owners for part in range(parts)) if parts else None

    def replicas(self, way: Way | None = None) -> list[Replica]:
        """Return the tables that every compute rank holds whole, all or those of one way. Local."""
        return [t for t in self.tables if isinstance(t, Replica) and way in (None, self.ways[t.name])]

    @property
    def paths(self) -> list[str]:
        """How this rank pulls rows from each owner."""
        return self.service.client.paths

    def describe_sum(self, nbytes: int) -> str:
        """Return how the whole gradient of a table is summed, in words. Local."""
        return self._sums.allreduce.describe(nbytes)

    @property
    def at_owners(self) -> bool:
        """Whether any table lies at owners, who then hear of every step."""
        return bool(self.served.tables) or any(isinstance(table, Table) for table in self.tables)

    # -- a step ----------------------------------------------------------------------------------------------------

    def begin_step(self) -> None:
        """Forget the last step's gradients. Local."""
        self.served.begin_step()

    def end_backward(self) -> None:
        """Take the step's gradients; `found` is then what in them is not finite, in words. Local."""
        self.gradients = [embedding.take_gradient() for _, embedding in self._embeddings]
        self.found = self.served.end_backward()
        for table, rows in zip(self.tables, self.gradients, strict=True):
            if count := kernels.nonfinite_count(rows.values):
                size = rows.values.size
                self.found.append(f"{count} of {size} values in the gradient of '{table.name}' are not finite")

    def row_counts(self) -> np.ndarray:
        """Return how many distinct rows of each table this rank's step touches, int64. Local."""
        return np.array([len(rows) for rows in self.gradients], np.int64)

    def push(self, weight: float) -> None:
        """Send to owners what is theirs, who work on it meanwhile. Local; waits for the last step's end there."""
        if self.at_owners:
            rows = [(t, g.indices, g.values) for t, g in enumerate(self.gradients) if isinstance(self.tables[t], Table)]
            self.service.client.push(rows + self.served.gradients(), weight)

    def start(self, weight: float, share: float) -> None:
        """Begin to send what every rank is to have; `share`: this rank's of all examples. Collective over compute."""
        if self._gather.replicas:
            self._gather.start(self._of(self._gather.replicas), weight)
        self._sums.start(self._of(self._sums.replicas), share)

    def _of(self, replicas: Sequence[Replica]) -> list[tuple[np.ndarray, np.ndarray]]:
        return [(self.gradients[r.number].indices, self.gradients[r.number].values) for r in replicas]

    def finish(self) -> None:
        """Wait for what every rank is to have. Collective over compute."""
        if self._gather.replicas:
            self._gather.finish()
        self._sums.finish()

    def overflowed(self) -> bool:
        """Return whether a finished sum is not finite though every rank's part was: the wire's range is left. The
        same on all ranks. Local."""
        return any(kernels.nonfinite_count(sums) for sums in self._sums.sums())

    def update(self) -> None:
        """Update the replicas; owners do the same with what was pushed. Local."""
        self.updates += 1
        if self._gather.replicas:
            self._gather.update(self.updates)
        self._sums.update(self.updates)

    def refresh(self) -> None:
        """Fetch what dense parameters at owners are after the step. Local; waits for the owners."""
        self.served.refresh()

    # -- the rest --------------------------------------------------------------------------------------------------

    def pull_seconds(self) -> float:
        """Return how long pulls have taken so far. Local."""
        ahead = self.reader.seconds if self.reader is not None else 0.0
        return sum(table.pull_seconds for table in [*self.tables, *self.served.tables]) + ahead

    def sent(self) -> int:
        """Return the bytes this rank has sent in sums of tables so far. Local."""
        return self._sums.sent()

    def served_state(self) -> dict[str, dict[str, np.ndarray]]:
        """Return the optimiser's state of dense parameters at owners, by slot and name. Collective over compute."""
        found: dict[str, dict[str, np.ndarray]] = {}
        for parameter, table in zip(self.served.parameters, self.served.tables, strict=True):
            spec = table.spec
            partition = spec.map(len(self.world.owners))
            for owner, state in enumerate(self.service.call("state", table=table.number)):
                for slot, rows in state.items():
                    whole = found.setdefault(slot, {}).setdefault(
                        parameter.name, np.empty((spec.rows, spec.dim), spec.dtype)
                    )
                    whole[partition.rows_at(owner)] = rows
        for arrays in found.values():
            for parameter in self.served.parameters:
                arrays[parameter.name] = arrays[parameter.name].reshape(parameter.shape)
        return found

    def continue_from(self, updates: int) -> None:
        """Count on from `updates` steps that were applied before. Local."""
        self.updates = self.service.client.pushed = updates
        if self.reader is not None:
            self.reader.forget()
        self.refresh()

    def close(self) -> None:
        """Free the tables. Collective over compute; the servers are told."""
        for _, embedding in self._embeddings:
            embedding.store = None
        if self.reader is not None:
            self.reader.collect()
        self._sums.close()
        self._gather.close()
        self.service.close()
