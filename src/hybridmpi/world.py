"""The world: ranks become roles, roles become communicators.

Every process runs the same program. `World` looks at where the ranks are, decides which of them hold the sparse
parameters, and splits hybridmpi's own duplicate of the launch communicator:

    world     all ranks; carries the windows and control messages
    compute   the ranks that run the model
    server    the ranks that hold sparse parameters (none: the compute ranks hold them)
    node      the ranks that share memory
    leaders   one compute rank per node

An error on one rank ends all ranks: `run` and the `with` statement abort the world when an exception leaves them.
"""

from __future__ import annotations

import itertools
import math
import os
import pickle
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from hybridmpi import kernel_cache
from hybridmpi.cores import quota_of_groups
from hybridmpi.errors import STOPPED, RemoteError, UsageError
from hybridmpi.failures import describe, end_all, exit_code_of, forget_abort_hook, install_abort_hook, open_worlds
from hybridmpi.field_types import checks_arguments
from hybridmpi.kernel_cache import VARIABLE
from hybridmpi.large_counts import begin_allgather, pieces
from hybridmpi.memory import keep_freed_memory
from hybridmpi.mpi_start import load_mpi
from hybridmpi.recording import Recording
from hybridmpi.rendezvous import Gate, Rendezvous
from hybridmpi.roles import Servers, assign_servers
from hybridmpi.signals import StopRequest
from hybridmpi.singletons import refuse_singletons
from hybridmpi.streams import ensure_streams, write
from hybridmpi.tags import Tag
from hybridmpi.waiting import wait_all, wait_until

if TYPE_CHECKING:
    from mpi4py import MPI


