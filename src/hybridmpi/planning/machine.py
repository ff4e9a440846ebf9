"""The machine that a plan is for: how many ranks are where, and how fast links, memory and owners are.

All constants of the cost model are fields of `Machine`, each with the reason for its default: figures of one core of a
current server processor and of Python's overhead there. `Machine.calibrated` puts measured numbers in their place.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Self

import numpy as np

from hybridmpi.collectives.calibration import fit
from hybridmpi.errors import UsageError

# Up to so many nodes each is looked at by itself; of more, one for all that have as many ranks of each sort.
EACH_NODE = 64

# What of a link's rate sums of dense gradients have been measured to reach over TCP (docs/performance.md): headers of
# frames take 4.4 %, the rest is time in which nothing is under way.
PAYLOAD = 0.92


@dataclass(frozen=True)
class NodeKinds:
    """Nodes that are looked at: one of each kind, `node[k]`, which stands for `count[k]` nodes; `of_node[n]`: a node's
    kind. `compute[k]`: compute ranks of such a node, float64. For each kind and owner: `is_far[k, o]`, whether that
    node reaches it over its link; `far[k, o]`, how many nodes of the kind do, float64."""

    node: np.ndarray
    count: np.ndarray
    of_node: np.ndarray
    compute: np.ndarray
    is_far: np.ndarray
    far: np.ndarray

    def most(self, per_node: np.ndarray) -> np.ndarray:
        """Return the largest of each kind's nodes, of numbers above 0. Local."""
        found = np.zeros(len(self.node))
        np.maximum.at(found, self.of_node, per_node)
        return found

    def mean(self, per_node: np.ndarray) -> np.ndarray:
        """Return the mean over each kind's nodes. Local."""
        return np.bincount(self.of_node, weights=per_node, minlength=len(self.node)) / self.count


@dataclass(frozen=True)
class Machine:
    """Nodes with compute ranks and servers on them, and rates in bytes and seconds.

    `compute[n]`, `servers[n]`: ranks on node n; without any server the compute ranks hold the rows.
    """

    compute: tuple[int, ...]
    servers: tuple[int, ...]

    # A node's link, bytes/s each way at the same time: 1 Gbit/s, of which `PAYLOAD` arrives.
    link_rate: float = PAYLOAD * 1e9 / 8
    # Bytes that a link which has rested takes in at once before its rate counts, as shaped ones do; None: nothing.
    link_burst: float | None = None
    # Until eight bytes have come to another node, one way, MPI and TCP included.
    latency: float = 50e-6
    # What a message to another node's slot takes its sender: Put, Flush, Put of the counter, Flush, all from Python. In
    # a Flush it waits for the receiver's MPI.
    message_seconds: float = 250e-6
    # The same on the sender's node, where Put is a copy.
    near_message_seconds: float = 40e-6
    # Until a rank that waits has seen that a message has come: it sleeps up to a millisecond (waiting.py).
    notice_seconds: float = 200e-6
    # Bytes/s that one rank copies: half of the 10 to 14 GB/s of memory, as a copy also fetches what it overwrites.
    memory_rate: float = 7e9
    # Bytes/s of memory traffic of all ranks of a node together: a sum of 16 MiB on two ranks took 2.5 ms.
    node_memory_rate: float = 25e9
    # Bytes/s of rows that are gathered from a table: about half of a copy.
    gather_rate: float = 5e9
    # Sorting, finding and summing duplicates: seconds for each row, and for each byte of its values.
    aggregate_row: float = 40e-9
    aggregate_byte: float = 0.2e-9
    # The optimiser: seconds for each byte of values and of each state array that it reads and writes.
    update_byte: float = 0.2e-9
    # Arithmetic of a training step, one thread: 65 GFLOP/s were seen in the language model, elementwise work included.
    flops: float = 60e9
    # Values, optimiser state and gradients of tables that may be copied to all ranks of a node, together.
    replica_bytes: float = 4 << 30
    # Cores of all nodes together. With fewer than ranks, work takes longer; None: as many as ranks.
    cores: float | None = None

    def __post_init__(self) -> None:
        if not self.compute or len(self.compute) != len(self.servers) or sum(self.compute) < 1:
            raise UsageError(
                f"Machine: compute ranks {self.compute} and servers {self.servers} of the nodes: expected one number "
                "each for every node, and at least one compute rank"
            )
        if min(*self.compute, *self.servers) < 0:
            raise UsageError(f"Machine: compute ranks {self.compute}, servers {self.servers}: expected none below 0")
        for field in fields(self)[2:]:
            value = getattr(self, field.name)
            if value is not None and not 0 < value < math.inf:
                raise UsageError(f"Machine: {field.name} = {value}: expected a number above 0")

    @classmethod
    def calibrated(
        cls,
        compute: Sequence[int],
        servers: Sequence[int],
        exchanges: Sequence[tuple[float, float]] = (),
        **rates: float,
    ) -> Self:
        """Return a machine with measured numbers in place of the defaults. Local.

        `exchanges`: two or more (bytes, seconds) of exchanges each way between ranks of different nodes, all nodes at
        once; latency and link rate are fitted through the smallest and the largest. `rates`: any other constant by its
        name (see `measure_rates`). Raises UsageError for an unknown name or an impossible number.
        """
        known = [field.name for field in fields(cls)[2:]]
        for name in rates:
            if name not in known:
                raise UsageError(f"Machine.calibrated: unknown constant '{name}'; known: {', '.join(known)}")
        if exchanges:
            small, large = min(exchanges), max(exchanges)
            if small[0] == large[0]:
                raise UsageError(f"Machine.calibrated: exchanges of {small[0]} bytes only: expected two sizes")
            link = fit(small, large)
            rates = {"latency": link.latency, "link_rate": 1 / max(link.per_byte, 1e-15)} | rates
        return replace(cls(tuple(compute), tuple(servers)), **rates)

    @property
    def nodes(self) -> int:
        """How many nodes there are."""
        return len(self.compute)

    @property
    def ranks(self) -> int:
        """How many compute ranks there are."""
        return sum(self.compute)

    @property
    def embedded(self) -> bool:
        """Whether the compute ranks hold the rows."""
        return not any(self.servers)

    @cached_property
    def owner_nodes(self) -> np.ndarray:
        """The node of each owner, in the order of their numbers, int64 [owners]."""
        return np.repeat(np.arange(self.nodes), self.compute if self.embedded else self.servers)

    @cached_property
    def kinds(self) -> NodeKinds:
        """The nodes that the cost model looks at."""
        ranks = np.array([self.compute, self.servers])
        if self.nodes <= EACH_NODE:
            node = of_node = np.arange(self.nodes)
        else:
            _, node, of_node = np.unique(ranks, axis=1, return_index=True, return_inverse=True)
            of_node = of_node.reshape(-1)
        count = np.bincount(of_node, minlength=len(node)).astype(np.float64)
        own = of_node[self.owner_nodes] == np.arange(len(node))[:, None]
        is_far = node[:, None] != self.owner_nodes
        return NodeKinds(node, count, of_node, ranks[0, node].astype(np.float64), is_far, count[:, None] - own)

    @property
    def owners(self) -> int:
        """How many ranks hold rows."""
        return len(self.owner_nodes)

    def crowding(self, ranks: int) -> float:
        """Return how many times longer work takes when so many ranks work at once. Local."""
        return max(1.0, ranks / self.cores) if self.cores else 1.0
