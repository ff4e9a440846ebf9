"""Mode "hybrid" in the running job: a table takes the way that is cheapest at its measured alpha, and says why."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from hybridmpi.optim import Optimizer
from hybridmpi.planning.alpha import Alpha
from hybridmpi.planning.costs import Transport
from hybridmpi.planning.decide import choose_ways, copy_bytes, decide
from hybridmpi.planning.known import known_machine
from hybridmpi.planning.machine import Machine
from hybridmpi.planning.measured import measure_machine
from hybridmpi.planning.modes import Way
from hybridmpi.planning.workload import Sparse, Touched, Workload
from hybridmpi.training.dense import DenseOptions
from hybridmpi.training.sparsity import Sparsity
from hybridmpi.training.tables import SparseOptions, TableExchange
from hybridmpi.world import World

# A rank that touches a smaller part of a table than this sends less to owners than the sum of the whole table takes,
# whatever the links: two copies of alpha w each way against 2 (p - 1) / p w and more work. The machine is measured
# only when some table has passed it.
CERTAIN = 0.05


def transport_of(sparse: SparseOptions, dense: DenseOptions, local: bool, together: bool) -> Transport:
    """Return how gradients travel, for predictions of a run with these options. Local.

    `local`: ranks of a node sum their rows before they push them; `together`: they pull together.
    """
    return Transport(
        local=local, row_wire=sparse.wire, dense_wire=dense.wire, algorithm=dense.algorithm, together=together
    )


class Adaptation:
    """Looks `every` so many steps (0: never) whether a table should leave its way. Collective over compute.

    `movable`: the names of the tables that may. The machine is measured when it is first needed, once for all runs.
    """

    measure: Callable[[World], Machine] = staticmethod(measure_machine)

    def __init__(
        self,
        exchange: TableExchange,
        sparsity: Sparsity,
        movable: Collection[str],
        optimizer: Optimizer,
        transport: Transport,
        every: int,
    ) -> None:
        self.exchange, self.sparsity, self.movable, self.every = exchange, sparsity, set(movable), every
        self._optimizer, self._transport = optimizer, transport
        self._machine: Machine | None = None

    def look(self, step: int) -> list[str]:
        """After every so many steps, move what should be moved, and return why, in words."""
        if not self.every or step % self.every or not self.movable or len(self.exchange.world.clients) == 1:
            return []
        # Looked at every time, so that both are of the steps since the last look.
        ranks, alphas = self.sparsity.of_ranks(), self.sparsity.levels()
        moved = any(self.exchange.ways[name] != "ps" for name in self.movable)
        if not moved and not any(ranks[name] > CERTAIN for name in self.movable):
            return []
        if self._machine is None:
            self._machine = known_machine(self.exchange.world, self.measure)
        workload = self._workload(alphas)
        current = {parameter.name: self.exchange.ways[parameter.name] for parameter in workload.parameters}
        # By one rank: processors that differ may round differently.
        chosen = self.exchange.world.from_root(lambda: choose_ways(workload, self._machine, self._transport, current))
        leaving = [p for p in workload.tables if chosen[p.name] != current[p.name]]
        said = []
        for table in leaving:
            reason = decide(table, workload, chosen, self._machine, self._transport).reason
            said.append(f"table '{table.name}' leaves {current[table.name]}: {reason}")
        moved = self.exchange.change_ways({table.name: chosen[table.name] for table in leaving})
        return [*said[:-1], f"{said[-1]}; {moved:,} bytes of rows moved"] if said else []

    def restore(self, ways: Mapping[str, Way]) -> None:
        """Let the tables that may move go the ways they went in an earlier run, as memory has room. Collective over
        compute."""
        world = self.exchange.world
        if not self.every or len(world.clients) == 1:
            return
        nodes = [world.node_of[rank] for rank in world.clients]
        room = Machine.replica_bytes / max(map(nodes.count, nodes))
        found: dict[str, Way] = {}
        for table in self._tables():
            if (way := ways.get(table.name, "ps")) != "ps":
                room -= copy_bytes(table)
                if room >= 0:
                    found[table.name] = way
        self.exchange.change_ways(found)

    def ways(self) -> dict[str, Way]:
        """Return the ways of the tables that may move, for `restore`. Local."""
        return {name: self.exchange.ways[name] for name in sorted(self.movable)}

    def _workload(self, alphas: Mapping[str, Alpha]) -> Workload:
        """Return what a step does to the tables that may move, as measured. What else it does takes as long whatever
        their ways are."""
        tables = self._tables()
        touched = {table.name: Touched.measured(table, alphas[table.name], self._machine) for table in tables}
        return Workload((), tuple(tables), touched, compute_seconds=0.0)

    def _tables(self) -> list[Sparse]:
        """Return the tables that may move, as the cost model knows them."""
        slots = len(self._optimizer.slots)
        return [
            Sparse(
                spec.name,
                spec.rows,
                spec.dim,
                spec.dtype.name,
                slots,
                (),
                spec.partition,
                spec.homes or None,
            )
            for spec in self.exchange.specs
            if spec.name in self.movable
        ]
