"""The sum of row gradients over the compute ranks of a node, before they cross the network (Parallax, section 4.3:
local aggregation).

Each rank lays the rows of its step out in memory that the node shares. The ranks divide the owners among themselves;
each adds up, row by row, what all of them have for its owners, straight into messages that stand for the whole node.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

import numpy as np

from hybridmpi.kernels import argsort_ids
from hybridmpi.sparse.forms import BLOCK_VALUES, Form
from hybridmpi.sparse.node_kernels import collect, group, sum_rows
from hybridmpi.sparse.node_memory import LARGEST_REGION, NodeMemory, Share, by_owner, lines, sharers_of, shares_of
from hybridmpi.sparse.partition import Partition
from hybridmpi.sparse.spec import TableSpec
from hybridmpi.sparse.wire import ID_BYTES, Outgoing, Sender
from hybridmpi.world import World

if TYPE_CHECKING:
    from mpi4py import MPI

Aggregate = Literal["auto", "always", "never"]

# Beside a row, a rank lays out its local number at its owner, and where it stands among the rank's rows.
INDEX_BYTES = 2 * ID_BYTES

# The head of a rank's region: its examples, whether its rows fit, and how many it has of each table for each owner; how
# many different rows of each table it pushes for the node. Then come the rows; a node with a rank whose rows do not fit
# pushes rank by rank in that step.
WEIGHT, FITS, COUNTS = 0, 1, 2
ARRIVED, COUNTED = 0, 1  # flags: its rows are laid out; its different rows are counted


def sums_rows(aggregate: Aggregate, clients: Sequence[int], owners: Sequence[int]) -> bool:
    """Return whether ranks of any node sum their rows, given the nodes of all clients and owners. Local.

    "auto" sums where a node has several compute ranks and rows cross the network. A node with one compute rank has
    nothing to sum.
    """
    crosses = len({*clients, *owners}) > 1
    return (crosses if aggregate == "auto" else aggregate == "always") and len(set(clients)) < len(clients)


def open_node_sum(world: World, specs: list[TableSpec], aggregate: Aggregate) -> NodeSum | None:
    """Return this node's sum; None where each rank pushes for itself. Collective over compute."""
    clients, owners = ([world.node_of[rank] for rank in ranks] for ranks in (world.clients, world.owners))
    if not specs or not sums_rows(aggregate, clients, owners):
        return None
    comm = world.compute.Split(world.node_of[world.rank], key=world.rank)
    if comm.Get_size() == 1:
        comm.Free()
        return None
    comm.Set_name("hybridmpi.node_sum")
    return NodeSum(world, comm, specs)


