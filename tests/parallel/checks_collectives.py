"""Every all-reduce against an exact sum, on every size that has tripped one."""

import itertools
import time
from unittest import mock

import numpy as np
from adversary.lazy import counting_to

from hybridmpi import large_counts
from hybridmpi.arrays import fit_to_send
from hybridmpi.collectives import ALGORITHMS, WIRES, AllReduce, Group, finish, layout, wire_for
from hybridmpi.collectives import two_level as two_level_module
from hybridmpi.collectives.halving_doubling import halving_doubling
from hybridmpi.collectives.naive import naive
from hybridmpi.collectives.ring import bytes_sent, ring
from hybridmpi.collectives.shared import SharedMemory, room_for
from hybridmpi.collectives.two_level import two_level
from hybridmpi.errors import HybridMPIError, UsageError
from hybridmpi.waiting import wait_until
from hybridmpi.world import World


def contribution(rank: int, size: int, dtype: np.dtype) -> np.ndarray:
    """Whole numbers whose sums are exact in float32, different on every rank and element."""
    return ((np.arange(size) * 7 + rank * 13) % 1001 - 500).astype(dtype)


def run(steps):
    finish(steps, wait_until)


def check_sums(comm):
    ranks, rank = comm.Get_size(), comm.Get_rank()
    sizes = [0, 1, ranks - 1, ranks, ranks + 1, 1023, 65_537]
    large = 3 * (1 << 20) + 5  # of one kind of number: seconds, where more ranks than cores spin
    for name, algorithm in ALGORITHMS.items():
        for dtype in (np.float32, np.float64):
            for size in [*sizes, large] if dtype == np.float32 else sizes:
                group = Group(comm)
                buffer = contribution(rank, size, dtype)
                expected = sum(contribution(r, size, dtype) for r in range(ranks)) + np.zeros(size, dtype)
                run(algorithm(group, buffer))
                assert np.array_equal(buffer, expected), (name, dtype, size)


def check_small_chunks(comm):
    """Segments of many chunks, the last one short."""
    ranks, rank = comm.Get_size(), comm.Get_rank()
    for size in (1, 17, 1000, 4099):
        buffer = contribution(rank, size, np.float32)
        run(ring(Group(comm), buffer, chunk=64))
        assert np.array_equal(buffer, sum(contribution(r, size, np.float32) for r in range(ranks)))


