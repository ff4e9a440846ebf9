"""What ranks send each other: a small all-reduce, and the windows of hybridmpi with a target that sleeps.

All is done with the classes that training uses, so what is seen here is what a job will see. Every rank runs the same
collectives whatever it finds.
"""

from __future__ import annotations

import mmap
import time
from collections.abc import Sequence

import numpy as np

from hybridmpi.doctor.finding import Finding, fail, ok, seconds_text, size_text, warn
from hybridmpi.mpi_implementations import Implementation
from hybridmpi.mpi_start import has_fabric
from hybridmpi.sparse.exchange import Exchange, Letter, RowMemory, slot_sizes
from hybridmpi.world import World

SLOW_ALL_REDUCE = 1e-3
FAST_ALL_REDUCE = 1e-4
BATCH = 10
# An all-reduce is timed until it was once fast, or so many seconds have gone: what else the machine does is no fault.
TIMED_SECONDS = 0.3
# How long a target sleeps, seconds; an origin that waits for half of it waits for the target.
SLEEP = 0.2
# What a push to a rank of another node, which waits in its progress loop, may take beyond what the network needs.
LATE = 0.05
MESSAGE = 64 << 10
BEYOND = 1 << 31
MAP_NORESERVE = 0x4000  # of Linux; Python names it from 3.13 on
# Of an MPI that is not known.
SLOW_WAITS = "start no more ranks than cores"
ONE_SIDED = "use another MPI, or its settings for passive-target progress"
MESSAGES = "try another MPI"


def all_reduce(world: World, mpi: Implementation | None) -> list[Finding]:
    """Return the time of an all-reduce of eight bytes: the least of several batches. Collective over the world."""
    total, seconds, spent = np.empty(1), np.inf, 0.0
    while seconds > FAST_ALL_REDUCE and spent < TIMED_SECONDS:
        latest = _batch(world)  # the same on all ranks, which therefore stop together
        seconds, spent = min(seconds, latest), spent + BATCH * latest
    world.comm.Allreduce(np.ones(1), total)
    ranks = f"{world.size} rank{'s' * (world.size > 1)}"
    if total[0] != world.size:
        text = f"the sum of ones over {ranks} is {total[0]:g}"
        return [fail("all-reduce", text, f"this MPI or its network is broken: {mpi.messages if mpi else MESSAGES}")]
    text = f"{seconds_text(seconds)} for 8 bytes over {ranks}"
    if seconds > SLOW_ALL_REDUCE:
        why = "waiting ranks spin on cores that others need, or the network is slow"
        return [warn("all-reduce", f"{text}: {why}", mpi.slow_waits if mpi else SLOW_WAITS)]
    return [ok("all-reduce", text)]


def _batch(world: World) -> float:
    """Return the seconds of one all-reduce, mean over a batch, the same on all ranks: of the slowest."""
    value, total = np.ones(1), np.empty(1)
    world.comm.Barrier()
    started = time.perf_counter()
    for _ in range(BATCH):
        world.comm.Allreduce(value, total)
    worst = np.array([(time.perf_counter() - started) / BATCH])
    world.comm.Allreduce(world.mpi.IN_PLACE, worst, op=world.mpi.MAX)
    return float(worst[0])


def windows(world: World, mpi: Implementation | None) -> list[Finding]:
    """Push to ranks that sleep, on each node, and to ranks that wait, between nodes. Collective over the world.

    On one node a push must arrive without help of its target, which may compute for long. Between nodes a target helps
    in every wait, and owners of rows do little else.
    """
    if world.size == 1:
        return [ok("one-sided", "one rank pushes to nobody; start several to see: hybridmpi launch -n 4 -- doctor")]
    sizes = slot_sizes(world.size, world.size, 64, replies=False, push=MESSAGE)
    exchange = Exchange(world, sizes)
    pushes = _Pushes(world, exchange)
    on_node = [[rank for rank in range(world.size) if world.node_of[rank] == node] for node in range(world.nodes)]
    found: list[Finding] = []
    remedy = mpi.one_sided if mpi else ONE_SIDED
    pairs = [(ranks[0], target) for ranks in on_node for target in ranks[1:2]]
    if pairs:
        waited = pushes.to_sleepers(pairs)
        if waited > SLEEP / 2:
            waited = min(waited, pushes.to_sleepers(pairs))  # once more: a busy machine delays a push too
        if waited > SLEEP / 2:
            text = f"a push waited {seconds_text(waited)} for a rank of its node that slept {seconds_text(SLEEP)}"
            found.append(fail(
                "one-sided", f"{text}: this MPI moves one-sided messages only while the target calls MPI, so every "
                "push waits for ranks that compute", remedy,
            ))  # fmt: skip
        else:
            found.append(ok("one-sided", f"a push to a sleeping rank takes {seconds_text(waited)} on a node"))
    if world.nodes > 1:
        leaders = [ranks[0] for ranks in on_node]
        waited = pushes.to_servers([*zip(leaders, leaders[1:], strict=False), (leaders[-1], leaders[0])])
        text = f"a push to a waiting rank of another node takes {seconds_text(waited)}"
        if waited > LATE:
            advice = mpi.slow_waits if mpi else SLOW_WAITS
            found.append(warn("between nodes", f"{text}: the network is slow or waits spin", advice))
        else:
            found.append(ok("between nodes", text))
    wrong = world.comm.allreduce(pushes.wrong)
    if wrong:
        found.append(fail("windows", f"{wrong} pushes arrived with other bytes than were sent", remedy))
    world.comm.Barrier()
    exchange.close()
    return found + _rows(world, remedy)


