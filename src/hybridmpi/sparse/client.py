"""Client: how a compute rank pulls rows from their owners and pushes their gradients back.

Three ways to pull, by where the owner is: *shared*: a gather straight from memory on the same node; *message*: the
owner is sent the ids, gathers the rows, and sends them back, contiguous; *get*: one indexed Get per owner and table.
Between nodes, message and get are timed at the start, the faster one is used. Several owners are at work at once.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from statistics import median
from typing import Literal

import numpy as np

from hybridmpi import kernels
from hybridmpi.collectives.summands import largest_summand, unfit_to_sum
from hybridmpi.errors import NonFiniteError, UsageError
from hybridmpi.memory import resident_shared_bytes, unmap_pages
from hybridmpi.sparse.asking import Asking, Questions
from hybridmpi.sparse.exchange import Exchange, Letter, RowMemory
from hybridmpi.sparse.forms import Form, Forms
from hybridmpi.sparse.node_pull import NodePull
from hybridmpi.sparse.node_sum import NodeSum
from hybridmpi.sparse.norms import SCALAR_BYTES, ClientNorms, Norm, norm_of
from hybridmpi.sparse.requests import Question
from hybridmpi.sparse.rows import distinct_row_ids
from hybridmpi.sparse.spec import TableSpec
from hybridmpi.sparse.wire import Outgoing, Sender, pack_push
from hybridmpi.traffic import Traffic
from hybridmpi.world import World

Path = Literal["auto", "shared", "message", "get"]

# Rows of the largest table, of all owners together, that the calibration reads by either way, and how often. The median
# counts: a link that has rested takes the first messages in at once. A Get goes by itself, whatever others have on the
# link, where messages take turns: it is used where it is clearly faster.
CALIBRATION_ROWS = 1024
CALIBRATION_TRIES = 5
CLEARLY = 0.8

# Reading a row of shared memory maps the 64 kB around it into this process, and in time the whole table, which
# would count as this rank's memory wherever limits go by resident size. So every few pulls a rank looks, and
# unmaps when more than this is mapped. To map so much again takes some 10 ms of page faults, and many pulls soon do:
# within this time of the last unmapping, twice as much may be.
MOST_MAPPED_BYTES = 192 << 20
PULLS_PER_LOOK = 8
SECONDS_BETWEEN_UNMAPPING = 1.0


# A compute rank that holds rows waits so many seconds for its replies to arrive before it computes: those whom they go
# to may be computing themselves.
PATIENCE = 20e-3


class Client:
    """The compute rank's side of the exchange. All but `calibrate` is Local; pulls and pushes wait for owners."""

    def __init__(
        self,
        world: World,
        exchange: Exchange,
        memories: list[RowMemory],
        specs: list[TableSpec],
        path: Path,
        forms: Forms,
        norms: bool,
        node_sum: NodeSum | None = None,
    ) -> None:
        """With `norms` every push is followed by `clip`; with `node_sum` the compute ranks of a node push together."""
        self.world, self.exchange, self.memories, self.specs = world, exchange, list(memories), list(specs)
        self.traffic = Traffic()
        self.node_sum = node_sum
        self.node_pull: NodePull | None = None
        self.pushed = 0
        self.wait_seconds = 0.0
        self._index = world.clients.index(world.rank)
        owners = len(world.owners)
        self._maps = [spec.map(owners) for spec in specs]
        self._versions = exchange.watch("version")
        self._push_taken = exchange.watch("push_taken")
        # Messages to each owner, and those that are not the last of their step: when these are taken, there is room.
        self._pushes, self._to_take = np.zeros(owners, np.int64), np.zeros(owners, np.int64)
        self._messages = [np.zeros(exchange.sizes.push, np.uint8) for _ in range(owners)]
        self.asking = Asking(world, exchange, self.traffic)
        self._shared: dict[tuple[int, int], np.ndarray] = {}
        self._pulls, self._most_mapped, self._unmapped = 0, MOST_MAPPED_BYTES, time.perf_counter()
        self._forms = [forms.between(world.same_node(rank)) for rank in world.owners]
        self._norms = ClientNorms(exchange) if norms else None
        self.paths = [self._path_to(rank, path) for rank in world.owners]
        # Takes in what was asked for ahead, when an owner's slots are needed for something else.
        self.before_request: Callable[[], None] = lambda: None
        # Whether this rank, which holds rows too, has replies to others on their way.
        self.owes: Callable[[], bool] = lambda: False

    def _path_to(self, rank: int, path: Path) -> str:
        if self.world.same_node(rank) and path in ("auto", "shared"):
            return "shared"
        if path == "shared":
            raise UsageError(
                f"rows are to be pulled from shared memory, but rank {rank} is on another node than rank "
                f"{self.world.rank}: use path='auto'"
            )
        return "message" if path == "auto" else path

    def relay(self, table: int, spec: TableSpec, memory: RowMemory) -> None:
        """Find a table's rows where `spec` deals them to, in `memory`, from now on. Local."""
        self.specs[table], self.memories[table] = spec, memory
        self._maps[table] = spec.map(len(self.world.owners))
        for owner in range(len(self.world.owners)):
            self._shared.pop((owner, table), None)

    def calibrate(self) -> None:
        """Time both ways to the owners on other nodes, all ranks and owners at work at once as in a step, and keep the
        better one. Collective over compute."""
        held = (table for table, partition in enumerate(self._maps) if partition.parts)
        table = max(held, key=lambda t: self.specs[t].rows * self.specs[t].row_bytes, default=None)
        if table is None:
            return
        spec, rows = self.specs[table], {}
        far = [owner for owner, way in enumerate(self.paths) if way != "shared"]
        for owner in far:
            count = self._maps[table].count_of(owner)
            places = np.linspace(0, count - 1, min(-(-CALIBRATION_ROWS // len(far)), count))
            rows[owner] = np.unique(places.astype(np.int64))
        seconds: dict[str, list[float]] = {"message": [], "get": []}
        for _ in range(CALIBRATION_TRIES):
            for way, times in seconds.items():
                questions = {}
                for owner, local in rows.items():
                    self.paths[owner], out = way, np.empty((len(local), spec.dim), spec.dtype)
                    if len(local):
                        form = self._forms[owner][table]
                        questions[owner] = [Question(table, local, slice(0, len(local)), out, form)]
                self.world.barrier()
                started = time.perf_counter()
                self._read_far(questions)
                times.append(time.perf_counter() - started)
        message, get = (max(self.world.gather(median(times))) for times in seconds.values())
        for owner in far:
            self.paths[owner] = "get" if get < CLEARLY * message else "message"
        self.traffic.forget()

    def close(self) -> None:
        """Give memory back. Collective over the node's compute ranks where they pull together, else Local.

        A closed Trainer refers to itself in circles, and Python looks for those by the number of objects, not by the
        megabytes that a message has for each owner: they would stay for hundreds of Trainers.
        """
        if self.node_pull is not None:
            self.node_pull.close()
        self._messages = []

    # -- pull ------------------------------------------------------------------------------------------------------

    def wait_for_version(self) -> None:
        """Wait until every owner has applied all that this rank has pushed. Local."""
        if self._versions.min() < self.pushed:
            started = time.perf_counter()
            self.world.wait_until(lambda: self._versions.min() >= self.pushed)
            self.wait_seconds += time.perf_counter() - started
            if (recording := self.world.recording) is not None:
                recording.add("wait for owners", started, time.perf_counter(), step=recording.step)
        self.exchange.see()

    def pull(self, table: int, ids: np.ndarray) -> np.ndarray:
        """Return the rows `ids` (unique, sorted, checked) of a table, [n, dim], as they are after the last push."""
        self.wait_for_version()
        spec = self.specs[table]
        out = np.empty((len(ids), spec.dim), spec.dtype)
        far: dict[int, list[Question]] = {}
        for owner, (where, local) in enumerate(self._maps[table].split(ids)):
            if self.node_pull is not None and self.node_pull.active:
                where, local = self.node_pull.read(table, owner, where, local, out)
            if len(local) == 0:
                continue
            if self.paths[owner] == "shared":
                self.read_near(owner, table, local, out, where)
            else:
                far[owner] = [Question(table, local, where, out, self._forms[owner][table])]
        self._read_far(far)
        return out

    def fetch(self, questions: Questions) -> None:
        """Read rows of owners on other nodes, none of which has a version, as they are after the last push."""
        self.wait_for_version()
        self._read_far(questions)

    def read_near(self, owner: int, table: int, local: np.ndarray, out: np.ndarray, where: slice | np.ndarray) -> None:
        """Read rows `local` of an owner on this node to their places in `out` [*, dim]. Local; after
        `wait_for_version`."""
        rows = self._rows_on_node(owner, table)
        if isinstance(where, slice):
            kernels.gather(rows, local, out=out[where])
        else:
            out[where] = kernels.gather(rows, local)
        self.traffic.add("pull_rows", len(local) * self.specs[table].row_bytes, True)
        self._limit_mapped()

    def _read_far(self, questions: Questions) -> None:
        """Read rows of owners that this rank does not share memory with, all owners at work at once."""
        by_message = {owner: asked for owner, asked in questions.items() if self.paths[owner] == "message"}
        gets: dict[int, list[tuple[int, np.ndarray, np.ndarray]]] = {}
        scattered = []
        for owner in questions.keys() - by_message.keys():
            rank = self.world.owners[owner]
            for question in questions[owner]:
                out, places = question.out, question.places
                rows = out[places] if isinstance(places, slice) else np.empty((len(places), out.shape[1]), out.dtype)
                if not isinstance(places, slice):
                    scattered.append((out, places, rows))
                gets.setdefault(question.table, []).append((rank, question.local, rows))
                self.traffic.add("pull_rows", rows.nbytes, self.world.same_node(rank))
        for table, of_ranks in gets.items():
            self.memories[table].get_rows(self.specs[table].row_bytes, of_ranks)
        for out, places, rows in scattered:
            kernels.scatter(out, places, rows)
        if by_message:
            self.before_request()
            self.asking.ask(by_message)
            if self.owes():
                # Others would wait until this rank comes back from what it computes now.
                until = time.perf_counter() + PATIENCE
                self.world.wait_until(lambda: not self.owes() or time.perf_counter() > until)
        for owner, asked in by_message.items():
            for question in asked:
                self.require_carried(owner, question)

    def _limit_mapped(self) -> None:
        """Every few pulls, unmap rows of shared memory if much of it counts as this rank's."""
        self._pulls += 1
        if self._pulls % PULLS_PER_LOOK:
            return
        now = time.perf_counter()
        often = now - self._unmapped < SECONDS_BETWEEN_UNMAPPING
        if resident_shared_bytes() > self._most_mapped * (2 if often else 1):
            self._unmapped = now
            for rows in self._shared.values():
                unmap_pages(rows)
            # What is left is not the tables': unmapping at every look would only cost.
            self._most_mapped = max(MOST_MAPPED_BYTES, 2 * resident_shared_bytes())

    def _rows_on_node(self, owner: int, table: int) -> np.ndarray:
        """Return an owner's rows of a table, [n, dim], as they lie in the node's shared memory."""
        key = owner, table
        if key not in self._shared:
            spec, count = self.specs[table], self._maps[table].count_of(owner)
            memory = self.memories[table].of(self.world.owners[owner])[: count * spec.row_bytes]
            self._shared[key] = memory.view(spec.dtype).reshape(count, spec.dim)
        return self._shared[key]

    def require_carried(self, owner: int, question: Question) -> None:
        """Raise NonFiniteError if rows that came from an owner in 16 bits are not finite. Local."""
        form = question.form
        if form.largest is None:
            return
        places = question.places if isinstance(question.places, slice) else question.places[question.changed]
        rows = question.out[places]
        if count := kernels.nonfinite_count(rows):
            raise NonFiniteError(
                f"table '{self.specs[question.table].name}': {count} of {rows.size} values pulled from owner {owner} "
                f"(rank {self.world.owners[owner]}) are not finite: the table holds such values, or larger ones than "
                f"{form.largest:.6g}, the largest that {form.name} carries between nodes. Use another wire for rows"
            )

    def form(self, owner: int, table: int) -> Form:
        """Return the form of a table's rows on their way from an owner. Local."""
        return self._forms[owner][table]

    def split(self, table: int, ids: np.ndarray) -> list[tuple[np.ndarray | slice, np.ndarray]]:
        """Return, per owner, (where its rows stand in sorted unique `ids`, their local numbers there). Local."""
        return self._maps[table].split(ids)

    # -- push ------------------------------------------------------------------------------------------------------

    def unfit(self, table: int, ids: np.ndarray, values: np.ndarray) -> str:
        """Say what forbids to push a table's row gradients, [n, dim]: values that are not finite, or too large for the
        sum over the ranks or the wire to another node. "" if nothing does. Local; before the ranks agree on the step.
        """
        forms = [forms[table] for forms in self._forms]
        # What a node's ranks add up before it is rounded must not exceed it either; averages do not.
        name, mean = self.specs[table].name, self.specs[table].reduction == "mean"
        ranks = self.node_sum.ranks if self.node_sum is not None and not mean else 1
        clients = len(self.world.clients)
        carried = [form.largest / ranks for form in forms if form.largest is not None]
        if not kernels.count_beyond(values, min([largest_summand(values.dtype, clients, mean), *carried])):
            return ""
        found = [text] if (text := unfit_to_sum(values, name, clients, mean)) else []
        for owner, (where, _) in enumerate(self._maps[table].split(ids)):
            form, part = forms[owner], values[where]
            if form.largest is not None and (
                count := int((np.abs(part[np.isfinite(part)]) > form.largest / ranks).sum())
            ):
                found.append(
                    f"{count} of {values.size} values in the gradient of '{name}', on their way to owner {owner} (rank "
                    f"{self.world.owners[owner]}), exceed {form.name}'s {form.largest:.6g}"
                    + (f", of which each of the {ranks} ranks that are summed may have its part" if ranks > 1 else "")
                )
        return ", ".join(found)

    def push(self, gradients: list[tuple[int, np.ndarray, np.ndarray]], weight: float) -> None:
        """Send the step's row gradients, (table, ids [n] unique and sorted, values [n, dim]), and this rank's weight.

        Every client pushes every step, if only to say that it has nothing: an owner applies a step when it has heard
        of everybody. One message per owner, in rounds if it is larger than a slot; with a node sum, of a node's ranks
        together.
        """
        for table, ids, _ in gradients:
            distinct_row_ids(ids, self.specs[table].rows, self.specs[table].name)
        # A model may push without having pulled: an owner has one step open at a time, and the node's sum relies on it.
        self.wait_for_version()
        pending = None
        if self.node_sum is not None:
            pending, laid_out = self.node_sum.messages(weight, gradients, self._maps, self._forms)
            self.traffic.add("aggregate", laid_out, True)
        if pending is None:
            pending = self._own_messages(gradients, weight)
        pending = {owner: pending[owner] for owner in self.exchange.in_turn(pending)}
        while pending:
            ready = [owner for owner in pending if self._push_taken[owner] == self._to_take[owner]]
            if not ready:
                self.world.wait_until(lambda: any(self._push_taken[o] == self._to_take[o] for o in pending))
                continue
            self.exchange.push(self._index, self._letters(ready, pending))
        self.pushed += 1

    def _letters(self, owners: list[int], pending: dict[int, tuple[Sender, list[Outgoing]]]) -> Iterator[Letter]:
        """Yield a message to each of `owners`, of as much of what is `pending` as fits, and take what is done with from
        there."""
        for owner in owners:
            message, target = self._messages[owner], self.world.owners[owner]
            size, done, sent = pack_push(message, self._seen(owner), *pending[owner])
            for category, count in (("control", sent.control), ("push_ids", sent.ids), ("push_rows", sent.rows)):
                self.traffic.add(category, count, self.world.same_node(target))
            if done:
                del pending[owner]
            self._pushes[owner] += 1
            self._to_take[owner] += not done
            yield Letter(target, message[:size], int(self._pushes[owner]))

    def _own_messages(
        self, gradients: list[tuple[int, np.ndarray, np.ndarray]], weight: float
    ) -> dict[int, tuple[Sender, list[Outgoing]]]:
        """Return what this rank pushes for itself: owner -> (sender, rows)."""
        sender = Sender(1, weight, weight)
        messages: dict[int, tuple[Sender, list[Outgoing]]] = {
            owner: (sender, []) for owner in range(len(self.world.owners))
        }
        for table, ids, values in gradients:
            values = np.ascontiguousarray(values, self.specs[table].dtype)
            for owner, (where, local) in enumerate(self._maps[table].split(ids)):
                if len(local):
                    messages[owner][1].append(Outgoing(table, local, where, values, self._forms[owner][table]))
        return messages

    def clip(self, limit: float, squares: Sequence[float]) -> Norm:
        """Return the norm of the step's whole gradient, and the factor that limits it to `limit`, the same on every
        client; the owners get it too, and update their rows. After every push of a service with norms; waits for all
        clients' pushes.

        `squares`: sums of squares of what no owner has, the same on every client: the dense gradient's. Where the norm
        is not finite, the push is taken back, on every client and owner.
        """
        if self._norms is None:
            return norm_of(squares, limit)
        owners, root = self.world.owners, self.world.on_root()
        norm = norm_of([*self._norms.squares(), *squares], limit)
        if root:
            self._norms.tell(norm.scale)
        for rank in owners:
            self.traffic.add("control", SCALAR_BYTES * (1 + root), self.world.same_node(rank))
        if np.isnan(norm.scale):
            self.pushed -= 1
        return norm

    def _seen(self, owner: int) -> int:
        """Return how many updates of an owner are in the values that this step's gradients are of."""
        return self.pushed
