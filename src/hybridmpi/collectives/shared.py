"""All-reduce among the ranks of one node, through memory that they share.

No messages: ranks tell each other by flags how far they are, and every rank sums its slice straight from its peers'
memory. Buffers made by `allocate` lie in that memory and are summed where they are; others pass through it in chunks
that stay in the caches. Every element is summed by one rank, or by all in the same order: the same bits everywhere.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from hybridmpi.arrays import fit_to_receive, trained_dtype
from hybridmpi.collectives import shared_kernels as loops
from hybridmpi.collectives.flags import LINE
from hybridmpi.collectives.shared_buffer import HEADER, POLLS, SharedBuffer
from hybridmpi.shared_windows import shared_window
from hybridmpi.waiting import Backoff

if TYPE_CHECKING:
    from mpi4py import MPI

# Up to this size every rank reads everybody's data itself, with one wait; above, the ranks divide the work.
SMALL_BYTES = 4 << 10

# A chunk of a private buffer: two halves of it and of its sums from every rank stay in the second-level cache.
CHUNK_BYTES = 128 << 10

# Rows of different ranks start at different places of a page: an element of all rows at the same place of theirs would
# compete for the same few places of the first-level cache.
SKEW = 5 * 64


def bytes_moved(length: int, itemsize: int, ranks: int, rank: int) -> int:
    """Return the bytes that a rank reads from its peers and writes to them for a buffer of `length` elements. Local.

    2 (p - 1) / p n, exact for lengths that p does not divide; (p - 1) n for small buffers: every rank reads all.
    """
    if length * itemsize <= SMALL_BYTES:
        return (ranks - 1) * length * itemsize
    return 2 * (ranks - 1) * (length // ranks + (rank < length % ranks)) * itemsize


def room_for(nbytes: int) -> int:
    """Return the bytes that a buffer of `nbytes` takes in the window. Local."""
    return HEADER + -(-nbytes // 64) * 64


class SharedMemory:
    """An all-reduce for the ranks of `comm`, all on one node. Collective over `comm`.

    `buffer_bytes`: room for the buffers that `allocate` gives out; the same on every rank. `progress` is called between
    polls of a long wait: what this rank owes to others. `moved`: bytes that went between this rank and its peers.
    """

    def __init__(self, comm: MPI.Intracomm, buffer_bytes: int = 0, progress: Callable[[], Any] | None = None) -> None:
        from mpi4py import MPI

        self.size, self.rank = comm.Get_size(), comm.Get_rank()
        self._progress = progress
        ranks = self.size
        # Flags, then a line for each rank and half of tiny buffers; slots of small ones; chunks of large ones and sums.
        flags, small, chunk = 4 * ranks * LINE * 8, 2 * ranks * SMALL_BYTES, 2 * (ranks + 1) * CHUNK_BYTES
        self._row_bytes = -(-buffer_bytes // 4096) * 4096 + SKEW
        fixed = -(-(flags + small + chunk) // 4096) * 4096
        total = fixed + ranks * self._row_bytes
        mine = total if self.rank == 0 else 0
        remedy = "sum by messages: allreduce.algorithm = 'mpi'"
        self._window = shared_window(MPI, mine, 1, comm, comm, f"the gradients of {ranks} ranks", remedy)
        memory, _ = self._window.Shared_query(0)
        memory = np.frombuffer(memory, np.uint8)
        self._flags = memory[:flags].view(np.int64)
        self._small, self._chunks = memory[flags : flags + small], memory[flags + small : flags + small + chunk]
        self._buffers = memory[fixed:].reshape(ranks, self._row_bytes)
        self._used = self._count = self.moved = 0
        self._state = np.zeros(loops.WORDS, np.int64)
        self._kept: list[np.ndarray] = []  # what compiled calls know by its address
        self._state[loops.SLOTS], self._state[loops.SLOT_BYTES] = self._small.ctypes.data, SMALL_BYTES
        self._state[loops.FLAGS] = self._flags.ctypes.data
        self._state[loops.LINES] = self._flags.ctypes.data + flags // 2
        self._state[loops.RANKS], self._state[loops.RANK] = ranks, self.rank
        # Every rank touches its row first: on machines with several memories it then lies near that rank.
        self._buffers[self.rank] = 0
        if self.rank == 0:
            self._flags[:] = 0
        comm.Barrier()

    def allocate(self, length: int, dtype: Any) -> SharedBuffer:
        """Return a zeroed buffer [length] of every rank, summed where it lies. Local; the same calls on every rank.

        Raises ValueError when the room given at the start is used up, UsageError for a dtype that is not summed.
        """
        dtype = trained_dtype(dtype, "a buffer that ranks sum")
        start = self._used + HEADER
        stop = start + length * dtype.itemsize
        if stop > self._row_bytes - SKEW:
            left = max(0, self._row_bytes - SKEW - start)
            raise ValueError(f"{length} x {dtype} do not fit into the {left} bytes left of the window")
        flags, first = self._buffers.reshape(-1).view(np.int64), self._used // 8
        self._used += room_for(length * dtype.itemsize)
        self._count += 1
        rows = self._buffers[:, start:stop].view(dtype)
        return SharedBuffer(rows, self.rank, flags, first, self._row_bytes // 8, self._count - 1)

    def allreduce(self, buffer: np.ndarray) -> None:
        """Replace the private `buffer` [n], float32 or float64, on every rank by the sum over the ranks. Collective
        over `comm`."""
        flat = fit_to_receive(buffer).reshape(-1)
        trained_dtype(flat.dtype, "a buffer that ranks sum")
        if self.size == 1 or not flat.size:
            return
        self.moved += bytes_moved(flat.size, flat.itemsize, self.size, self.rank)
        if flat.nbytes <= SMALL_BYTES:
            if not loops.small(flat, self._state, POLLS):
                self.wait_small(flat)
        else:
            self._allreduce_chunked(flat)

    def small_call(self, flat: np.ndarray) -> tuple[Callable[[int], bool], int]:
        """Return (call, number): call(number) sums `flat`, of up to SMALL_BYTES, and returns whether it is done; what
        it leaves undone `wait_small` does. Nothing is counted. Local.

        A number, since each array among the arguments of a compiled call costs it 0.1 us.
        """
        about = np.array([flat.ctypes.data, flat.size, self._state.ctypes.data], np.int64)
        self._kept.append(about)
        return loops.SMALL[flat.dtype.name], about.ctypes.data

    def wait_small(self, flat: np.ndarray) -> None:
        """Finish a sum that `small_call` began. Collective over `comm`."""
        pause = self._pauses()
        while not loops.small(flat, self._state, 1):
            pause()

    def _allreduce_chunked(self, flat: np.ndarray) -> None:
        size = CHUNK_BYTES // flat.itemsize
        area = self._chunks.view(flat.dtype)
        slots = area[: 2 * self.size * size].reshape(2, self.size, size)
        sums = area[2 * self.size * size :].reshape(2, size)
        first = self._state[loops.EPOCH] + 1
        self._state[loops.EPOCH] += -(-flat.size // size)
        position = loops.chunked(flat, slots, sums, self._flags, self.rank, first, POLLS, 0)
        pause = self._pauses() if position >= 0 else None
        while position >= 0:
            pause()
            position = loops.chunked(flat, slots, sums, self._flags, self.rank, first, 1, position)

    def _pauses(self) -> Callable[[], None]:
        backoff, progress = Backoff(), self._progress

        def pause() -> None:
            if progress is not None and progress():
                backoff.reset()
            backoff.pause()

        return pause

    def close(self) -> None:
        """Free the window. Collective over `comm`."""
        self._flags = self._small = self._chunks = self._buffers = None
        self._window.Free()
