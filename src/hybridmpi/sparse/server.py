"""Server: what an owner of rows does. It takes pushes, answers requests, applies a step once every client has pushed.

The same object serves on a rank of its own (`serve`, in service.py) and inside a compute rank, where every wait of that
rank calls `progress`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hybridmpi.errors import DamageError
from hybridmpi.optim import Optimizer
from hybridmpi.recording import Recording
from hybridmpi.sparse.answering import Answering
from hybridmpi.sparse.exchange import Exchange
from hybridmpi.sparse.forms import Forms
from hybridmpi.sparse.loading import load_rows
from hybridmpi.sparse.norms import OwnerNorms
from hybridmpi.sparse.partition import Piece
from hybridmpi.sparse.shard import Shard
from hybridmpi.sparse.wire import Header, Sender, read_push
from hybridmpi.world import World

if TYPE_CHECKING:
    from hybridmpi.checkpoint import Behind

# An owner without rows of a table says so in a checkpoint: a table may have no rows at all.
NO_ROWS = Piece(0, 0, 1, 0, 0)


class Server:
    """Serves the shards of this rank. Local: it only looks at this rank's memory and puts into others'."""

    def __init__(self, world: World, exchange: Exchange, shards: list[Shard], forms: Forms, norms: bool) -> None:
        """`norms`: whether a step is updated only when its norm is known (see norms.py)."""
        self.world, self.exchange, self.shards = world, exchange, shards
        self.index = world.owners.index(world.rank)
        self.applied = 0
        self.busy_seconds = 0.0
        self._forms = [forms.between(world.same_node(rank)) for rank in world.clients]
        clients = len(world.clients)
        self._push_sent = exchange.watch("push_sent")
        self._pushes, self._to_take = np.zeros(clients, np.int64), np.zeros(clients, np.int64)
        self._answering = Answering(world, exchange, shards, self._forms)
        # Of the open step: who has pushed all, and for how many clients.
        self._senders: dict[int, Sender] = {}
        self._heard = 0
        self._norms = OwnerNorms(exchange, self.index) if norms else None
        self._behind: Behind | None = None

    def publish(self) -> None:
        """Tell every client which step the rows now hold. Local."""
        # The rows first, then the word that they are there, also where memory is weakly ordered.
        self.exchange.see()
        self.exchange.count("version", ((self.index, rank, self.applied) for rank in self.world.clients))

    def progress(self) -> bool:
        """Do all that can be done now, without waiting; return whether there was anything. Local."""
        answered = self._answering.progress(self.applied)
        pushed = self._push_sent != self._pushes
        # Looked for after the pushes: the client that tells the factor pushes the next step after it.
        scale = self._norms.scale() if self._norms is not None else None
        if not (pushed.any() or scale is not None):
            return answered
        started = time.perf_counter()
        if scale is not None:
            self._update(scale)
        self.exchange.see()
        self._take_pushes(np.flatnonzero(pushed).tolist())
        if self._heard == len(self.world.clients):
            self._apply()
        self.busy_seconds += time.perf_counter() - started
        return True

    def _take_pushes(self, clients: Sequence[int]) -> None:
        """Copy a round of each client's push out of its slot, and give the slots back to those that have more."""
        headers = {client: self._take_push(client) for client in clients}
        going_on = [client for client, header in headers.items() if not header.last]
        self._to_take[going_on] += 1
        taken = ((self.index, self.world.clients[client], int(self._to_take[client])) for client in going_on)
        self.exchange.count("push_taken", taken)
        for client, header in headers.items():
            if header.last:
                self._received(client, header)

    def _take_push(self, client: int) -> Header:
        started = time.perf_counter()
        forms = self._forms[client]
        shapes = [(shard.spec.dim, form.dtype) for shard, form in zip(self.shards, forms, strict=True)]
        header, pieces = read_push(self.exchange.slot(client), shapes)
        self._expect(client, header)
        size = 0
        for table, ids, values in pieces:
            # The slot of a last round stays as it is until the client sees the step applied, or its norm known.
            self.shards[table].staging.add(client, ids, values, forms[table], lasting=header.last)
            size += ids.nbytes + values.nbytes
        self._pushes[client] += 1
        if self.world.recording is not None:
            about = {"client": client, "bytes": size}
            self.world.recording.add("take push", started, time.perf_counter(), update=header.step + 1, **about)
        return header

    def _expect(self, client: int, header: Header) -> None:
        """Raise AssertionError for a push that cannot come now."""
        if client in self._senders or header.step != self.applied:
            raise AssertionError(
                f"server {self.index}: client {client} pushed step {header.step} while step {self.applied} is open"
            )

    def _received(self, client: int, header: Header) -> None:
        """Take note that all of a client's push is here."""
        self._senders[client] = header.sender
        self._heard += header.sender.clients

    def _apply(self) -> None:
        """Apply the step that everybody has pushed, or begin to, where its norm decides."""
        started = time.perf_counter()
        # Added in the order of the clients, whatever order they came in, as the rows are.
        senders = dict(sorted(self._senders.items()))
        total = sum(sender.weight for sender in senders.values())
        averaged = {client: sender.averaged for client, sender in senders.items()}
        rows = sum(shard.aggregate(averaged, total) for shard in self.shards)
        self._senders.clear()
        self._heard = 0
        if self.world.recording is not None:
            self.world.recording.add("aggregate", started, time.perf_counter(), update=self.applied + 1, rows=rows)
        if self._norms is None:
            self._update(1.0)
        else:
            self._norms.announce(sum(shard.square_sum() for shard in self.shards))

    def _update(self, scale: float) -> None:
        """Update the rows by what was aggregated, times `scale`; NaN drops the step."""
        if np.isnan(scale):
            for shard in self.shards:
                shard.forget()
            return
        started = time.perf_counter()
        for shard in self.shards:
            shard.update(self.applied + 1, scale)
        self.applied += 1
        self.publish()
        if self.world.recording is not None:
            self.world.recording.add("update rows", started, time.perf_counter(), update=self.applied)

    @property
    def replying(self) -> bool:
        """Whether a reply to a client is on its way, as far as this rank knows."""
        return self._answering.under_way

    def close(self) -> None:
        """Wait until the last replies have arrived; end what writes behind. Local."""
        self._answering.close()
        if self._behind is not None:
            self._behind.close()

    def wait_for(self, applied: int) -> None:
        """Serve until `applied` steps are applied. Local."""
        self.world.wait_until(lambda: self.applied >= applied)

    def perform(self, command: str, arguments: dict[str, Any]) -> Any:
        """Carry out a command of compute rank 0. Local."""
        function: Callable[..., Any] = getattr(self, f"command_{command}")
        return function(**arguments)

    def command_statistics(self) -> dict[str, Any]:
        """Return the seconds this server worked, the rows it holds, and per table and part that lies here the rows
        that were pushed to it since `forget_accesses`."""
        accesses = [
            {piece.part: int(count) for piece, count in zip(shard.pieces, shard.accesses, strict=True)}
            for shard in self.shards
        ]
        return {
            "busy_seconds": self.busy_seconds + self._answering.busy_seconds,
            "rows": [shard.count for shard in self.shards],
            "accesses": accesses,
        }

    def command_optimize(self, optimizer: Optimizer) -> None:
        """Update rows by another optimiser of the same kind from the next step on."""
        for shard in self.shards:
            shard.spec = replace(shard.spec, optimizer=optimizer)

    def command_touched(self) -> list[int]:
        """Return how many rows of each table were updated here, added over the steps since the last call."""
        return [shard.take_touched() for shard in self.shards]

    def command_record(self, limit: int) -> None:
        """Record what this rank does from here on, up to `limit` intervals."""
        self.world.recording = Recording(limit)

    def command_recorded(self) -> Recording:
        """Return what was recorded, and record no more."""
        recording, self.world.recording = self.world.recording, None
        return recording

    def command_forget_accesses(self) -> None:
        """Count the rows pushed to each part from here on."""
        for shard in self.shards:
            shard.accesses[:] = 0

    def command_save(self, directory: str, tables: list[str], files: int, behind: bool) -> Any:
        """Write this owner's shards of `tables` into a checkpoint directory; return the record of the file. `files`:
        how many ranks write such a file. `behind`: copy them only, and write the copies while training goes on."""
        from hybridmpi.checkpoint import Behind, TableShard, write_server

        shards = [
            TableShard(
                shard.spec.name,
                shard.spec.rows,
                shard.spec.dim,
                shard.spec.partition,
                piece.first,
                piece.stride,
                shard.values[piece.rows],
                {slot: array[piece.rows] for slot, array in shard.state.items()},
            )
            for shard in self.shards
            if shard.spec.name in tables
            for piece in shard.pieces or (NO_ROWS,)
        ]
        file = (Path(directory), self.index, files, shards)
        if not behind:
            return write_server(*file)
        if self._behind is None:
            self._behind = Behind()
        return self._behind.write_server(*file)

    def command_finish_saving(self) -> None:
        """Wait until what is written behind is on disk, serving meanwhile; raise what was raised there."""
        if self._behind is not None:
            self.world.wait_until(lambda: self._behind.done)
            self._behind.result()

    def command_state(self, table: int) -> dict[str, np.ndarray]:
        """Return this owner's optimiser state of a table, in the order of its rows here. For small tables."""
        return self.shards[table].state

    def command_load(self, directory: str, applied: int) -> str:
        """Read this owner's rows from a checkpoint, whatever partition wrote it, and continue from `applied` steps.

        Return "", or what is damaged: then rows are left as far as they came."""
        from hybridmpi.checkpoint import Checkpoint

        try:
            saved = Checkpoint.open(directory)
            dense = cache(saved.read_dense)
            for shard in self.shards:
                load_rows(saved, shard, dense)
                shard.replaced(applied)
        except DamageError as error:
            return str(error)
        self.applied = applied
        self.publish()
        return ""
