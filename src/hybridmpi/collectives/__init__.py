"""All-reduce: one file per algorithm, the naive oracle, shared memory, and the buckets that gradients travel in."""

from hybridmpi.collectives.buckets import Bucket, layout
from hybridmpi.collectives.group import Group
from hybridmpi.collectives.halving_doubling import halving_doubling
from hybridmpi.collectives.mpi_own import mpi_own
from hybridmpi.collectives.naive import naive
from hybridmpi.collectives.recursive_doubling import recursive_doubling
from hybridmpi.collectives.reducer import AllReduce
from hybridmpi.collectives.ring import ring
from hybridmpi.collectives.steps import Operation, finish
from hybridmpi.collectives.two_level import two_level
from hybridmpi.collectives.wire import WIRES, wire_for

# Every algorithm of messages has the same face: algorithm(group, buffer, wire) returns the steps of a sum in place.
ALGORITHMS = {
    "naive": naive,
    "mpi": mpi_own,
    "recursive_doubling": recursive_doubling,
    "halving_doubling": halving_doubling,
    "ring": ring,
    "two_level": two_level,
}

__all__ = [
    "ALGORITHMS",
    "WIRES",
    "AllReduce",
    "Bucket",
    "Group",
    "Operation",
    "finish",
    "halving_doubling",
    "layout",
    "mpi_own",
    "naive",
    "recursive_doubling",
    "ring",
    "two_level",
    "wire_for",
]
