"""All-reduce: one file per algorithm, the naive oracle, shared memory, and the buckets that gradients travel in."""

from hybridmpi.collectives.algorithms import ALGORITHMS
from hybridmpi.collectives.buckets import Bucket, layout
from hybridmpi.collectives.group import Group
from hybridmpi.collectives.reducer import AllReduce
from hybridmpi.collectives.steps import finish
from hybridmpi.collectives.topology import Topology, discover
from hybridmpi.collectives.wire import WIRES, wire_for

__all__ = [
    "ALGORITHMS",
    "WIRES",
    "AllReduce",
    "Bucket",
    "Group",
    "Topology",
    "discover",
    "finish",
    "layout",
    "wire_for",
]
