"""The table of the algorithms that travel by messages."""

from hybridmpi.collectives.halving_doubling import halving_doubling
from hybridmpi.collectives.mpi_own import mpi_own
from hybridmpi.collectives.naive import naive
from hybridmpi.collectives.recursive_doubling import recursive_doubling
from hybridmpi.collectives.ring import ring
from hybridmpi.collectives.two_level import two_level

# Every one has the same face: algorithm(group, buffer, wire) returns the steps of a sum in place.
ALGORITHMS = {
    "naive": naive,
    "mpi": mpi_own,
    "recursive_doubling": recursive_doubling,
    "halving_doubling": halving_doubling,
    "ring": ring,
    "two_level": two_level,
}
