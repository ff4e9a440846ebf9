"""The machine that the ranks of a world run on, measured in about a second: what `Machine`'s constants are here.

All ranks work at once, as they do in a step, so that what they share counts: the cores of a node, its link, and on an
emulated cluster one machine's cores. Every rank returns the same numbers.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from statistics import median

import numpy as np

from hybridmpi.collectives.calibration import exchange_seconds, partner
from hybridmpi.collectives.group import Group
from hybridmpi.optim import SGD
from hybridmpi.planning.machine import Machine
from hybridmpi.planning.rates import measure_rates
from hybridmpi.sparse.client import Client
from hybridmpi.sparse.exchange import Letter
from hybridmpi.sparse.service import Service
from hybridmpi.sparse.spec import TableSpec
from hybridmpi.world import World

# Long beside the time slices of the scheduler, some milliseconds, that ranks on one core get in turn.
COMPUTING_SECONDS = 0.1
# Cores are counted as one for each rank from this share on: a loop is disturbed by more than other ranks.
ALL_CORES = 0.9

# An exchange takes so long, beside which what a link takes in at once is little, or has so many bytes.
LONG_EXCHANGE, LARGEST = 30e-3, 4 << 20
# So many of them tell the rate; the first is shorter by more than this share where the link has a burst.
MORE, LEAST_SAVED = 3, 0.05

# Messages and requests of each kind; their median counts, as any step has them.
TRIES = 9
# Between them owners wait as long as they do in a step, and so sleep as they do there.
PAUSE = 4e-3
SHORTEST_NOTICE = 10e-6
ROWS, DIM = 4, 16  # of each owner, in the table that is asked for


def measure_machine(world: World) -> Machine:
    """Return the machine that `world` runs on, the same on every rank. Collective over compute; the servers come along.

    Takes about a second, plus compiling where a kernel has never run.
    """
    compute, servers = (
        [sum(world.node_of[rank] == node for rank in ranks) for node in range(world.nodes)]
        for ranks in (world.clients, world.servers)
    )
    found = _slowest(world.together(measure_rates))
    # Of the ranks of the fullest node together; a copy reads and writes.
    found["node_memory_rate"] = 2 * found["memory_rate"] * max(compute)
    cores = _measure_cores(world)
    if cores < ALL_CORES * len(world.clients):
        found["cores"] = cores
    found |= _measure_link(world)
    found |= _measure_messages(world, found.get("latency", 0.0))
    return Machine.calibrated(compute, servers, **found)


def _slowest(rates: Sequence[dict[str, float]]) -> dict[str, float]:
    """Return of each constant the slowest rank's: the lowest rate, the longest time."""
    return {name: (min if name.endswith("_rate") else max)(rank[name] for rank in rates) for name in rates[0]}


def _measure_cores(world: World) -> float:
    """Return how many cores the compute ranks have together when all work at once: what they do in a second, over what
    one of them does in a second of its own processor time."""
    matrix = np.ones((64, 64), np.float32)

    def work() -> tuple[float, float]:
        """Return the products of a second, and of a second on a core."""
        done, started, on_core = 0, time.perf_counter(), time.thread_time()
        while (seconds := time.perf_counter() - started) < COMPUTING_SECONDS:
            matrix @ matrix
            done += 1
        return done / seconds, done / max(time.thread_time() - on_core, 1e-9)

    _, alone = world.from_root(work)
    world.barrier()
    together = sum(rate for rate, _ in world.together(work))
    return together / alone


