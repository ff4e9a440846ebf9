"""All-reduce among the ranks of one node, through memory that they share.

No messages: ranks tell each other by flags how far they are, and every rank sums its slice straight from its peers'
memory. Buffers made by `allocate` lie in that memory and are summed where they are; others pass through it in chunks
that stay in the caches. Every element is summed by one rank, or by all in the same order: the same bits everywhere.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from hybridmpi.arrays import fit_to_receive
from hybridmpi.collectives import shared_kernels as loops
from hybridmpi.collectives.flags import LINE
from hybridmpi.errors import HybridMPIError
from hybridmpi.waiting import Backoff

if TYPE_CHECKING:
    from mpi4py import MPI

# Up to this size every rank reads everybody's data itself, with one wait; above, the ranks divide the work.
SMALL_BYTES = 16 << 10

# A chunk of a private buffer: two halves of it and of its sums from every rank stay in the second-level cache.
CHUNK_BYTES = 128 << 10

# Polls before a rank that waits goes back to Python, where it sleeps or serves: some tens of microseconds.
POLLS = 4000


def bytes_moved(length: int, itemsize: int, ranks: int, rank: int) -> int:
    """Return the bytes that a rank reads from its peers and writes to them for a buffer of `length` elements. Local.

    2 (p - 1) / p n, exact for lengths that p does not divide; (p - 1) n for small buffers: every rank reads all.
    """
    if length * itemsize <= SMALL_BYTES:
        return (ranks - 1) * length * itemsize
    return 2 * (ranks - 1) * (length // ranks + (rank < length % ranks)) * itemsize


def room_for(nbytes: int) -> int:
    """Return the bytes that a buffer of `nbytes` takes in the window. Local."""
    return -(-nbytes // 64) * 64


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
        flags, small, chunk = 2 * ranks * LINE * 8, 2 * ranks * SMALL_BYTES, 2 * (ranks + 1) * CHUNK_BYTES
        self._row_bytes = -(-buffer_bytes // 4096) * 4096
        total = -(-(flags + small + chunk) // 4096) * 4096 + ranks * self._row_bytes
        try:
            self._window = MPI.Win.Allocate_shared(total if self.rank == 0 else 0, 1, comm=comm)
        except MPI.Exception as error:
            raise HybridMPIError(
                f"{total:,} bytes for the gradients of {ranks} ranks could not be shared on this node: {error}. Look "
                "at the room in /dev/shm and the memory limit of this job"
            ) from error
        memory, _ = self._window.Shared_query(0)
        memory = np.frombuffer(memory, np.uint8)
        self._flags = memory[:flags].view(np.int64)
        self._small, self._chunks = memory[flags : flags + small], memory[flags + small : flags + small + chunk]
        self._buffers = memory[total - ranks * self._row_bytes :].reshape(ranks, self._row_bytes)
        self._used = self.moved = 0
        self._known: dict[int, tuple[np.ndarray, np.ndarray, np.ndarray | None, int]] = {}
        self._epoch = 0
        if self.rank == 0:
            self._flags[:] = 0
        comm.Barrier()

    def allocate(self, length: int, dtype: Any) -> np.ndarray:
        """Return a zeroed buffer [length] that is summed where it lies. Local; the same calls on every rank.

        Raises ValueError when the room given at the start is used up.
        """
        dtype = np.dtype(dtype)
        start, stop = self._used, self._used + length * dtype.itemsize
        if stop > self._row_bytes:
            raise ValueError(
                f"{length} x {dtype} do not fit into the {self._row_bytes - start} bytes left of the window"
            )
        rows = self._buffers[:, start:stop].view(dtype)
        buffer = rows[self.rank]
        buffer[:] = 0
        self._used = start + room_for(stop - start)
        slots = self._areas(dtype)[0] if buffer.nbytes <= SMALL_BYTES else None
        moved = bytes_moved(length, dtype.itemsize, self.size, self.rank)
        if self.size > 1 and length:
            # The buffer is kept, so that no other array can ever have its id.
            self._known[id(buffer)] = buffer, rows, slots, moved
        return buffer

    def allreduce(self, buffer: np.ndarray) -> None:
        """Replace `buffer` [n], float32 or float64, on every rank by the sum over the ranks. Collective over `comm`."""
        known = self._known.get(id(buffer))
        if known is not None:
            # Made by `allocate`: what follows from its size was worked out then. A microsecond counts here.
            _, rows, slots, moved = known
            self.moved += moved
            if slots is None:
                self._allreduce_direct(rows)
            else:
                self._allreduce_small(buffer, slots)
        elif self.size > 1 and buffer.size:
            flat = fit_to_receive(buffer).reshape(-1)
            self.moved += bytes_moved(flat.size, flat.itemsize, self.size, self.rank)
            small, slots, sums = self._areas(flat.dtype)
            if flat.nbytes <= SMALL_BYTES:
                self._allreduce_small(flat, small)
            else:
                self._allreduce_chunked(flat, slots, sums)

    def allreduce_across(self, buffer: np.ndarray, lanes: int, across: Callable[[np.ndarray], None]) -> None:
        """The two-level all-reduce of a buffer that `allocate` made. Collective over `comm`, and the nodes together.

        The first `lanes` ranks of the node sum a slice each, straight from their peers; `across` sums that slice in
        place over the nodes; then it is copied into all peers' buffers.
        """
        rows = self._known[id(buffer)][1] if self.size > 1 else buffer.reshape(1, -1)
        mine = self.rank < lanes
        start, stop = loops.slice_of(rows.shape[1], lanes, self.rank) if mine else (0, 0)
        self.moved += 2 * (self.size - 1) * (stop - start) * buffer.itemsize
        self._epoch += 1
        loops.signal(self._flags, self.rank, self._epoch)
        self._wait_for(0)
        if mine:
            if self.size > 1:
                loops.sum_into(rows, start, stop, self.rank)
            across(buffer[start:stop])
            loops.spread(rows, start, stop, self.rank)
        loops.signal(self._flags, self.size + self.rank, self._epoch)
        self._wait_for(self.size)

    def _wait_for(self, first: int) -> None:
        """Wait until the flags of all ranks from `first` on have reached this epoch."""
        if not loops.all_reached(self._flags, first, self.size, self._epoch, POLLS):
            pause = self._pauses()
            while not loops.all_reached(self._flags, first, self.size, self._epoch, 1):
                pause()

    def _allreduce_small(self, buffer: np.ndarray, slots: np.ndarray) -> None:
        self._epoch += 1
        if not loops.small(buffer, slots, self._flags, self.rank, self._epoch, POLLS):
            pause = self._pauses()
            while not loops.small(buffer, slots, self._flags, self.rank, self._epoch, 1):
                pause()

    def _allreduce_direct(self, rows: np.ndarray) -> None:
        self._epoch += 1
        stage = loops.direct(rows, self._flags, self.rank, self._epoch, POLLS, 0)
        pause = self._pauses() if stage != 2 else None
        while stage != 2:
            pause()
            stage = loops.direct(rows, self._flags, self.rank, self._epoch, 1, stage)

    def _allreduce_chunked(self, buffer: np.ndarray, slots: np.ndarray, sums: np.ndarray) -> None:
        first = self._epoch + 1
        self._epoch += -(-buffer.size // slots.shape[2])
        position = loops.chunked(buffer, slots, sums, self._flags, self.rank, first, POLLS, 0)
        pause = self._pauses() if position >= 0 else None
        while position >= 0:
            pause()
            position = loops.chunked(buffer, slots, sums, self._flags, self.rank, first, 1, position)

    def _areas(self, dtype: np.dtype) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the window's slots of small buffers [2, p, s], of chunks [2, p, c], and the chunks' sums [2, c]."""
        chunk = CHUNK_BYTES // dtype.itemsize
        area = self._chunks.view(dtype)
        return (
            self._small.view(dtype).reshape(2, self.size, -1),
            area[: 2 * self.size * chunk].reshape(2, self.size, chunk),
            area[2 * self.size * chunk :].reshape(2, chunk),
        )

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
        self._known.clear()
        self._window.Free()
