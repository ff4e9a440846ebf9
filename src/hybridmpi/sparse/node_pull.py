"""Rows that a node pulls once for all its compute ranks (Parallax, section 4.3: local aggregation, the way down).

At the start of a step each rank lays the numbers of the rows that it will want of other nodes out in memory that the
node shares. The ranks divide these owners among themselves; each pulls, once, what any of them wants of its owners,
into that memory, from where all read their rows. What a rank wants without having announced it, and what does not fit,
it pulls itself: nothing but the bytes that travel depends on what is announced.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from hybridmpi import kernels
from hybridmpi.sparse.node_kernels import take
from hybridmpi.sparse.node_memory import LARGEST_REGION, NodeMemory, shares_of
from hybridmpi.sparse.requests import Question
from hybridmpi.sparse.wire import ID_BYTES

if TYPE_CHECKING:
    from mpi4py import MPI

    from hybridmpi.sparse.client import Client

# Flags: this rank's numbers are there; its rows are there; it has read all rows that it wants.
ANNOUNCED, PULLED, READ = 0, 1, 2

# In the head of a rank's region, for each table and owner on another node: how many numbers it announced, and the word
# where they begin; how many rows it pulled, the words where their numbers begin, and the first one as a row of memory.
WANTED, WANTED_AT, GOT, GOT_AT, GOT_FIRST = range(5)


def open_node_pull(client: Client, comm: MPI.Intracomm) -> NodePull | None:
    """Return what pulls for the compute ranks of this node, `comm`; None if all owners are on it. Collective over
    `comm`."""
    world = client.world
    far = [owner for owner, rank in enumerate(world.owners) if not world.same_node(rank)]
    return NodePull(client, comm, far) if far else None


class NodePull:
    """Pulls for the compute ranks of one node, `comm`, from the owners `far`, on other nodes. Collective over `comm`.

    In a step, on every rank: `pull`, with or without rows to announce; any number of `read`; `end`. `active`: whether
    `read` finds rows now. `crowded`: how often numbers that this rank announced, or rows that it was to pull, did not
    all fit into its region. `seconds`: how long all this has taken so far, but for `read`.
    """

    def __init__(self, client: Client, comm: MPI.Intracomm, far: list[int]) -> None:
        self.client, self.far = client, far
        self.active, self.crowded, self.seconds = False, 0, 0.0
        specs, tables = client.specs, len(client.specs)
        # No rank ever wants, or pulls, more than every row of every table; there is room to align the rows.
        most = sum(s.rows * (2 * ID_BYTES + s.row_bytes) + len(far) * (2 * s.row_bytes + 64) for s in specs)
        head = 5 * tables * len(far)
        self._memory = NodeMemory(client.world, comm, 3, head, most, LARGEST_REGION, "rows")
        self._words = self._memory.words
        # [ranks, 5, tables, owners on other nodes]
        self._heads = self._memory.heads[:, :head].reshape(-1, 5, tables, len(far))
        self._mine = self._heads[self._memory.rank]
        self._shares = shares_of(len(far), self._memory.ranks, self._memory.rank)
        self._epoch = 0

    # -- one step --------------------------------------------------------------------------------------------------

    def pull(self, wanted: Mapping[int, np.ndarray]) -> None:
        """Announce the rows that this rank wants in this step, sorted unique ids by table, and pull what the ranks of
        the node want of this rank's owners; return when the others have pulled theirs. What is raised here, such as
        NonFiniteError for rows that 16 bits did not carry, lets them do without these rows."""
        memory, client = self._memory, self.client
        started = time.perf_counter()
        self.end()
        self._epoch += 1
        memory.wait_for(READ, self._epoch - 1)
        self._mine[:] = 0
        try:
            at = self._announce(wanted)
            memory.signal(ANNOUNCED, self._epoch)
            came = time.perf_counter()
            memory.wait_for(ANNOUNCED, self._epoch)
            client.wait_seconds += time.perf_counter() - came
            questions, heads = self._questions(at)
            client.fetch(questions)
            self._mine[GOT:] = heads
        finally:
            # Whatever has happened here, nobody is to wait for it.
            memory.signal(ANNOUNCED, self._epoch)
            memory.signal(PULLED, self._epoch)
        memory.wait_for(PULLED, self._epoch)
        self.active = True
        laid_out = sum(
            len(question.local) * (ID_BYTES + client.specs[question.table].row_bytes)
            for asked in questions.values()
            for question in asked
        )
        client.traffic.add("aggregate", laid_out, True)
        self.seconds += time.perf_counter() - started

    def _announce(self, wanted: Mapping[int, np.ndarray]) -> int:
        """Lay the numbers of wanted rows out; return the byte where they end."""
        memory = self._memory
        start = memory.rank * memory.region
        at, end = (start + memory.data_at) // 8, (start + memory.region) // 8
        first = at
        for table, ids in wanted.items():
            parts = self.client.split(table, ids)
            for place, owner in enumerate(self.far):
                _, local = parts[owner]
                kept = local[: end - at]
                self.crowded += len(kept) < len(local)
                # Ascending already, but for an owner of several parts.
                self._words[at : at + len(kept)] = np.sort(kept)
                self._mine[[WANTED, WANTED_AT], table, place] = len(kept), at
                at += len(kept)
        self.client.traffic.add("aggregate", (at - first) * ID_BYTES, True)
        return at * 8

    def _questions(self, at: int) -> tuple[dict[int, list[Question]], np.ndarray]:
        """Return what this rank is to ask of owners, and what then stands in its head, given what all have announced.
        Numbers and rows lie from byte `at` on."""
        memory, questions = self._memory, {}
        heads = np.zeros_like(self._mine[GOT:])
        for share in self._shares:
            for table in range(len(self.client.specs)):
                keys, counts = self._heads[:, WANTED_AT, table, share.owner], self._heads[:, WANTED, table, share.owner]
                skipped, counts = memory.cut(share, keys, counts)
                if counts.any():
                    lists = [self._words[key : key + n] for key, n in zip(keys + skipped, counts, strict=True)]
                    numbers = np.concatenate(lists)
                    numbers, _ = kernels.unique_inverse(numbers, int(numbers.max()) + 1)
                    question, heads[:, table, share.owner], at = self._make_room(share.owner, table, numbers, at)
                    if question.left:
                        questions.setdefault(self.far[share.owner], []).append(question)
        return questions, heads

    def _make_room(self, place: int, table: int, numbers: np.ndarray, at: int) -> tuple[Question, list[int], int]:
        """Lay numbers out from byte `at` on, as many as there is room for with their rows; return (what is to be
        asked, its entry in the head, the byte where it ends)."""
        memory, spec = self._memory, self.client.specs[table]
        size = spec.row_bytes
        room = (memory.rank + 1) * memory.region - at - size - 8  # rows begin at a multiple of their size
        kept = numbers[: max(room // (ID_BYTES + size), 0)]
        self.crowded += len(kept) < len(numbers)
        key = at // 8
        self._words[key : key + len(kept)] = kept
        first = -(-(at + kept.nbytes) // size)
        places = slice(first, first + len(kept))
        question = Question(table, kept, places, memory.rows_of(spec), self.client.form(self.far[place], table))
        end = -(-(first + len(kept)) * size // 8) * 8
        return question, [len(kept), key, first], end if len(kept) else at

    def read(
        self, table: int, owner: int, where: slice | np.ndarray, local: np.ndarray, out: np.ndarray
    ) -> tuple[slice | np.ndarray, np.ndarray]:
        """Put the rows `local` of an owner that were pulled in this step where they stand in `out` [n, dim], `where`;
        return (where, local) of the others. Local."""
        place = self.far.index(owner) if owner in self.far else -1
        pulled = [rank for rank in self._heads[:, GOT:, table, place].tolist() if rank[0]] if place >= 0 else []
        if not pulled or not len(local):
            return where, local
        places = np.arange(where.start, where.stop) if isinstance(where, slice) else where
        found, rows = np.zeros(len(local), np.bool_), self._memory.rows_of(self.client.specs[table])
        for count, key, first in pulled:
            take(self._words, key, count, rows, first, local, places, found, out)
        left = np.flatnonzero(~found)
        return places[left], local[left]

    def end(self) -> None:
        """End the step's reading: rows of before are found no more, and others may overwrite theirs. Local; a second
        call does nothing."""
        self.active = False
        self._memory.signal(READ, self._epoch)

    def close(self) -> None:
        """Free the memory. Collective over the node's compute ranks."""
        self._words = self._heads = self._mine = None
        self._memory.close()
