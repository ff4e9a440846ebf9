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
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from hybridmpi import environment
from hybridmpi.cores import quota_of_groups
from hybridmpi.errors import HybridMPIError, LaunchError, RemoteError
from hybridmpi.failures import describe, exit_code_of, forget_abort_hook, install_abort_hook, speak
from hybridmpi.memory import keep_freed_memory
from hybridmpi.mpi_files import moved_to
from hybridmpi.mpi_implementations import HOW_TO_INSTALL, RANKED, Implementation, of_library
from hybridmpi.recording import Recording
from hybridmpi.roles import Servers, assign_servers
from hybridmpi.singletons import refuse_singletons
from hybridmpi.waiting import wait_all, wait_until

if TYPE_CHECKING:
    from mpi4py import MPI

# Where the kernel lists network devices that MPI drives by more than TCP.
FABRICS = ("/sys/class/infiniband", "/sys/class/cxi")


def load_mpi() -> Any:
    """Import and return mpi4py's MPI with the thread level that hybridmpi needs. Local.

    Only the main thread calls MPI, so FUNNELED is enough; mpi4py would ask for MULTIPLE, which some one-sided
    components refuse. The level can only be chosen before the first import. Raises LaunchError without an MPI.
    """
    first = "mpi4py.MPI" not in sys.modules
    try:
        import mpi4py

        if first:  # what MPI must be told before it starts depends on which one it is
            mpi4py.rc.initialize = False
            mpi4py.rc.finalize = True
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        raise LaunchError(
            f"no MPI library could be loaded ({error}). {HOW_TO_INSTALL}; 'hybridmpi doctor' says what else is amiss"
        ) from error
    if not MPI.Is_initialized():
        if known := of_library(MPI.Get_library_version()):
            environment.set_defaults(variables_of_process(known[0]))
        MPI.Init_thread(MPI.THREAD_FUNNELED)
    if MPI.Query_thread() < MPI.THREAD_FUNNELED:
        raise LaunchError(
            "MPI runs at thread level SINGLE, hybridmpi needs FUNNELED: "
            "import hybridmpi before mpi4py.MPI, or set mpi4py.rc.thread_level = 'funneled' first"
        )
    return MPI


def variables_of_process(mpi: Implementation) -> dict[str, str]:
    """Return what a process must tell `mpi` by variables before it starts it, whatever has started the process. Local.

    What ranks send messages by must be the same on all hosts: only a process alone can choose it here.
    """
    if not any(environment.text(name) for name in RANKED):
        wanted = dict(mpi.alone)
    else:
        wanted = {} if has_fabric() else dict(mpi.for_windows)
    if mpi.needs_home:
        wanted["HOME"] = environment.home()
    if prefix := moved_to(mpi):
        wanted[mpi.prefix] = prefix
    return wanted


def has_fabric() -> bool:
    """Return whether this host has a network device that MPI drives by more than TCP (InfiniBand, Slingshot). Local."""
    return any(os.path.isdir(folder) and os.listdir(folder) for folder in FABRICS)


# A server rank that a signal has asked to stop tells compute rank 0 so.
TAG_STOP = 13

# Nobody sends with this tag: a probe for it finds nothing, but makes MPI move what it has to.
TAG_OF_NOTHING = 32_000


