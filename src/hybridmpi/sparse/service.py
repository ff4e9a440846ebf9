"""Service: the tables of one training job, from windows to commands; and the loop that server ranks run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, get_args

import numpy as np

from hybridmpi.errors import HybridMPIError, UsageError
from hybridmpi.failures import describe
from hybridmpi.large_counts import receive_object, send_object
from hybridmpi.optim import Optimizer
from hybridmpi.sparse.asynchronous import AsyncClient, AsyncServer
from hybridmpi.sparse.board import Board
from hybridmpi.sparse.client import Client, Path
from hybridmpi.sparse.clocks import show_clock
from hybridmpi.sparse.exchange import Exchange, RowMemory, slot_sizes
from hybridmpi.sparse.forms import Forms, check_wire
from hybridmpi.sparse.moving import move
from hybridmpi.sparse.node_pull import open_node_pull
from hybridmpi.sparse.node_sum import Aggregate, NodeSum, open_node_sum
from hybridmpi.sparse.server import Server
from hybridmpi.sparse.shard import Shard
from hybridmpi.sparse.spec import TableSpec
from hybridmpi.sparse.transfers import Layout
from hybridmpi.sparse.wire import smallest_slot
from hybridmpi.tags import Tag
from hybridmpi.traffic import Traffic
from hybridmpi.waiting import Backoff
from hybridmpi.world import World

# A server sleeps up to this long between looks while a step is likely to end soon; it adds half of this at worst. A
# look costs 10 us, on a machine that is busy with others 50 us; after a longer wait the sleeps grow (see waiting.py).
LONGEST_SERVER_SLEEP = 1e-3
# A server waits out whole steps: its sleeps grow by half, so that it looks some 25 times in a step of 20 ms, not 60.
SERVER_SLEEP_GROWTH = 1.5


class Service:
    """The tables of one job on all ranks: windows, this rank's shards, this rank's client. Collective over the world.

    Compute ranks call `Service.open(world, specs)`; dedicated servers come along in `serve`. `path` chooses how rows
    are pulled (see client.py), `slot_bytes` the size of a push slot: both for tests and measurements. With `norms`
    owners update their rows only when the norm of the gradient is known: every push is followed by `client.clip`.
    `wire`: the form of float32 rows between nodes, "float32", "bfloat16" or "float16" (see forms.py).
    `staleness`: 0, or how many steps a client may be ahead of the slowest one (see asynchronous.py).
    `aggregate`: whether the compute ranks of a node sum their rows before they push them (see node_sum.py).
    """

    def __init__(
        self,
        world: World,
        specs: list[TableSpec],
        path: Path = "auto",
        slot_bytes: int | None = None,
        norms: bool = False,
        wire: str = "float32",
        staleness: float = 0,
        aggregate: Aggregate = "auto",
    ) -> None:
        if path not in ("auto", "shared", "message", "get"):
            raise UsageError(f"path = {path!r}: expected 'auto', 'shared', 'message' or 'get'")
        self.world, self.specs = world, list(specs)
        self.number = next(world.service_numbers)
        norms = norms and bool(specs)  # without rows there is nothing that only owners know
        owners = len(world.owners)
        between_nodes = any(world.node_of[r] != world.node_of[world.clients[0]] for r in range(world.size))
        # Rows are asked for by messages, and conditionally in no other way.
        asked = path == "message" or (path == "get" and any(spec.clocks for spec in specs))
        replies = asked or (path == "auto" and between_nodes)
        # Get reads rows as they lie: on a wire that rounds them, they go as messages.
        may_get = path == "auto" and between_nodes and wire == "float32"
        self._everywhere = path == "get" or may_get
        largest_row = max((spec.row_bytes for spec in specs), default=8)
        slots = slot_sizes(len(world.clients), owners, smallest_slot(len(specs), largest_row), replies, push=slot_bytes)
        self.exchange = Exchange(world, slots)
        self.memories = [self._row_memory(spec) for spec in specs]
        forms = Forms(specs, wire)
        self.board = Board(world) if staleness else None
        self.server: Server | None = None
        self.client: Client | None = None
        self._node_sum: NodeSum | None = None
        if world.rank in world.owners:
            shards = [self._shard(spec, memory) for spec, memory in zip(specs, self.memories, strict=True)]
            for shard in shards:
                shard.initialise()
            server = (world, self.exchange, shards, forms, norms)
            self.server = Server(*server) if self.board is None else AsyncServer(*server, board=self.board)
        if not world.is_server:
            client = (world, self.exchange, self.memories, specs, path, forms, norms)
            if self.board is None:
                self._node_sum = open_node_sum(world, specs, aggregate)
                self.client = Client(*client, self._node_sum)
            else:
                self.client = AsyncClient(*client, board=self.board, staleness=staleness)
        world.add_progress(self.progress)
        if self.server is not None and self.client is not None:
            self.client.owes = lambda: self.server.replying
        if self.server is not None:
            self.server.publish()
        if self.client is not None:
            if may_get:
                self.client.wait_for_version()
                self.client.calibrate()
            world.barrier()

    @classmethod
    def open(
        cls,
        world: World,
        specs: list[TableSpec],
        path: Path = "auto",
        slot_bytes: int | None = None,
        norms: bool = False,
        wire: str = "float32",
        staleness: float = 0,
        aggregate: Aggregate = "auto",
    ) -> Service:
        """Create the tables on all ranks. Collective over compute; the servers are told."""
        check_names(specs)
        check_wire(world, wire, path)
        if aggregate not in get_args(Aggregate):
            raise UsageError(f"aggregate = {aggregate!r}: expected 'auto', 'always' or 'never'")
        if staleness and aggregate == "always":
            raise UsageError(
                f"aggregate = 'always', and staleness = {staleness}: ranks that do not wait for each other cannot sum "
                "their rows; use aggregate = 'auto' or 'never'"
            )
        arguments = {
            "specs": specs,
            "path": path,
            "slot_bytes": slot_bytes,
            "norms": norms,
            "wire": wire,
            "staleness": staleness,
            "aggregate": aggregate,
        }
        # An owner that opens windows answers nobody: no rank is to wait for rows of another service.
        world.barrier()
        command_servers(world, "open", None, arguments)
        return cls(world, **arguments)

    def open_node_pull(self) -> bool:
        """Let the compute ranks of a node pull together, wherever they push together and rows come from other nodes;
        return whether they do on any node. Collective over compute."""
        if self._node_sum is not None:
            self.client.node_pull = open_node_pull(self.client, self._node_sum.comm)
        return any(self.world.gather(self.client.node_pull is not None))

    def progress(self) -> bool:
        """Serve this rank's shards and keep MPI moving; return whether there was anything to do. Local."""
        # Unless windows are plain shared memory, a Put or Get completes only while its target is inside MPI.
        self.world.comm.Iprobe(tag=Tag.ANSWER)
        return self.server.progress() if self.server is not None else False

    def call(self, command: str, **arguments: Any) -> list[Any]:
        """Carry out a command on every owner, after all pushed steps are applied; return their answers in owner order.
        Collective over compute.

        An owner's error is raised on every compute rank. With embedded shards every rank carries it out itself.
        """
        world = self.world
        if world.embedded:
            self.server.wait_for(self.client.pushed)
            try:
                mine = (True, self.server.perform(command, arguments))
            except Exception as error:
                mine = (False, describe(error))
            answers = world.gather(mine)
        else:
            answers = world.broadcast(self.ask_servers(command, **arguments) if world.on_root() else None)
        for owner, (done, value) in enumerate(answers):
            if not done:
                what = command.replace("_", " ")
                raise HybridMPIError(f"rank {world.owners[owner]} (owner {owner}) could not {what}: {value}")
        return [value for _, value in answers]

    def optimize(self, optimizer: Optimizer) -> None:
        """Let owners update rows by another optimiser of the same kind. Collective over compute."""
        self.call("optimize", optimizer=optimizer)
        for specs in (self.specs, self.client.specs):
            specs[:] = [replace(spec, optimizer=optimizer) for spec in specs]

    def ask_servers(self, command: str, **arguments: Any) -> list[tuple[bool, Any]]:
        """Let the dedicated servers carry out a command, after all pushed steps are applied; return (whether it could,
        its answer or what failed) of each. Local, on compute rank 0; serves while it waits."""
        world = self.world
        for rank in world.servers:
            message = command, self.number, {"pushed": self.client.pushed, **arguments}
            send_object(world.comm, message, rank, Tag.COMMAND)
        answers = []
        for rank in world.servers:
            world.wait_until(lambda rank=rank: world.comm.Iprobe(rank, Tag.ANSWER))
            answers.append(receive_object(world.comm, rank, Tag.ANSWER))
        return answers

    # -- where rows lie --------------------------------------------------------------------------------------------

    def _row_memory(self, spec: TableSpec) -> RowMemory:
        partition = spec.map(len(self.world.owners))
        sizes = [0] * self.world.size
        for owner, rank in enumerate(self.world.owners):
            sizes[rank] = partition.count_of(owner) * spec.row_bytes
        return RowMemory(self.world, sizes, self._everywhere, f"the rows of table '{spec.name}'")

    def _shard(self, spec: TableSpec, memory: RowMemory) -> Shard:
        owners = self.world.owners
        return Shard(spec, owners.index(self.world.rank), len(owners), memory.own)

    def relayout(
        self, table: int, spec: TableSpec, replica: Sequence[np.ndarray] = (), updates: int | None = None
    ) -> int:
        """Deal a table's rows to the parts and owners of `spec`, with their optimiser state, after all pushed steps are
        applied; return the bytes that travelled. Collective over compute; the servers are told.

        `replica`: where rows come from, or go to, when the table has no parts, before or then, and lies on every
        compute rank: this one's arrays [rows, dim], values first, then each slot of the optimiser's state. Later pulls
        and steps give the same bits as without it. `updates`: how many steps the job has applied, where owners that
        had no rows have not heard of all; None: as many as were pushed. An owner holds its old and its new rows of
        this table for a moment.
        Raises UsageError, before anything changes, for a spec that differs in more than where rows lie.
        """
        old = self.specs[table]
        if replace(spec, partition=old.partition, homes=old.homes) != old:
            raise UsageError(
                f"table '{old.name}': rows that move can change their partition and their homes only; got {spec}"
            )
        spec.map(len(self.world.owners))  # raises if it cannot be
        if (old.homes == () or spec.homes == ()) != bool(replica):
            raise UsageError(
                f"table '{old.name}': a replica of it is needed where it has no parts, before or then, and only there"
            )
        # Until all are here, somebody may pull rows where they lie now; what is asked for ahead is still to come.
        self.client.before_request()
        self.world.barrier()
        arguments = {"table": table, "spec": spec, "pushed": self.client.pushed}
        arguments["updates"] = self.client.pushed if updates is None else updates
        command_servers(self.world, "relayout", self.number, arguments)
        return self._relayout(**arguments, replica=replica)

    def _relayout(
        self, table: int, spec: TableSpec, pushed: int, updates: int, replica: Sequence[np.ndarray] = ()
    ) -> int:
        world, server, client = self.world, self.server, self.client
        old, new = (s.map(len(world.owners)) for s in (self.specs[table], spec))
        memory = self._row_memory(spec)
        sources, targets = [], []
        if server is not None:
            server.wait_for(pushed)
            shard = self._shard(spec, memory)
            sources, targets = server.shards[table].arrays(), shard.arrays()
        if client is not None:
            sources, targets = (sources if old.parts else replica), (targets if new.parts else replica)
        traffic = client.traffic if client is not None else Traffic()
        sent = move(world, Layout.of(world, old), Layout.of(world, new), spec.held_bytes, sources, targets, traffic)
        del sources
        if server is not None:
            shard.count_touched(server.shards[table].take_touched())
            shard.replaced(updates)
            server.shards[table] = shard
            server.applied = updates
            server.publish()
        if client is not None:
            client.relay(table, spec, memory)
            client.pushed = updates
        self.specs[table] = spec
        self.exchange.see()
        # Before all have their rows and all owners have changed over, somebody would read what is not there yet, from
        # an owner's memory, or be answered with old rows.
        world.wait_all([world.comm.Ibarrier()])
        self.memories[table].close()
        self.memories[table] = memory
        return sent

    def close(self) -> None:
        """Free the windows. Collective over compute; the servers are told."""
        self.world.barrier()
        command_servers(self.world, "close", self.number, {})
        self._free()

    def _free(self) -> None:
        self.world.remove_progress(self.progress)
        if self.client is not None:
            self.client.close()
        if self.server is not None:
            self.server.close()
        self.server = self.client = None
        if self._node_sum is not None:
            self._node_sum.close()
            self._node_sum = None
        for memory in [*self.memories, *([self.board] if self.board is not None else [])]:
            memory.close()
        self.exchange.close()