class _Pushes:
    """Pushes between pairs of ranks, numbered, with bytes that the target knows. Every rank makes the same calls."""

    def __init__(self, world: World, exchange: Exchange) -> None:
        self.world, self.exchange = world, exchange
        self.number = self.wrong = 0

    def to_sleepers(self, pairs: Sequence[tuple[int, int]]) -> float:
        """Push from each origin to a target that sleeps; return the longest time in seconds, on all ranks."""
        return self._push(pairs, asleep=True)

    def to_servers(self, pairs: Sequence[tuple[int, int]]) -> float:
        """Push along each pair in turn, while all others wait as ranks of a job do; return the longest time."""
        return max(self._push([pair], asleep=False) for pair in pairs)

    def _push(self, pairs: Sequence[tuple[int, int]], asleep: bool) -> float:
        world, exchange = self.world, self.exchange
        self.number += 1
        message = ((np.arange(MESSAGE) + self.number) % 251).astype(np.uint8)
        origins, targets = dict(pairs), {target: origin for origin, target in pairs}
        waited = 0.0
        world.comm.Barrier()
        if world.rank in origins:
            if asleep:
                time.sleep(SLEEP / 10)  # until the target sleeps
            started = time.perf_counter()
            exchange.push(world.rank, [Letter(origins[world.rank], message, self.number)])
            waited = time.perf_counter() - started
        elif world.rank in targets and asleep:
            time.sleep(SLEEP)
        everybody = np.array([waited])
        longest = np.empty(1)
        world.wait_all([world.comm.Iallreduce(everybody, longest, op=world.mpi.MAX)])
        if world.rank in targets:
            origin = targets[world.rank]
            exchange.see()
            exchange.see_counters()
            arrived = exchange.watch("push_sent")[origin] == self.number
            self.wrong += not (arrived and np.array_equal(exchange.slot(origin), message))
        return float(longest[0])


def _rows(world: World, remedy: str) -> list[Finding]:
    """Read the rows of all others of this node from shared memory, and of the next node by an indexed Get."""
    rows = RowMemory(world, [4096] * world.size, everywhere=world.nodes > 1)
    rows.own[:] = world.rank % 251
    world.comm.Barrier()
    wrong = 0
    for rank in range(world.size):
        if world.same_node(rank):
            wrong += not (rows.of(rank) == rank % 251).all()
    if world.nodes > 1:
        there = next(r for r in range(world.size) if world.node_of[r] == (world.node_of[world.rank] + 1) % world.nodes)
        out = np.zeros((3, 64), np.uint8)
        rows.get_rows(64, [(there, np.array([0, 7, 30]), out)])
        wrong += not (out == there % 251).all()
    # mpi4py does not keep what an Iallreduce sends, nor what a Put does: a name does.
    mine, counted = np.array([wrong]), np.zeros(1, np.int64)
    world.wait_all([world.comm.Iallreduce(mine, counted)])
    rows.close()
    if counted[0]:
        return [fail("windows", f"{counted[0]} reads of shared rows gave other values than were written", remedy)]
    return [ok("windows", "pushes, counters and rows read from others are right")]


def large(world: World) -> list[Finding]:
    """Put a number 2 GiB into a window, of which nothing but one page is ever touched. Collective over the world.

    Messages need no check: what hybridmpi sends goes in pieces below 2^31, which is all that Open MPI takes.
    """
    what = "2 GiB and more"
    if has_fabric():
        return [ok(what, "messages are split; a window that large was not tried: this network would lock its memory")]
    last = world.size - 1
    memory = mmap.mmap(-1, BEYOND + mmap.PAGESIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_NORESERVE)
    window = world.mpi.Win.Create(memory if world.rank == 0 else None, 1, comm=world.comm)
    window.Lock_all(world.mpi.MODE_NOCHECK)
    number, back = np.array([BEYOND]), np.zeros(1, np.int64)
    if world.rank == last:
        window.Put(number, 0, BEYOND)
        window.Flush(0)
        window.Get(back, 0, BEYOND)
        window.Flush(0)
    right = np.array([world.rank != last or back[0] == BEYOND], np.int64)
    agreed = np.zeros(1, np.int64)
    world.wait_all([world.comm.Iallreduce(right, agreed, op=world.mpi.MIN)])
    arrived = world.rank != 0 or int.from_bytes(memory[BEYOND : BEYOND + 8], "little") == BEYOND
    window.Unlock_all()
    window.Free()
    if not world.comm.allreduce(arrived and bool(agreed[0]), op=world.mpi.LAND):
        text = f"a number put {size_text(BEYOND)} into a window did not arrive there"
        return [fail(what, text, "use more servers, so that each holds less; or another MPI")]
    return [ok(what, "windows take displacements beyond; messages are split below")]
