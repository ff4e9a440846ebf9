"""Every all-reduce against an exact sum, on every size that has tripped one."""

import numpy as np

from hybridmpi.arrays import fit_to_send
from hybridmpi.collectives import ALGORITHMS, layout, naive, ring
from hybridmpi.collectives.ring import bytes_sent
from hybridmpi.errors import HybridMPIError


def contribution(rank: int, size: int, dtype: np.dtype) -> np.ndarray:
    """Whole numbers whose sums are exact in float32, different on every rank and element."""
    return ((np.arange(size) * 7 + rank * 13) % 1001 - 500).astype(dtype)


def check_sums(comm):
    ranks, rank = comm.Get_size(), comm.Get_rank()
    sizes = [0, 1, ranks - 1, ranks, ranks + 1, 1023, 65_537, 3 * (1 << 20) + 5]
    for name, algorithm in ALGORITHMS.items():
        for dtype in (np.float32, np.float64):
            for size in sizes:
                buffer = contribution(rank, size, dtype)
                expected = sum(contribution(r, size, dtype) for r in range(ranks)) + np.zeros(size, dtype)
                algorithm(comm, buffer)
                assert np.array_equal(buffer, expected), (name, dtype, size)


def check_small_chunks(comm):
    """Segments of many chunks, the last one short."""
    ranks, rank = comm.Get_size(), comm.Get_rank()
    for size in (1, 17, 1000, 4099):
        buffer = contribution(rank, size, np.float32)
        ring(comm, buffer, chunk_bytes=64)
        assert np.array_equal(buffer, sum(contribution(r, size, np.float32) for r in range(ranks)))


def check_same_bits_everywhere(comm):
    """Random floats: every rank must end with identical bits, or the replicas drift apart."""
    rng = np.random.default_rng(comm.Get_rank())
    for name, algorithm in ALGORITHMS.items():
        buffer = rng.standard_normal(10_001).astype(np.float32)
        exact = comm.allreduce(buffer.astype(np.float64))
        algorithm(comm, buffer)
        first = comm.bcast(buffer, 0)
        assert comm.allreduce(int(np.array_equal(buffer, first))) == comm.Get_size(), name
        assert np.allclose(buffer, exact, atol=1e-5), name


def check_bytes(comm):
    """The count that an algorithm returns is the formula: 2 (p - 1) / p n over all ranks, exactly."""
    ranks = comm.Get_size()
    for size in (0, 1, ranks, 1000, 1001):
        sent = comm.allgather(ring(comm, np.zeros(size, np.float32)))
        assert sum(sent) == 2 * (ranks - 1) * size * 4, (size, sent)
        assert sent == [bytes_sent(size, 4, ranks, r) for r in range(ranks)]


def check_unfit_buffers_are_refused(comm):
    for buffer in (np.zeros((4, 4), np.float32).T[:, :2], np.zeros(8, ">f4"), np.zeros(8, bool)):
        for algorithm in (naive, ring):
            try:
                algorithm(comm, buffer)
            except HybridMPIError:
                continue
            raise AssertionError(f"{algorithm.__name__} took a buffer with {buffer.flags} {buffer.dtype}")


def check_fortran_order_survives_the_wire(comm):
    matrix = np.asfortranarray(np.arange(12, dtype=np.float32).reshape(3, 4))
    received = np.empty((3, 4), np.float32)
    comm.Allreduce(fit_to_send(matrix), received)
    assert np.array_equal(received, matrix * comm.Get_size())


def check_buckets(comm):
    shapes = [("b", (3, 5), "f4"), ("a", (7,), "f4"), ("c", (40, 40), "f4"), ("d", (2,), "f8"), ("e", (0, 3), "f4")]
    buckets = layout(shapes, bucket_bytes=512)
    names = [[part.name for part in bucket.slices] for bucket in buckets]
    assert names == [["a", "b"], ["c"], ["e"], ["d"]], names
    for bucket in buckets:
        for part in bucket.slices:
            bucket.view(bucket.gradients, part)[...] = comm.Get_rank() + 1
        ring(comm, bucket.gradients)
        for part in bucket.slices:
            assert (bucket.view(bucket.gradients, part) == sum(range(1, comm.Get_size() + 1))).all()