class World:
    """The communicators of one job and the role of this rank. Collective over the launch communicator.

    `servers`: "per-node", a number, or 0 (the compute ranks hold the shards and serve between their own work).
    `nodes_of_ranks`: a function from world rank to node number that replaces the detected shared-memory nodes, to
    place ranks by hand or to exercise the paths between nodes on one machine; ranks given the same node must really
    share memory. `asked_to_stop`: tells whether a signal has asked this rank to stop (see stop_requested).

    Use it in a `with` statement: leaving it normally frees the communicators, leaving it by an exception ends all
    ranks at once with one message. Without mpirun the world has one rank, which does everything.
    """

    @checks_arguments
    def __init__(
        self,
        servers: Servers = "per-node",
        comm: MPI.Intracomm | None = None,
        nodes_of_ranks: Callable[[int], int] | None = None,
        asked_to_stop: Callable[[], bool] = lambda: False,
    ) -> None:
        ensure_streams()
        mpi = load_mpi()
        self.mpi = mpi
        launch = mpi.COMM_WORLD if comm is None else comm
        refuse_singletons(mpi.COMM_WORLD.Get_size())
        if any(world.servers and mpi.Comm.Compare(world._launch, launch) == mpi.IDENT for world in open_worlds()):
            raise UsageError(
                "a World of these ranks is open already, and its server ranks serve it: they would never come to "
                "another one. Use the world that hm.run gives to main, or close it first"
            )
        self._launch = launch
        self.comm = launch.Dup()
        self.comm.Set_name("hybridmpi.world")
        self.rank, self.size = self.comm.Get_rank(), self.comm.Get_size()
        self._progress: list[Callable[[], Any]] = []
        self._gate: Gate | None = None
        self._on_close: list[Callable[[], None]] = []
        # While a timeline of this job is recorded, what this rank does.
        self.recording: Recording | None = None
        self.asked_to_stop = asked_to_stop
        self._stop = asked_to_stop if isinstance(asked_to_stop, StopRequest) else None
        # Whether training has ended since a signal asked for it.
        self.stopped = False
        self._closed = self._has_served = False
        self.servers: list[int] = []
        self.clients: list[int] = []
        # Services are opened by all ranks together, so every rank gives them the same numbers.
        self.service_numbers = itertools.count()
        install_abort_hook(self)

        if nodes_of_ranks is None:
            self.node = self.comm.Split_type(mpi.COMM_TYPE_SHARED, key=self.rank)
        else:
            self.node = self.comm.Split(nodes_of_ranks(self.rank), key=self.rank)
        self.node.Set_name("hybridmpi.node")
        # The lowest world rank of a node names it; renumber from 0 in order of that rank.
        first = self.node.allreduce(self.rank, op=mpi.MIN)
        firsts = self.comm.allgather(first)
        numbers = {rank: number for number, rank in enumerate(sorted(set(firsts)))}
        self.node_of: list[int] = [numbers[rank] for rank in firsts]
        self.nodes = len(numbers)

        self.servers = assign_servers(self.node_of, servers)
        self.is_server = self.rank in self.servers
        self.clients = [rank for rank in range(self.size) if rank not in self.servers]
        self.embedded = not self.servers
        self.owners = self.clients if self.embedded else self.servers
        undefined = mpi.UNDEFINED
        self.compute = self._split(undefined if self.is_server else 0, "compute")
        if self.compute is not None:
            self._gate = Gate(self.compute, self.clients, self.wait_all)
        self.server = self._split(0 if self.is_server else undefined, "server")
        leads = not self.is_server and self.rank == min(
            r for r in self.clients if self.node_of[r] == self.node_of[self.rank]
        )
        self.leaders = self._split(0 if leads else undefined, "leaders")
        share_cores(self.node)
        keep_freed_memory()
        if kernel_cache.note and self.rank == 0:
            write(sys.stderr, f"hybridmpi: {kernel_cache.note}; name one that all hosts can write by {VARIABLE}\n")

    def _split(self, color: int, name: str) -> MPI.Intracomm | None:
        comm = self.comm.Split(color, key=self.rank)
        if comm == self.mpi.COMM_NULL:
            return None
        comm.Set_name(f"hybridmpi.{name}")
        return comm

    # -- who and where ---------------------------------------------------------------------------------------------

    @property
    def role(self) -> str:
        """What this rank is, for messages: 'compute 0', 'server 1'; 'starting' before that is known. Local."""
        return self.role_of(self.rank)

    def role_of(self, rank: int) -> str:
        """Return what world rank `rank` is, in words. Local."""
        if rank in self.servers:
            return f"server {self.servers.index(rank)}"
        return f"compute {self.clients.index(rank)}" if self.clients else "starting"

    def __repr__(self) -> str:
        return f"<World rank {self.rank} of {self.size}, {self.role}, {self.nodes} node{'s' * (self.nodes > 1)}>"

    def same_node(self, rank: int) -> bool:
        """Return whether world rank `rank` shares memory with this one. Local."""
        return self.node_of[rank] == self.node_of[self.rank]

    def on_root(self) -> bool:
        """Return whether this is compute rank 0, the one that reads, prints and writes. Local."""
        return self.rank == self.clients[0]

    def listen(self) -> None:
        """Take signals as requests to stop from now on, where hm.run made the world: its Trainers heed them. Local."""
        if self._stop is not None:
            self._stop.listen()

    def stop_requested(self) -> bool:
        """Return whether this rank was asked to stop; compute rank 0 also speaks for the server ranks. Local."""
        if not self.asked_to_stop() and self.servers and self.on_root() and self.comm.Iprobe(tag=Tag.STOP):
            self.comm.Recv(bytearray(), tag=Tag.STOP)
            self.asked_to_stop = lambda: True
        return self.asked_to_stop()

    # -- progress and waiting --------------------------------------------------------------------------------------

    def add_progress(self, function: Callable[[], Any]) -> None:
        """Call `function` during every wait of this rank: the shards it serves. Local."""
        self._progress.append(function)

    def remove_progress(self, function: Callable[[], Any]) -> None:
        """Undo add_progress. Local."""
        self._progress.remove(function)

    def progress(self) -> bool:
        """Do what this rank owes to others; return whether there was anything. Local."""
        did = False
        for function in self._progress:
            did = bool(function()) or did
        if self._gate is not None:
            self._gate.look()
        return did

    def drive(self) -> bool:
        """Let MPI move its messages, and do what this rank owes to others; return whether there was anything of the
        latter. Local."""
        self.comm.Iprobe(self.rank, Tag.NOTHING)
        return self.progress()

    def wait_until(self, predicate: Callable[[], Any]) -> None:
        """Wait for `predicate`, serving others meanwhile. Local.

        What is waited for need not be MPI's, and another rank may be waiting for MPI on this one to move a message of
        a collective that this one has done with: so every such wait drives MPI.
        """
        wait_until(predicate, self.drive)

    def wait_all(self, requests: Sequence[Any]) -> None:
        """Complete MPI requests, serving others meanwhile. Local."""
        wait_all(requests, self.progress)

    # -- what the compute ranks do together ------------------------------------------------------------------------

    def meet(self, what: str, *numbers: float) -> np.ndarray:
        """Wait until every compute rank has called this with the same `what`, serving meanwhile; return the sums of the
        numbers that each brought, float64. Collective over compute.

        Every collective of the compute ranks begins so. Where some ranks are in another one, all raise an error that
        says who is where. Up to rendezvous.ROOM numbers.
        """
        met = self.begin_meeting(what, numbers)
        self._gate.finish()
        return met.sums[: len(numbers)]

    def begin_meeting(self, what: str, numbers: Sequence[float] = (), where: str = "") -> Rendezvous:
        """Begin to `meet`, and wait for nobody: the next collective does, and every wait looks. `where`: what messages
        call it, if not `what`. Collective over compute."""
        if self._gate is None or self._closed:
            why = "its World is closed" if self._closed else "only compute ranks take part"
            raise UsageError(f"rank {self.rank} ({self.role}) is in {where or what}, but {why}")
        return self._gate.begin(what, numbers, where)

    @contextmanager
    def within(self, operation: str) -> Iterator[None]:
        """Meet for `operation`; until the block ends, all that is collective belongs to it. Collective over compute."""
        self.meet(operation)
        self._gate.within.append(operation)
        try:
            yield
        finally:
            self._gate.within.pop()

    # -- what root does, everybody knows ---------------------------------------------------------------------------

    def from_root(self, function: Callable[[], Any]) -> Any:
        """Run `function` on compute rank 0 and return its result on every compute rank. Collective over compute.

        An exception travels too: root raises it, the others raise RemoteError with its text, so that nobody waits for
        a rank that has failed. The result must be picklable.
        """
        failure: BaseException | None = None
        message: tuple[bool, Any] = (True, None)
        # What root does, it does when all are here.
        with self.within("World.from_root"):
            if self.compute.Get_rank() == 0:
                try:
                    message = (True, function())
                except Exception as error:
                    failure, message = error, (False, describe(error))
            done, value = self.broadcast(message)
        if failure is not None:
            raise failure
        if not done:
            raise RemoteError(f"rank {self.clients[0]}: {value}")
        return value

    def together(self, function: Callable[[], Any]) -> list[Any]:
        """Run `function` on every compute rank and return all results, by rank, on each. Collective over compute.

        An exception on one rank is raised on all: there as it is, elsewhere as RemoteError with its text. Results must
        be small and picklable.
        """
        failure: BaseException | None = None
        mine: tuple[bool, Any]
        with self.within("World.together"):
            try:
                mine = (True, function())
            except Exception as error:
                failure, mine = error, (False, describe(error))
            everybody = self.gather(mine)
        if failure is not None:
            raise failure
        for rank, (done, value) in zip(self.clients, everybody, strict=True):
            if not done:
                raise RemoteError(f"rank {rank}: {value}")
        return [value for _, value in everybody]

    def broadcast(self, value: Any) -> Any:
        """Send compute rank 0's picklable `value` to every compute rank, without spinning. Collective over compute."""
        root = self.rank == self.clients[0]
        data = pickle.dumps(value, protocol=5) if root else b""
        (length,) = self.meet("World.broadcast", len(data))
        buffer = np.frombuffer(data, np.uint8).copy() if root else np.empty(int(length), np.uint8)
        for piece in pieces(buffer):
            self.wait_all([self.compute.Ibcast(piece, root=0)])
        return value if root else pickle.loads(buffer)

    def gather(self, value: Any) -> list[Any]:
        """Return every compute rank's picklable `value` on every compute rank, without spinning. Collective over
        compute. For small values."""
        data = np.frombuffer(pickle.dumps(value, protocol=5), np.uint8).copy()
        (total,) = self.meet("World.gather", len(data))
        lengths = np.zeros(len(self.clients), np.int64)
        self.wait_all([self.compute.Iallgather(np.array([len(data)], np.int64), lengths)])
        everything = np.empty(int(total), np.uint8)
        self.wait_all(begin_allgather(self.compute, data, everything, lengths))
        return [pickle.loads(part) for part in np.split(everything, np.cumsum(lengths)[:-1])]

    def barrier(self) -> None:
        """Wait until every compute rank is here, serving meanwhile. Collective over compute."""
        self.meet("World.barrier")

    # -- the end ---------------------------------------------------------------------------------------------------

    def on_close(self, function: Callable[[], None]) -> None:
        """Call `function` when the world closes, before its communicators are freed; last added, first called."""
        self._on_close.append(function)

    def forget_close(self, function: Callable[[], None]) -> None:
        """Undo on_close. Local."""
        if function in self._on_close:
            self._on_close.remove(function)

    def abort(self, error: BaseException | None = None, exit_code: int = 1) -> None:
        """End all ranks now, with one message. Local; does not return in a world of several ranks.

        Ranks that know less, or the same as rank 0, give it the word for a moment.
        """
        end_all(self, error, exit_code)

    def serve(self) -> None:
        """Serve this server rank's rows until the compute ranks close the world. Collective over the server ranks."""
        from hybridmpi.sparse.service import serve

        self._has_served = True
        serve(self)

    def close(self) -> None:
        """Free the communicators; a second call does nothing. Collective over the world.

        Compute ranks wait for each other and release the servers; a server rank that has not served yet does so now.
        """
        if self._closed:
            return
        while self._on_close:
            self._on_close.pop()()
        if self.is_server:
            if not self._has_served:
                self.serve()
        else:
            from hybridmpi.sparse.service import command_servers

            self.begin_meeting("World.close", where="World.close, since its main has returned")
            self._gate.finish()
            command_servers(self, "end", None, {})
        self._closed = True
        forget_abort_hook(self)
        for comm in (self.leaders, self.server, self.compute, self.node, self.comm):
            if comm is not None:
                comm.Free()

    def __enter__(self) -> World:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: Any) -> None:
        if error is None or (isinstance(error, SystemExit) and not error.code):
            try:
                self.close()
                return
            except BaseException as failure:
                if self.size == 1:
                    raise
                error = failure
        if self.size > 1:
            self.abort(error, exit_code_of(error))