def check_names(specs: list[TableSpec]) -> None:
    """Raise UsageError if two tables share a name. Local."""
    names = [spec.name for spec in specs]
    for name in names:
        if names.count(name) > 1:
            raise UsageError(f"two tables are named '{name}': names tell tables apart in plans and checkpoints")


def command_servers(world: World, command: str, service: int | None, arguments: dict[str, Any]) -> None:
    """Tell the dedicated servers what all ranks are about to do together. Collective over compute; root sends."""
    if world.on_root():
        for rank in world.servers:
            send_object(world.comm, (command, service, arguments), rank, Tag.COMMAND)


def serve(world: World) -> None:
    """Serve until the compute ranks have returned. Collective over the server ranks.

    Looks for work and for commands of compute rank 0; sleeps between looks when there is neither. Tells it of a signal.
    """
    root, has_told = world.clients[0], False
    services: dict[int, Service] = {}
    backoff = Backoff(LONGEST_SERVER_SLEEP, SERVER_SLEEP_GROWTH)
    while True:
        if world.progress():
            backoff.reset()
        if not has_told and world.asked_to_stop():
            world.comm.Isend(b"", root, Tag.STOP).Free()  # root may never look: nobody waits
            has_told = True
        if not world.comm.Iprobe(root, Tag.COMMAND):
            backoff.pause()
            continue
        command, number, arguments = receive_object(world.comm, root, Tag.COMMAND)
        backoff.reset()
        if command == "end":
            return
        if command == "open":
            world.listen()  # to live until the compute ranks have saved
            service = Service(world, **arguments)
            services[service.number] = service
        elif command == "clock":
            show_clock(world, root)
        elif command == "relayout":
            services[number]._relayout(**arguments)
        elif command == "close":
            services.pop(number)._free()
        else:
            answer = _carry_out(services[number].server, command, **arguments)
            send_object(world.comm, answer, root, Tag.ANSWER)


def _carry_out(server: Server, command: str, pushed: int, **arguments: Any) -> tuple[bool, Any]:
    try:
        server.wait_for(pushed)
        return True, server.perform(command, arguments)
    except Exception as error:
        return False, describe(error)