class World:
    """The communicators of one job and the role of this rank. Collective over the launch communicator.

    `servers`: "per-node", a number, or 0 (the compute ranks hold the shards and serve between their own work).
    `nodes_of_ranks`: a function from world rank to node number that replaces the detected shared-memory nodes, to
    place ranks by hand or to exercise the paths between nodes on one machine; ranks given the same node must really
    share memory. `asked_to_stop`: tells whether a signal has asked this rank to stop (see stop_requested).

    Use it in a `with` statement: leaving it normally frees the communicators, leaving it by an exception ends all
    ranks at once with one message. Without mpirun the world has one rank, which does everything.
    """

    def __init__(
        self,
        servers: Servers = "per-node",
        comm: MPI.Intracomm | None = None,
        nodes_of_ranks: Callable[[int], int] | None = None,
        asked_to_stop: Callable[[], bool] = lambda: False,
    ) -> None:
        mpi = load_mpi()
        self.mpi = mpi
        launch = mpi.COMM_WORLD if comm is None else comm
        refuse_singletons(mpi.COMM_WORLD.Get_size())
        self.comm = launch.Dup()
        self.comm.Set_name("hybridmpi.world")
        self.rank, self.size = self.comm.Get_rank(), self.comm.Get_size()
        self._progress: list[Callable[[], Any]] = []
        self._on_close: list[Callable[[], None]] = []
        # While a timeline of this job is recorded, what this rank does.
        self.recording: Recording | None = None
        self.asked_to_stop = asked_to_stop
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
        self.server = self._split(0 if self.is_server else undefined, "server")
        leads = not self.is_server and self.rank == min(
            r for r in self.clients if self.node_of[r] == self.node_of[self.rank]
        )
        self.leaders = self._split(0 if leads else undefined, "leaders")
        share_cores(self.node)
        keep_freed_memory()

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

    def stop_requested(self) -> bool:
        """Return whether this rank was asked to stop; compute rank 0 also speaks for the server ranks. Local."""
        if not self.asked_to_stop() and self.servers and self.on_root() and self.comm.Iprobe(tag=TAG_STOP):
            self.comm.recv(tag=TAG_STOP)
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
        return did

    def drive(self) -> bool:
        """Let MPI move its messages, and do what this rank owes to others; return whether there was anything of the
        latter. Local."""
        self.comm.Iprobe(self.rank, TAG_OF_NOTHING)
        return self.progress()

    def wait_until(self, predicate: Callable[[], Any]) -> None:
        """Wait for `predicate`, serving others meanwhile. Local.

        What is waited for need not be MPI's, and another rank may be waiting for MPI on this one to move a message of
        a collective that this one has done with: so every such wait drives MPI.
        """
        wait_until(predicate, self.drive)

    def wait_all(self, requests: Sequence[Any]) -> None:
        """Complete MPI requests, serving others meanwhile. Local."""
        wait_all(requests, self.progress if self._progress else None)

    # -- what root does, everybody knows ---------------------------------------------------------------------------

    def from_root(self, function: Callable[[], Any]) -> Any:
        """Run `function` on compute rank 0 and return its result on every compute rank. Collective over compute.

        An exception travels too: root raises it, the others raise RemoteError with its text, so that nobody waits for
        a rank that has failed. The result must be picklable.
        """
        if self.compute is None:
            raise HybridMPIError(f"rank {self.rank} is {self.role}: only compute ranks take part in from_root")
        failure: BaseException | None = None
        message: tuple[bool, Any] = (True, None)
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
        import pickle

        import numpy as np

        comm = self.compute
        root = comm.Get_rank() == 0
        data = np.frombuffer(pickle.dumps(value, protocol=5), np.uint8) if root else None
        length = np.array([len(data) if root else 0], np.int64)
        self.wait_all([comm.Ibcast(length, root=0)])
        buffer = data.copy() if root else np.empty(int(length[0]), np.uint8)
        # Open MPI takes counts below 2^31 only.
        for start in range(0, len(buffer), 1 << 30):
            self.wait_all([comm.Ibcast(buffer[start : start + (1 << 30)], root=0)])
        return value if root else pickle.loads(buffer)

    def gather(self, value: Any) -> list[Any]:
        """Return every compute rank's picklable `value` on every compute rank, without spinning. Collective over
        compute. For small values."""
        import pickle

        import numpy as np

        comm = self.compute
        data = np.frombuffer(pickle.dumps(value, protocol=5), np.uint8).copy()
        lengths = np.zeros(comm.Get_size(), np.int64)
        self.wait_all([comm.Iallgather(np.array([len(data)], np.int64), lengths)])
        everything = np.empty(int(lengths.sum()), np.uint8)
        offsets = np.concatenate([[0], np.cumsum(lengths)])
        self.wait_all([comm.Iallgatherv(data, [everything, lengths.tolist(), offsets[:-1].tolist(), self.mpi.BYTE])])
        return [pickle.loads(everything[a:b]) for a, b in zip(offsets[:-1], offsets[1:], strict=True)]

    def barrier(self) -> None:
        """Wait until every compute rank is here, serving meanwhile. Collective over compute."""
        self.wait_all([self.compute.Ibarrier()])

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
        sys.stdout.flush()
        if error is not None:
            speak(self, error)
        self.comm.Abort(exit_code)

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

            self.barrier()
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
            self.close()
        elif self.size > 1:
            self.abort(error, exit_code_of(error))


def run(main: Callable[[World], Any], servers: Servers = "per-node", **options: Any) -> Any:
    """Run `main(world)` on the compute ranks while the server ranks serve; return its result (None on servers).
    Collective over the launch communicator.

    Servers serve until every compute rank has returned. An exception on one rank ends all ranks; on a single rank it
    is simply raised. `options` go to World.
    """
    with World(servers, **options) as world:
        # A server rank serves when its world closes.
        return None if world.is_server else main(world)


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
