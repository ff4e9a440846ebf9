"""All-reduce: one file per algorithm, the naive oracle, shared memory, and the buckets that gradients travel in."""

from hybridmpi.collectives.buckets import Bucket, layout
from hybridmpi.collectives.group import Group
from hybridmpi.collectives.halving_doubling import halving_doubling
from hybridmpi.collectives.mpi_own import mpi_own
from hybridmpi.collectives.naive import naive
from hybridmpi.collectives.recursive_doubling import recursive_doubling
from hybridmpi.collectives.reducer import AllReduce
from hybridmpi.collectives.ring import ring

# Every algorithm of messages has the same face: algorithm(group, buffer) sums in place over the group.
ALGORITHMS = {
    "naive": naive,
    "mpi": mpi_own,
    "recursive_doubling": recursive_doubling,
    "halving_doubling": halving_doubling,
    "ring": ring,
}

__all__ = [
    "ALGORITHMS",
    "AllReduce",
    "Bucket",
    "Group",
    "halving_doubling",
    "layout",
    "mpi_own",
    "naive",
    "recursive_doubling",
    "ring",
]
