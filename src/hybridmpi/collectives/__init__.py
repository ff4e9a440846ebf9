"""All-reduce: one file per algorithm, the naive oracle, the buckets that gradients travel in."""

from hybridmpi.collectives.buckets import Bucket, layout
from hybridmpi.collectives.naive import naive
from hybridmpi.collectives.ring import ring

# Every algorithm has the same face: algorithm(comm, buffer) sums in place and returns the bytes this rank sent.
ALGORITHMS = {"naive": naive, "ring": ring}

__all__ = ["ALGORITHMS", "Bucket", "layout", "naive", "ring"]
