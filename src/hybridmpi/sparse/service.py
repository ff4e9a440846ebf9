"""Service: the tables of one training job, from windows to commands; and the loop that server ranks run."""

from __future__ import annotations

from typing import Any

from hybridmpi.errors import HybridMPIError, UsageError
from hybridmpi.failures import describe
from hybridmpi.sparse.client import Client, Path
from hybridmpi.sparse.exchange import Exchange, RowMemory, slot_sizes
from hybridmpi.sparse.server import Server
from hybridmpi.sparse.shard import Shard
from hybridmpi.sparse.spec import TableSpec
from hybridmpi.sparse.wire import smallest_slot
from hybridmpi.waiting import Backoff
from hybridmpi.world import World

# Tags of control messages on the world communicator; rows and gradients never travel as messages.
TAG_COMMAND, TAG_ANSWER = 11, 12

# A server sleeps up to this long between looks while a step is likely to end soon; it adds half of this at worst. A
# look costs 10 us, on a machine that is busy with others 50 us; after a longer wait the sleeps grow (see waiting.py).
LONGEST_SERVER_SLEEP = 1e-3
# A server waits out whole steps: its sleeps grow by half, so that it looks some 25 times in a step of 20 ms, not 60.
SERVER_SLEEP_GROWTH = 1.5


class Service:
    """The tables of one job on all ranks: windows, this rank's shards, this rank's client. Collective over the world.

    Compute ranks call `Service.open(world, specs)`; dedicated servers come along in `serve`. `path` chooses how rows
    are pulled (see client.py), `slot_bytes` the size of a push slot: both for tests and measurements.
    """

    def __init__(
        self, world: World, specs: list[TableSpec], path: Path = "auto", slot_bytes: int | None = None
    ) -> None:
        if path not in ("auto", "shared", "message", "get"):
            raise UsageError(f"path = {path!r}: expected 'auto', 'shared', 'message' or 'get'")
        self.world, self.specs = world, specs
        self.number = next(world.service_numbers)
        owners = len(world.owners)
        offsets, sizes = row_layout(specs, owners)
        between_nodes = any(world.node_of[r] != world.node_of[world.clients[0]] for r in range(world.size))
        # Rows are asked for by messages, and conditionally in no other way.
        asked = path == "message" or (path == "get" and any(spec.clocks for spec in specs))
        replies = asked or (path == "auto" and between_nodes)
        everywhere = path == "get" or (path == "auto" and between_nodes)
        largest_row = max((spec.row_bytes for spec in specs), default=8)
        slots = slot_sizes(len(world.clients), owners, smallest_slot(len(specs), largest_row), replies, push=slot_bytes)
        self.exchange = Exchange(world, slots)
        by_rank = dict(zip(world.owners, sizes, strict=True))
        self.memory = RowMemory(world, [by_rank.get(rank, 0) for rank in range(world.size)], everywhere)
        self.server: Server | None = None
        self.client: Client | None = None
        if world.rank in world.owners:
            owner = world.owners.index(world.rank)
            shards = []
            for table, spec in enumerate(specs):
                start = offsets[owner][table]
                count = spec.map(owners).count_of(owner)
                memory = self.memory.own[start : start + count * spec.row_bytes]
                shards.append(Shard(spec, owner, owners, memory))
            self.server = Server(world, self.exchange, shards)
        if not world.is_server:
            self.client = Client(world, self.exchange, self.memory, specs, offsets, path)
        world.add_progress(self.progress)
        if self.server is not None:
            self.server.publish()
        if self.client is not None:
            if between_nodes and path == "auto":
                self.client.wait_for_version()
                self.client.calibrate()
            world.barrier()

    @classmethod
    def open(cls, world: World, specs: list[TableSpec], path: Path = "auto", slot_bytes: int | None = None) -> Service:
        """Create the tables on all ranks. Collective over compute; the servers are told."""
        check_names(specs)
        arguments = {"specs": specs, "path": path, "slot_bytes": slot_bytes}
        command_servers(world, "open", None, arguments)
        return cls(world, **arguments)

    def progress(self) -> bool:
        """Serve this rank's shards and keep MPI moving; return whether there was anything to do. Local."""
        # Unless windows are plain shared memory, a Put or Get completes only while its target is inside MPI.
        self.world.comm.Iprobe(tag=TAG_ANSWER)
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
            answers = world.broadcast(self._ask_servers(command, arguments) if world.on_root() else None)
        for owner, (done, value) in enumerate(answers):
            if not done:
                raise HybridMPIError(f"rank {world.owners[owner]} (owner {owner}) could not {command}: {value}")
        return [value for _, value in answers]

    def _ask_servers(self, command: str, arguments: dict[str, Any]) -> list[tuple[bool, Any]]:
        world = self.world
        for rank in world.servers:
            world.comm.send((command, self.number, {"pushed": self.client.pushed, **arguments}), rank, TAG_COMMAND)
        answers = []
        for rank in world.servers:
            world.wait_until(lambda rank=rank: world.comm.Iprobe(rank, TAG_ANSWER))
            answers.append(world.comm.recv(source=rank, tag=TAG_ANSWER))
        return answers

    def close(self) -> None:
        """Free the windows. Collective over compute; the servers are told."""
        self.world.barrier()
        command_servers(self.world, "close", self.number, {})
        self._free()

    def _free(self) -> None:
        self.world.remove_progress(self.progress)
        self.server = self.client = None
        self.memory.close()
        self.exchange.close()


def row_layout(specs: list[TableSpec], owners: int) -> tuple[list[list[int]], list[int]]:
    """Return (offsets[owner][table], bytes[owner]): where each table's rows lie in each owner's row memory. Local."""
    offsets, sizes = [], []
    for owner in range(owners):
        at, starts = 0, []
        for spec in specs:
            starts.append(at)
            at += -(-spec.map(owners).count_of(owner) * spec.row_bytes // 64) * 64
        offsets.append(starts)
        sizes.append(at)
    return offsets, sizes


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
            world.comm.send((command, service, arguments), rank, TAG_COMMAND)


def serve(world: World) -> None:
    """Serve until the compute ranks have returned. Collective over the server ranks.

    Looks for work and for commands of compute rank 0; sleeps between looks when there is neither.
    """
    root = world.clients[0]
    services: dict[int, Service] = {}
    backoff = Backoff(LONGEST_SERVER_SLEEP, SERVER_SLEEP_GROWTH)
    while True:
        if world.progress():
            backoff.reset()
        if not world.comm.Iprobe(root, TAG_COMMAND):
            backoff.pause()
            continue
        command, number, arguments = world.comm.recv(source=root, tag=TAG_COMMAND)
        backoff.reset()
        if command == "end":
            return
        if command == "open":
            service = Service(world, **arguments)
            services[service.number] = service
        elif command == "close":
            services.pop(number)._free()
        else:
            world.comm.send(_carry_out(services[number].server, command, **arguments), root, TAG_ANSWER)


def _carry_out(server: Server, command: str, pushed: int, **arguments: Any) -> tuple[bool, Any]:
    try:
        server.wait_for(pushed)
        return True, server.perform(command, arguments)
    except Exception as error:
        return False, describe(error)