class NodeSum:
    """The sum over the compute ranks of one node, `comm`. Collective over `comm`, as is every call of `messages`.

    `ranks`: how many sum. `overflows`: the steps whose rows did not fit into the node's memory and were pushed rank by
    rank.
    """

    def __init__(self, world: World, comm: MPI.Intracomm, specs: list[TableSpec]) -> None:
        self.specs, self.comm = specs, comm
        self.overflows = 0
        self._owners = len(world.owners)
        self._row_bytes = np.array([spec.row_bytes for spec in specs], np.int64)
        self._distinct_at = COUNTS + len(specs) * self._owners
        # No rank ever has more than every row of every table.
        most = int(self._blocks(np.array([spec.rows for spec in specs], np.int64))[1].sum())
        head = self._distinct_at + len(specs)
        self._memory = NodeMemory(world, comm, 2, head, most, LARGEST_REGION, "row gradients")
        self._heads, self._words = self._memory.heads, self._memory.words
        self.ranks, self._rank = self._memory.ranks, self._memory.rank
        self._shares = shares_of(self._owners, self.ranks, self._rank)
        self._epoch, self._fitted = 0, False

    # -- one step --------------------------------------------------------------------------------------------------

    def messages(
        self,
        weight: float,
        gradients: list[tuple[int, np.ndarray, np.ndarray]],
        maps: list[Partition],
        forms: list[list[Form]],
    ) -> tuple[dict[int, tuple[Sender, list[Outgoing]]] | None, int]:
        """Return (what this rank pushes for the node: owner -> (sender, rows); the bytes it laid out). Collective over
        the node's compute ranks, in every step.

        `weight`: this rank's examples; `gradients`: (table, ids [n] unique and sorted, values [n, dim]), a table once
        at most; `maps`: of the tables; `forms[owner][table]`: of their rows on the way there. None instead of messages:
        some rank's rows do not fit, each pushes its own. The rows are added as the messages are written, and must stay
        until all ranks have written theirs. So before it this rank has waited for the last step's end at all owners, of
        which each has then heard of all clients: every rank of the node has a share of some owner.
        """
        self._epoch += 1
        laid = self._lay_out(weight, gradients, maps)
        self._memory.signal(ARRIVED, self._epoch)
        self._memory.wait_for(ARRIVED, self._epoch)
        self._fitted = bool(self._heads[:, FITS].all())
        if not self._fitted:
            self.overflows += 1
            return None, laid
        tables = len(self.specs)
        weights = self._heads[:, WEIGHT].copy().view(np.float64)
        total = float(sum(weights.tolist()))
        means = weights / total if total else np.zeros(self.ranks)
        counts = self._heads[:, COUNTS : COUNTS + tables * self._owners].reshape(-1, tables, self._owners).copy()
        keys, places, firsts = self._layout(counts)
        result: dict[int, tuple[Sender, list[Outgoing]]] = {}
        for share in self._shares:
            sums = []
            for table, spec in enumerate(self.specs):
                begin, where = keys[:, table, share.owner], places[:, table, share.owner]
                skipped, count = self._memory.cut(share, begin, counts[:, table, share.owner])
                if count.any():
                    lists = begin + skipped, count, where + skipped, firsts[:, table]
                    numbers, rows, ranks = collect(self._words, *lists)
                    order = argsort_ids(numbers, maps[table].count_of(share.owner))
                    scale = means if spec.reduction == "mean" else np.ones(self.ranks)
                    groups = group(numbers, rows, ranks, order)
                    form, window = forms[share.owner][table], self._memory.rows_of(spec)
                    sums.append(SummedRows(table, window, form, *groups, scale.astype(spec.dtype)))
            result[share.owner] = self._sender(share, total), sums
        self._note_distinct(result)
        return result, laid

    def distinct_rows(self) -> np.ndarray | None:
        """Return how many different rows of each table the node pushed in the last step, int64[tables]; None where each
        rank pushed for itself. Local, between this rank's last push and its next; waits for the node's ranks."""
        if not self._fitted:
            return None
        self._memory.wait_for(COUNTED, self._epoch)
        return self._distinct.sum(axis=0)

    def close(self) -> None:
        """Free the window. Collective over the node's compute ranks."""
        self._words = self._heads = None
        self._memory.close()
        self.comm.Free()

    # -- this rank's rows ------------------------------------------------------------------------------------------

    def _lay_out(
        self, weight: float, gradients: list[tuple[int, np.ndarray, np.ndarray]], maps: list[Partition]
    ) -> int:
        """Write this rank's rows and what stands before them; return the bytes of the rows and their numbers."""
        mine, tables = self._heads[self._rank], len(self.specs)
        counts = mine[COUNTS : COUNTS + tables * self._owners].reshape(tables, self._owners)
        counts[:] = 0
        mine[WEIGHT : WEIGHT + 1].view(np.float64)[0] = weight
        split = {table: by_owner(maps[table], ids) for table, ids, _ in gradients}
        for table, parts in split.items():
            counts[table] = [len(local) for local, _ in parts]
        used = counts.sum(axis=1)
        mine[FITS] = self._memory.data_at + int(self._blocks(used)[1].sum()) <= self._memory.region
        if not mine[FITS]:
            return 0
        keys, places, firsts = self._layout(counts[None], self._rank)
        for table, _, values in gradients:
            if not used[table]:
                continue
            for (local, place), key, where in zip(split[table], keys[0, table], places[0, table], strict=True):
                self._words[key : key + len(local)] = local
                self._words[where : where + len(local)] = place
            first = firsts[0, table]
            self._memory.rows_of(self.specs[table])[first : first + len(values)] = values
        return int((used * (INDEX_BYTES + self._row_bytes)).sum())

    def _layout(self, counts: np.ndarray, first_rank: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return (keys, places, firsts) for `counts` [ranks, tables, owners]: the words at which local numbers and
        places begin, shaped alike, and the row of the window that is a table's first, [ranks, tables]."""
        used = counts.sum(axis=2)
        index, blocks = self._blocks(used)
        ranks = np.arange(first_rank, first_rank + len(counts))[:, None]
        starts = ranks * self._memory.region + self._memory.data_at + np.cumsum(blocks, axis=1) - blocks
        keys = starts[:, :, None] // 8 + np.cumsum(counts, axis=2) - counts
        return keys, keys + used[:, :, None], -(-(starts + index) // self._row_bytes)

    def _blocks(self, used: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the bytes of the numbers, and of all, that so many rows of each table take, `used` [..., tables].

        Rows begin at a multiple of their size, so that the window is an array of rows: there is room for one more.
        """
        index = lines(INDEX_BYTES * used)
        return index, index + lines(self._row_bytes * (used + 1))

    # -- everybody's rows ------------------------------------------------------------------------------------------

    def _sender(self, share: Share, total: float) -> Sender:
        """Return whom a message stands for. Where ranks divide an owner's rows, the first one's stands for all that
        have no share in it, and for the examples of the node; each other rank's for itself."""
        sharers = sharers_of(share.owner, self._owners, self.ranks)
        if share.first == 0:
            return Sender(self.ranks - (sharers - 1), total, total)
        return Sender(1, 0.0, total)

    def _note_distinct(self, messages: dict[int, tuple[Sender, list[Outgoing]]]) -> None:
        # Who still looks at the last step's has not arrived in this one, and this rank has waited for all to arrive.
        mine = self._distinct[self._rank]
        mine[:] = 0
        for _, pieces in messages.values():
            for piece in pieces:
                mine[piece.table] += piece.left
        self._memory.signal(COUNTED, self._epoch)

    @property
    def _distinct(self) -> np.ndarray:
        """The ranks' numbers of different rows in the last step, [ranks, tables]."""
        return self._heads[:, self._distinct_at : self._distinct_at + len(self.specs)]


class SummedRows(Outgoing):
    """Rows on their way to an owner that are added up while they are written: local numbers [n]; the ranks' rows, in
    `window` [*, dim], as `group` gives them; `scale` [ranks]."""

    def __init__(
        self,
        table: int,
        window: np.ndarray,
        form: Form,
        local: np.ndarray,
        starts: np.ndarray,
        rows: np.ndarray,
        ranks: np.ndarray,
        scale: np.ndarray,
    ) -> None:
        super().__init__(table, local, slice(0, len(local)), window, form)
        self._sums = starts, rows, ranks, scale

    def write(self, rows: int, ids_out: np.ndarray, values_out: np.ndarray) -> None:
        """Write the next `rows` rows into the message."""
        ids_out[:] = self.local[self.done : self.done + rows]
        if values_out.dtype == self.values.dtype:
            sum_rows(self.values, *self._sums, self.done, values_out)
        else:
            dim = self.values.shape[1]
            block = np.empty((max(1, BLOCK_VALUES // dim), dim), self.values.dtype)
            for start in range(0, rows, len(block)):
                out = values_out[start : start + len(block)]
                sum_rows(self.values, *self._sums, self.done + start, block[: len(out)])
                self.form.write(block[: len(out)], out)
        self.done += rows