def placements(ranks: int) -> list[list[tuple[int, int]]]:
    """Ways to lie on nodes and in supernodes: all on one, one each, two supernodes in blocks, in turns, unequal."""
    return [
        [(0, 0)] * ranks,
        [(0, rank) for rank in range(ranks)],
        [(2 * rank // ranks, rank) for rank in range(ranks)],
        [(rank % 2, rank) for rank in range(ranks)],
        [(int(rank > 0), rank // 2) for rank in range(ranks)],
    ]


def check_same_bits_everywhere(comm):
    """Random floats: every rank must end with identical bits, or the replicas drift apart. On every wire, wherever the
    ranks lie; the error is that of one rounding to the wire's precision for each time that a value travels."""
    ranks = comm.Get_size()
    rng = np.random.default_rng(comm.Get_rank())
    precision = {"float32": 2.0**-24, "bfloat16": 2.0**-9, "float16": 2.0**-12}
    for name, algorithm in ALGORITHMS.items():
        for wire in WIRES if name != "mpi" else ["float32"]:
            for places in placements(ranks):
                for size in (1, ranks, 10_001):
                    buffer = rng.standard_normal(size).astype(np.float32)
                    exact = comm.allreduce(buffer.astype(np.float64))
                    largest = comm.allreduce(np.abs(buffer).astype(np.float64))
                    run(algorithm(Group(comm, places), buffer, wire_for(wire, buffer.dtype)))
                    first = comm.bcast(buffer, 0)
                    assert comm.allreduce(int(np.array_equal(buffer, first))) == ranks, (name, wire, places, size)
                    assert (np.abs(buffer - exact) <= 4 * ranks * precision[wire] * largest).all(), (name, wire, places)


def check_wires_keep_what_is_not_finite(comm):
    """An infinity or a NaN of one rank reaches all; float16 makes one of what is too large for it."""
    if comm.Get_size() == 1:
        return
    for name, algorithm in ALGORITHMS.items():
        for wire in WIRES if name != "mpi" else ["float32"]:
            buffer = np.array([1, 1, 1e5, 1e30], np.float32)
            if comm.Get_rank() == comm.Get_size() - 1:
                buffer[:2] = np.inf, np.nan
            run(algorithm(Group(comm), buffer, wire_for(wire, buffer.dtype)))
            assert np.isinf(buffer[0]) and np.isnan(buffer[1]), (name, wire, buffer)
            assert np.isfinite(buffer[2:]).all() == (wire != "float16"), (name, wire, buffer)


def check_wires_send_half_the_bytes(comm):
    ranks = comm.Get_size()
    for name in ("ring", "halving_doubling", "recursive_doubling", "two_level"):
        sent = {}
        for wire in WIRES:
            group = Group(comm)
            run(ALGORITHMS[name](group, np.ones(60 * ranks, np.float32), wire_for(wire, np.dtype(np.float32))))
            sent[wire] = comm.allreduce(sum(group.sent.values()))
        assert sent["bfloat16"] == sent["float16"] == sent["float32"] / 2, (name, sent)


def check_bytes(comm):
    """The count that an algorithm returns is the formula: 2 (p - 1) / p n over all ranks, exactly."""
    ranks = comm.Get_size()
    for size in (0, 1, ranks, 1000, 1001):
        group = Group(comm)
        run(ring(group, np.zeros(size, np.float32)))
        sent = comm.allgather(sum(group.sent.values()))
        assert sum(sent) == 2 * (ranks - 1) * size * 4, (size, sent)
        assert sent == [bytes_sent(size, 4, ranks, r) for r in range(ranks)]


def check_unfit_buffers_are_refused(comm):
    for buffer in (np.zeros((4, 4), np.float32).T[:, :2], np.zeros(8, ">f4"), np.zeros(8, bool)):
        for algorithm in (naive, ring):
            try:
                run(algorithm(Group(comm), buffer))
            except HybridMPIError:
                continue
            raise AssertionError(f"{algorithm.__name__} took a buffer with {buffer.flags} {buffer.dtype}")


def check_buffers_are_float32_or_float64(comm):
    """Another byte order is turned into the machine's own; what is not summed exactly or not at all is refused."""
    with World(0, comm) as world:
        reduce = AllReduce(world, 1 << 16)
        for dtype in (">f4", ">f8", np.float32):
            buffer = reduce.allocate(3, dtype)
            buffer[:] = world.rank + 0.5
            reduce(buffer)
            assert buffer.dtype.isnative and (buffer == sum(range(comm.Get_size())) + 0.5 * comm.Get_size()).all()
        for dtype in (bool, np.int32, np.float16, np.complex64, object):
            try:
                reduce.allocate(3, dtype)
            except UsageError as error:
                assert "float64" in str(error), error
            else:
                raise AssertionError(f"a buffer of {dtype} was made")
        reduce.close()


def check_ranks_that_sum_different_buffers_are_named(comm):
    """In debug mode, before anything is summed."""
    ranks, rank = comm.Get_size(), comm.Get_rank()
    with World(0, comm) as world:
        reduce = AllReduce(world, 1 << 16, check=True)
        first, second = reduce.allocate(10, np.float32), reduce.allocate(20, np.float64)
        first[:] = rank
        reduce(first)
        assert (first == sum(range(ranks))).all()
        if ranks > 1:
            try:
                reduce(second if rank == ranks - 1 else first)
            except UsageError as error:
                assert f"rank {ranks - 1} buffer 1 (20 x float64)" in str(error), error
            else:
                raise AssertionError("two different buffers were summed")
        reduce.close()


def check_pieces_that_are_late_do_not_mix(comm):
    """Two levels with many pieces, each wait a while late: a piece that ends early makes room for the next one."""
    ranks, rank = comm.Get_size(), comm.Get_rank()
    before = two_level_module.PIECE_BYTES, two_level_module.LARGEST_PIECE
    two_level_module.PIECE_BYTES = two_level_module.LARGEST_PIECE = 4096
    rng = np.random.default_rng(rank)

    def late(steps):
        for ready in steps:
            until = time.perf_counter() + rng.random() * 1e-4
            yield lambda ready=ready, until=until: time.perf_counter() > until and ready()

    piece = two_level_module._piece
    two_level_module._piece = lambda *arguments: late(piece(*arguments))
    try:
        for places in placements(ranks):
            buffer = contribution(rank, 30_000, np.float32)
            run(two_level(Group(comm, places), buffer))
            assert np.array_equal(buffer, sum(contribution(r, 30_000, np.float32) for r in range(ranks))), places
    finally:
        two_level_module.PIECE_BYTES, two_level_module.LARGEST_PIECE = before
        two_level_module._piece = piece


def check_large_counts_are_split(comm):
    """Messages above a limit go in parts, here with a limit that a test can exceed, on one node and on several."""
    places = [(0, 0)] * comm.Get_size(), [(0, rank) for rank in range(comm.Get_size())]
    with mock.patch.object(large_counts, "LARGEST", 4000), counting_to(comm, 4000) as narrow:
        for (name, algorithm), where in itertools.product(ALGORITHMS.items(), places):
            for size in (999, 1000, 1001, 20_003):
                buffer = contribution(comm.Get_rank(), size, np.float32)
                run(algorithm(Group(narrow, where), buffer))
                expected = sum(contribution(r, size, np.float32) for r in range(comm.Get_size()))
                assert np.array_equal(buffer, expected), (name, where, size)


def check_fortran_order_survives_the_wire(comm):
    matrix = np.asfortranarray(np.arange(12, dtype=np.float32).reshape(3, 4))
    received = np.empty((3, 4), np.float32)
    comm.Allreduce(fit_to_send(matrix), received)
    assert np.array_equal(received, matrix * comm.Get_size())


def check_buckets(comm):
    shapes = [("b", (3, 5), "f4"), ("a", (7,), "f4"), ("c", (40, 40), "f4"), ("d", (2,), "f8"), ("e", (0, 3), "f4")]
    buckets = layout(shapes, bucket_bytes=512)
    names = [[part.name for part in bucket.slices] for bucket in buckets]
    assert names == [["b", "a", "c"], ["e"], ["d"]], names
    small_first = layout(shapes, bucket_bytes=1 << 20, first_bytes=64)
    assert [[part.name for part in b.slices] for b in small_first] == [["b", "a"], ["c", "e"], ["d"]]
    for bucket in buckets:
        for part in bucket.slices:
            bucket.view(bucket.gradients, part)[...] = comm.Get_rank() + 1
        run(ring(Group(comm), bucket.gradients))
        for part in bucket.slices:
            assert (bucket.view(bucket.gradients, part) == sum(range(1, comm.Get_size() + 1))).all()


def check_shared_memory_sums(comm):
    """Buffers in shared memory and private ones, of every kind of size, many times: no call may disturb the next."""
    ranks, rank = comm.Get_size(), comm.Get_rank()
    sizes = [1, 2, ranks, ranks + 1, 1023, 4096, 4097, 40_000, 100_003, 1 << 20]
    with World(0, comm) as world:
        reduce = AllReduce(world, sum(room_for(8 * size) + room_for(4 * size) for size in sizes))
        shared = SharedMemory(comm)
        buffers = [(size, dtype, reduce.allocate(size, dtype)) for size in sizes for dtype in (np.float32, np.float64)]
        for turn in range(4):
            for size, dtype, lying in buffers:
                expected = sum(contribution(r + turn, size, dtype) for r in range(ranks))
                lying[:] = contribution(rank + turn, size, dtype)
                reduce(lying)
                assert np.array_equal(lying, expected), (size, dtype, turn)
                private = contribution(rank + turn, size, dtype)
                shared.allreduce(private)
                assert np.array_equal(private, expected), (size, dtype, turn)
        shared.allreduce(np.empty(0, np.float32))
        shared.close()
        reduce.close()


def check_the_first_sum_of_new_memory(comm):
    """Some ranks sum at once, while others have yet to make it ready."""
    ranks, rank = comm.Get_size(), comm.Get_rank()
    for size in (5, 500, 40_000) * 3:
        shared = SharedMemory(comm)
        private = contribution(rank, size, np.float32)
        shared.allreduce(private)
        assert np.array_equal(private, sum(contribution(r, size, np.float32) for r in range(ranks)))
        shared.close()


def check_many_at_once(comm):
    """Several buffers under way, started in the same order, finished in any: sums and bits as one after the other."""
    ranks, rank = comm.Get_size(), comm.Get_rank()
    sizes = [5, 300_001, 1, 70_000, 4096]
    for width in (ranks, 1, 2):
        with World(0, comm, nodes_of_ranks=lambda rank, width=width: rank // width) as world:
            reduce = AllReduce(world, sum(room_for(4 * size) for size in sizes))
            buffers = [reduce.allocate(size, np.float32) for size in sizes]
            for turn in range(4):
                for number, buffer in enumerate(buffers):
                    buffer[:] = contribution(rank + turn + number, buffer.size, np.float32)
                    if rank == turn % ranks:
                        time.sleep(0.002)
                    # Shares that are powers of two keep the sums exact.
                    reduce.start(buffer, share=2.0 ** ((rank + turn) % 3))
                reduce.finish()
                for number, buffer in enumerate(buffers):
                    expected = sum(
                        contribution(r + turn + number, buffer.size, np.float32) * 2 ** ((r + turn) % 3)
                        for r in range(ranks)
                    )
                    assert np.array_equal(buffer, expected), (width, turn, number)
            reduce.close()


def check_shared_memory_with_late_ranks(comm):
    """Each rank is late in turn, by more than the others poll: they sleep, and the sum is right."""
    ranks, rank = comm.Get_size(), comm.Get_rank()
    with World(0, comm) as world:
        reduce = AllReduce(world, 1 << 20)
        shared = SharedMemory(comm)
        lying = reduce.allocate(50_000, np.float32)
        for late in range(ranks):
            for size in (10, 50_000, 200_000):
                if rank == late:
                    time.sleep(0.03)
                private = contribution(rank, size, np.float32)
                shared.allreduce(private)
                assert np.array_equal(private, sum(contribution(r, size, np.float32) for r in range(ranks)))
            if rank == late:
                time.sleep(0.03)
            lying[:] = rank + 1
            reduce(lying)
            assert (lying == ranks * (ranks + 1) // 2).all()
        shared.close()
        reduce.close()


def check_small_sums_back_to_back(comm):
    """A rank that others slept for is in the next sums before they wake: what they have yet to read must still lie
    there. Tiny sums, whose parts travel in the line of a flag, and small ones, in slots, in any order."""
    ranks, rank = comm.Get_size(), comm.Get_rank()
    shared = SharedMemory(comm)
    for late in 2 * list(range(ranks)):
        for sizes in ((500, 500, 500), (10, 10, 10), (500, 10, 500), (10, 500, 10)):
            if rank == late:
                time.sleep(0.01)
            sums = [contribution(rank + 31 * turn, size, np.float32) for turn, size in enumerate(sizes)]
            for buffer in sums:
                shared.allreduce(buffer)
            for turn, (size, buffer) in enumerate(zip(sizes, sums, strict=True)):
                expected = sum(contribution(r + 31 * turn, size, np.float32) for r in range(ranks))
                assert np.array_equal(buffer, expected), (late, sizes, turn)
    shared.close()


def check_unequal_exchanges(comm):
    """Two that send each other different amounts, in parts: all of them arrive."""
    if comm.Get_size() < 2:
        return
    pair = comm.Split(0 if comm.Get_rank() < 2 else 1)
    if pair.Get_size() == 2 and comm.Get_rank() < 2:
        group, rank = Group(pair, places=[(0, 0), (1, 1)], part_bytes=64), pair.Get_rank()
        for sizes in ((1000, 16), (16, 1000), (1000, 0), (0, 1000), (0, 0), (500, 1000)):
            incoming = np.zeros(sizes[1 - rank], np.float32)
            run(group.exchange(contribution(rank, sizes[rank], np.float32), incoming, 1 - rank))
            assert np.array_equal(incoming, contribution(1 - rank, sizes[1 - rank], np.float32)), sizes
    pair.Free()


def check_across_nodes(comm):
    """Pretended nodes of one, two and three ranks, the last one smaller: two levels, every lane its slice."""
    for width in (1, 2, 3):
        with World(0, comm, nodes_of_ranks=lambda rank, width=width: rank // width) as world:
            ranks, rank = comm.Get_size(), comm.Get_rank()
            reduce = AllReduce(world, buffer_bytes=4 << 20)
            for size in (1, 5, 3000, 300_001):
                buffer = reduce.allocate(size, np.float32)
                for turn in range(3):
                    buffer[:] = contribution(rank + turn, size, np.float32)
                    reduce(buffer)
                    expected = sum(contribution(r + turn, size, np.float32) for r in range(ranks))
                    assert np.array_equal(buffer, expected), (width, size, turn)
            reduce.close()


def check_trunk_bytes(comm):
    """Halving-doubling and two levels send the least over the trunk, wherever the launcher put the ranks."""
    ranks = comm.Get_size()
    if ranks not in (4, 16):
        return
    q, nbytes = {4: 2, 16: 4}[ranks], 4096 * 4
    for placement in ([rank // q for rank in range(ranks)], [rank % (ranks // q) for rank in range(ranks)]):
        for algorithm in (halving_doubling, two_level):
            group = Group(comm, [(supernode, rank) for rank, supernode in enumerate(placement)])
            run(algorithm(group, np.zeros(nbytes // 4, np.float32)))
            trunk = comm.allgather(group.sent["trunk"])
            # Per rank 2 (p - q) / (p q) n with q of p ranks below the trunk (swCaffe, section V).
            assert trunk == [2 * (ranks - q) / (ranks * q) * nbytes] * ranks, (placement, algorithm, trunk)