def run(main: Callable[[World], Any], servers: Servers = "per-node", **options: Any) -> Any:
    """Run `main(world)` on the compute ranks while the server ranks serve; return its result (None on servers).
    Collective over the launch communicator.

    Servers serve until every compute rank has returned. An exception on one rank ends all ranks; on a single rank it
    is simply raised. `options` go to World.

    From the first Trainer on, USR1, USR2 and TERM end `fit` after the same step on all ranks, with `trainer.stopped`
    true: main goes on from there, saves, and returns; then the program ends with exit code 75, which asks to be started
    again. With an `asked_to_stop` of your own (see World) signals and exit code are yours.
    """
    stop = StopRequest()
    with World(servers, **{"asked_to_stop": stop, **options}) as world:
        # A server rank serves when its world closes.
        result = None if world.is_server else main(world)
    if world.stopped and "asked_to_stop" not in options:
        stop.ignore()
        sys.exit(STOPPED)
    stop.restore()
    return result


def share_cores(node: MPI.Intracomm) -> None:
    """Limit the BLAS threads of this rank to its share of the cores it may use. Collective over `node`.

    Every rank of a node would otherwise start a thread per core. Ranks that are bound to cores of their own share
    with nobody; a quota of processor time, as a container has, is shared by all. A limit that is already lower is kept.
    """
    from threadpoolctl import threadpool_info, threadpool_limits

    mine = frozenset(os.sched_getaffinity(0))
    everybody = node.allgather((mine, quota_of_groups()))
    sharing = sum(1 for cores, _ in everybody if cores & mine)
    quota = min((quota for _, quota in everybody if quota is not None), default=None)
    share = len(mine) // sharing
    if quota is not None:
        share = min(share, math.ceil(quota) // len(everybody))
    share = max(1, share)
    if any(pool["num_threads"] > share for pool in threadpool_info()):
        threadpool_limits(limits=share)
