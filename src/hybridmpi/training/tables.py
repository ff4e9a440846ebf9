"""The tables of a model, each in its way: rows at owners, or replicas whose gradients are gathered or summed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from hybridmpi import kernels
from hybridmpi.autograd import Parameter
from hybridmpi.collectives import AllReduce
from hybridmpi.collectives.summands import unfit_to_sum
from hybridmpi.errors import UsageError
from hybridmpi.field_types import Natural, Options, Wire
from hybridmpi.nn import Embedding
from hybridmpi.optim import Optimizer
from hybridmpi.planning.modes import Way
from hybridmpi.sparse.cache import CacheOptions
from hybridmpi.sparse.client import Path as PullPath
from hybridmpi.sparse.gathering import RowGather
from hybridmpi.sparse.node_sum import Aggregate
from hybridmpi.sparse.partition import Kind, Parts
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
class SparseOptions(Options):
    """How rows lie at their owners, and travel.

    `partition`: how a table's rows are dealt to parts, "cyclic" or "block". `parts`: into how many; 0: one for each
    owner. Where they are fewer than the owners, tables begin at owners in turn. `adapt_every`: steps between two looks
    whether tables of mode "hybrid" should leave their owners, or return; 0: none. `wire`: the form of float32 rows
    between nodes, "float32", "bfloat16" or "float16". `aggregate`: whether the compute ranks of a node sum their rows
    before they push them, and pull once what several of them want of other nodes, where the model says what
    (`rows_wanted`): "auto", where that saves traffic between nodes, "always" or "never". `pull_path` forces one way of
    pulling rows, for measurements. `prefetch`: rows of the next batch are asked for while a step computes, where
    the model says which (`rows_wanted`); every step reads the same bits as without. `cache`: each rank keeps rows from
    step to step. Both are about owners on other nodes: rows of this node are read from its memory as they are.
    """

    partition: Kind = "cyclic"
    parts: Parts = 0
    adapt_every: Natural = 50
    wire: Wire = "float32"
    aggregate: Aggregate = "auto"
    pull_path: PullPath = "auto"
    prefetch: bool = False
    cache: CacheOptions | None = None


Stores = list[Table | Replica]


def in_turn(number: int, parts: int, owners: int, rows: int) -> tuple[int, ...]:
    """Return owners in turn for the parts of a table, of which those beyond its rows are left out; where there are
    fewer parts than owners, the next table begins where this one ends. Local."""
    return tuple((part + number * parts) % owners for part in range(min(parts, max(rows, 1))))


class TableExchange:
    """All tables of a model on a compute rank. Collective over compute; the servers come along.

    `embeddings`: (name, layer) of every table; `served`: dense parameters that lie at owners. `ways`: by name. `norms`:
    whether steps are updated only when their norm is known.
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
        norms: bool,
        staleness: float = 0,
    ) -> None:
        self.world, self.ways, self.options = world, dict(ways), options
        self._embeddings, self._make_allreduce = list(embeddings), make_allreduce
        if staleness and (options.prefetch or options.cache is not None):
            raise UsageError(
                f"staleness = {staleness} with prefetch or a cache: these go by the steps that all ranks take "
                "together; use staleness = 0, or neither"
            )
        near = options.pull_path in ("auto", "shared") and world.nodes == 1  # all rows are in this node's memory
        reads = (options.prefetch or options.cache is not None) and not near
        self.specs = [
            TableSpec(name, e.rows, e.dim, e.dtype, tuple(e.init), e.reduction, options.partition, optimizer, seed)
            for name, e in embeddings
        ] + [spec_of(parameter, optimizer, options.partition, seed) for parameter in served]
        for number, spec in enumerate(self.specs):
            clocks = reads and number < len(embeddings)
            self.specs[number] = replace(spec, homes=self._homes(number, options.parts), clocks=clocks)
        self.service = Service.open(
            world,
            self.specs,
            options.pull_path,
            norms=norms,
            wire=options.wire,
            staleness=staleness,
            aggregate=options.aggregate,
        )
        client = self.service.client
        self.reader = RowReader(client, range(len(embeddings)), options.cache) if reads else None
        # Whether the ranks of any node sum their rows before they push them.
        self.aggregates: bool = any(world.gather(client.node_sum is not None))
        self.tables: Stores = []
        for number, (name, embedding) in enumerate(embeddings):
            if self.ways[name] == "ps":
                table = Table(client, number, self.specs[number], self.reader)
            else:
                table = Replica(number, self.specs[number])
                table.shard.initialise()
            self.tables.append(table)
            embedding.store = table
        first = len(self.tables)
        stores = [Table(client, first + number, self.specs[first + number]) for number in range(len(served))]
        self.served = ServedParameters(served, stores)
        self._gather, self._sums = self._replica_exchanges()
        # Tables that do not lie as the options say: a resumed run is to find them so again.
        self.dealt_anew: set[int] = set()
        # What was sent in sums of tables that have changed their ways since.
        self._sent = 0
        # Where tables lay that have changed between owners and replicas.
        self._left: dict[int, tuple[int, ...] | None] = {}
        self.updates = 0
        self.gradients: list[SparseRows] = []
        self.found: list[str] = []

    def _homes(self, number: int, parts: int) -> tuple[int, ...] | None:
        """Return the owners of a table's parts; none for a table of which every compute rank has a replica."""
        owners = len(self.world.owners)
        if self.ways[self.specs[number].name] != "ps":
            return ()
        return in_turn(number, parts, owners, self.specs[number].rows) if parts else None

    def change_optimizer(self, optimizer: Optimizer) -> None:
        """Update rows by another optimiser of the same kind from the next step on, at owners and in replicas.
        Collective over compute; the servers come along."""
        self.service.optimize(optimizer)
        self.specs = [replace(spec, optimizer=optimizer) for spec in self.specs]
        for replica in self.replicas():
            for held in (replica, replica.shard):
                held.spec = replace(held.spec, optimizer=optimizer)

    def repartition(self, number: int, spec: TableSpec) -> int:
        """Deal the rows of a table at owners as `spec` says; return the bytes that travelled. Collective over
        compute; the servers come along."""
        moved = self.service.relayout(number, spec, updates=self.updates)
        self.specs[number] = spec
        self.dealt_anew.add(number)
        return moved

    def spec_at_owners(self, number: int) -> TableSpec:
        """Return how a table lies at owners; of one that has left them, how it will when it returns. Local."""
        spec = self.specs[number]
        return spec if spec.homes != () else replace(spec, homes=self._left[number])

    def return_to(self, number: int, spec: TableSpec) -> None:
        """Let a table that every rank holds lie at owners as `spec` says, should it return to them. Local."""
        self._left[number], self.specs[number] = spec.homes, replace(spec, homes=())
        self.dealt_anew.add(number)

    def _replica_exchanges(self) -> tuple[RowGather, TableSums]:
        traffic = self.service.client.traffic
        return (
            RowGather(self.world, self.replicas("allgather"), traffic),
            TableSums(self.world, self.replicas("allreduce"), self._make_allreduce, traffic),
        )

    def change_ways(self, ways: Mapping[str, Way]) -> int:
        """Let the gradients of tables go other ways, by name, from the next step on; return the bytes of rows that
        moved, to replicas on every compute rank or back to owners. Collective over compute; the servers come along."""
        changes = [
            (n, ways[t.name]) for n, t in enumerate(self.tables) if ways.get(t.name) not in (None, self.ways[t.name])
        ]
        if not changes:
            return 0
        self._sent += self._sums.sent()
        self._sums.close()
        moved = sum(self._change_way(number, way) for number, way in changes)
        self._gather, self._sums = self._replica_exchanges()
        return moved

    def _change_way(self, number: int, way: Way) -> int:
        table, spec = self.tables[number], self.specs[number]
        self.ways[table.name] = way
        if (way == "ps") != isinstance(table, Replica):
            return 0
        # It returns to where it was.
        homes, self._left[number] = self._left.pop(number, self._homes(number, self.options.parts)), spec.homes
        spec = replace(spec, homes=homes)
        kept = Replica(number, spec) if isinstance(table, Table) else table
        moved = self.service.relayout(number, spec, kept.shard.arrays(), self.updates)
        self.specs[number] = spec
        if self.reader is not None:
            self.reader.forget()
        self.tables[number] = Table(self.service.client, number, spec, self.reader) if way == "ps" else kept
        self.tables[number].pull_seconds = table.pull_seconds
        self._embeddings[number][1].store = self.tables[number]
        return moved

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
        self.served.end_backward()
        self.found = []
        client = self.service.client
        for table, rows in zip(self.tables, self.gradients, strict=True):
            if isinstance(table, Table):
                if unfit := client.unfit(table.number, rows.indices, rows.values):
                    self.found.append(unfit)
            else:
                clients, mean = len(self.world.clients), table.spec.reduction == "mean"
                if unfit := unfit_to_sum(rows.values, table.name, clients, mean):
                    self.found.append(unfit)
        self.found += [bad for gradient in self.served.gradients() if (bad := client.unfit(*gradient))]

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
        self._gather.start(self._of(self._gather.replicas), weight)
        self._sums.start(self._of(self._sums.replicas), share)

    def _of(self, replicas: Sequence[Replica]) -> list[tuple[np.ndarray, np.ndarray]]:
        return [(self.gradients[r.number].indices, self.gradients[r.number].values) for r in replicas]

    def finish(self) -> None:
        """Wait for what every rank is to have. Collective over compute."""
        self._gather.finish()
        self._sums.finish()

    def overflowed(self) -> bool:
        """Return whether a finished sum is not finite though every rank's part was: the wire's range is left. The
        same on all ranks. Local."""
        return any(kernels.nonfinite_count(sums) for _, sums in self._sums.sums())

    def replica_gradients(self) -> list[tuple[str, np.ndarray]]:
        """Return the summed gradients of replicas by name, as far as rows were touched. Local; the same on all ranks;
        after `finish`."""
        return [*self._gather.sums(), *self._sums.sums()]

    def forget(self) -> None:
        """Drop the step's gradients of replicas. Local."""
        self._gather.forget()

    def update(self) -> None:
        """Update the replicas; owners do the same with what was pushed. Local."""
        self.updates += 1
        self._gather.update(self.updates)
        self._sums.update(self.updates)

    def refresh(self) -> None:
        """Fetch what dense parameters at owners are after the step. Local; waits for the owners."""
        self.served.refresh()

    # -- the rest --------------------------------------------------------------------------------------------------

    def pull_seconds(self) -> float:
        """Return how long pulls have taken so far. Local."""
        ahead = sum(way.seconds for way in (self.reader, self.service.client.node_pull) if way is not None)
        return sum(table.pull_seconds for table in [*self.tables, *self.served.tables]) + ahead

    def sent(self) -> int:
        """Return the bytes this rank has sent in sums of tables so far. Local."""
        return self._sent + self._sums.sent()

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
        self._sums.close()
        if self.reader is not None:
            self.reader.collect()
        self.service.close()