def _measure_link(world: World) -> dict[str, float]:
    """Return `latency` and `link_rate` of a node, nothing where there is one node only: a rank of each node exchanges
    with one of another, all at once."""
    found = None
    if world.leaders is not None and world.leaders.Get_size() > 1:
        group = Group(world.leaders, [(0, node) for node in range(world.leaders.Get_size())])
        other = partner(group.places, group.index, "supernode")
        latency, size = exchange_seconds(group, other, 8, 8, world.wait_until), 64 << 10
        while exchange_seconds(group, other, size, 1, world.wait_until, tries=1) < LONG_EXCHANGE and size < LARGEST:
            size *= 4
        # A link that has rested may take some in at once: then the first of several exchanges is shorter.
        once, several = [], []
        for _ in range(2):
            for times, sums in ((1, once), (MORE, several)):
                time.sleep(LONG_EXCHANGE)
                sums.append(times * exchange_seconds(group, other, size, times, world.wait_until, tries=1))
        seconds = max((min(several) - min(once)) / (MORE - 1) - latency, min(once) / 2 - latency, 1e-9)
        found = {"latency": latency, "link_rate": size / seconds}
        if (saved := 1 - (min(once) - latency) / seconds) > LEAST_SAVED:
            found["link_burst"] = saved * size
    return next((link for link in world.gather(found) if link is not None), {})


def _measure_messages(world: World, latency: float) -> dict[str, float]:
    """Return `message_seconds`, `near_message_seconds` and `notice_seconds`, those that this world has."""
    owners = len(world.owners)
    spec = TableSpec(
        "measured", owners * ROWS, DIM, np.dtype("f4"), ("constant", 0.0), "sum", "cyclic", SGD(0.1), seed=1
    )
    service = Service.open(world, [spec], "message")
    client, rank = service.client, world.compute.Get_rank()
    far = [owner for owner, r in enumerate(world.owners) if not world.same_node(r)]
    near = [owner for owner, r in enumerate(world.owners) if world.same_node(r)]
    sent, near_sent, asked_one, asked_all, told = [], [], [], [], []
    # Messages come first, since they say that there is no push yet. Ranks begin at different owners.
    for k in range(TRIES):
        if far:
            sent.append(_send(client, far[(rank + k) % len(far)]))
        if near:
            near_sent.append(_send(client, near[k % len(near)]))
        world.barrier()
    for k in range(TRIES):
        for ids, times in ((far[(rank + k) % len(far)] if far else 0, asked_one), (far, asked_all)):
            if far:
                time.sleep(PAUSE)
                times.append(_seconds(lambda ids=ids: client.pull(0, np.atleast_1d(ids))))
            world.barrier()
        time.sleep(PAUSE)
        client.push([], 1.0)
        told.append(_seconds(client.wait_for_version))
        world.barrier()
    everybody = world.gather((sent, near_sent, asked_one, asked_all, told))
    service.close()  # not after an error, which other ranks do not have: it is collective
    message, near_message, one, many, version = (_typical(times) for times in zip(*everybody, strict=True))
    if one is None:
        # The owners see the last push and tell every rank, which sees that.
        return {
            "near_message_seconds": near_message,
            "notice_seconds": max((version - len(world.clients) * near_message) / 2, SHORTEST_NOTICE),
        }
    # A message there until it has come and is seen, and one back. Each further owner takes one of the rank's, and each
    # further rank one of the owner's.
    nodes, holders = ([world.node_of[rank] for rank in ranks] for ranks in (world.clients, world.owners))
    further = max(len(holders) - holders.count(node) for node in nodes)
    further += max(len(nodes) - nodes.count(node) for node in holders) - 2
    if further > 0:
        message = min(max((many - one) / further, one / 20), one / 2)
    found = {"message_seconds": message, "notice_seconds": max(one / 2 - message - latency, SHORTEST_NOTICE)}
    return found if near_message is None else found | {"near_message_seconds": near_message}


def _typical(of_ranks: Sequence[Sequence[float]]) -> float | None:
    """Return the median of all ranks' times; None where no rank has any."""
    everything = [seconds for times in of_ranks for seconds in times]
    return median(everything) if everything else None


def _seconds(function: Callable[[], object]) -> float:
    started = time.perf_counter()
    function()
    return time.perf_counter() - started


def _send(client: Client, owner: int) -> float:
    """Return the seconds of a message to an owner that says nothing: bytes in a slot, and the count of no pushes."""
    target, mine = client.world.owners[owner], client.world.clients.index(client.world.rank)
    started = time.perf_counter()
    client.exchange.push(mine, [Letter(target, np.zeros(24, np.uint8), 0)])
    return time.perf_counter() - started
