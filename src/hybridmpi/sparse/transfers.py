"""Which rows go from where to where when a table changes its layout: worked out from the two layouts alone.

The rows that two arithmetic progressions share are again one. All that is looked at are pairs that do share some: what
has one stride is found by its residue, and of one residue by its first row.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import gcd
from typing import TYPE_CHECKING, NamedTuple

from hybridmpi.errors import HybridMPIError
from hybridmpi.sparse.partition import Partition
from hybridmpi.world import World

if TYPE_CHECKING:
    from hybridmpi.checkpoint.layout import Progression

# (first, stride, count): global rows first, first + stride, ...
Rows = tuple[int, int, int]


@dataclass(frozen=True)
class Layout:
    """Which rows each rank holds: `held[w]`: the progressions of rows that lie one after another at world rank w.

    Ranks that hold the same are copies of each other, such as a replica on every compute rank; apart from copies, each
    row lies at one rank.
    """

    held: tuple[tuple[Rows, ...], ...]

    @classmethod
    def of(cls, world: World, partition: Partition) -> Layout:
        """Return where the rows of a partition lie: its parts at their owners; without parts, a replica on every
        compute rank. Local."""
        return cls.of_owners(world, partition) if partition.parts else cls.of_replicas(world, partition.rows)

    @classmethod
    def of_owners(cls, world: World, partition: Partition) -> Layout:
        """Return the layout in which each owner holds its parts. Local."""
        pieces = dict(zip(world.owners, partition.pieces, strict=True))
        rows = (((p.first, p.stride, p.count) for p in pieces.get(rank, ())) for rank in range(world.size))
        return cls(tuple(map(tuple, rows)))

    @classmethod
    def of_replicas(cls, world: World, rows: int) -> Layout:
        """Return the layout in which every compute rank holds the whole table. Local."""
        return cls(tuple(((0, 1, rows),) if rank in world.clients else () for rank in range(world.size)))

    def count(self, rank: int) -> int:
        """Return how many rows a world rank holds. Local."""
        return sum(count for _, _, count in self.held[rank])


class Stretch(NamedTuple):
    """`count` rows that lie at source_start + i * source_step at the sender, at target_start + i * target_step at the
    receiver."""

    source_start: int
    source_step: int
    target_start: int
    target_step: int
    count: int

    @property
    def source(self) -> slice:
        """The rows at the sender."""
        return slice(self.source_start, self.source_start + (self.count - 1) * self.source_step + 1, self.source_step)

    @property
    def target(self) -> slice:
        """The rows at the receiver."""
        return slice(self.target_start, self.target_start + (self.count - 1) * self.target_step + 1, self.target_step)

    def part(self, start: int, stop: int) -> Stretch:
        """Return rows `start` to `stop` of it."""
        return Stretch(
            self.source_start + start * self.source_step,
            self.source_step,
            self.target_start + start * self.target_step,
            self.target_step,
            stop - start,
        )


Transfers = dict[tuple[int, int], list[Stretch]]


def transfers(old: Layout, new: Layout, node_of: Sequence[int]) -> Transfers:
    """Return which rows go from where to where, by (sender, receiver); a rank "sends" itself what it keeps. Local.

    Where several ranks hold a row, its receiver takes it from itself, else from one of its node, else the receivers
    are spread over them. Raises HybridMPIError if the old layout does not hold what the new one needs.
    """
    copies: dict[tuple[Rows, ...], list[int]] = {}
    for rank, held in enumerate(old.held):
        if old.count(rank):
            copies.setdefault(held, []).append(rank)
    holders = list(copies.values())
    index = _Index(copies)
    shared: dict[tuple[Rows, ...], dict[int, list[Stretch]]] = {}
    result: Transfers = {}
    for receiver, wanted in enumerate(new.held):
        if wanted not in shared:
            shared[wanted] = index.common(wanted)
        found = 0
        for holder, stretches in shared[wanted].items():
            ranks = holders[holder]
            near = [rank for rank in ranks if node_of[rank] == node_of[receiver]] or ranks
            sender = receiver if receiver in ranks else near[receiver % len(near)]
            result[sender, receiver] = stretches
            found += sum(stretch.count for stretch in stretches)
        if found != new.count(receiver):
            raise HybridMPIError(
                f"rows that move: rank {receiver} is to hold {new.count(receiver):,} rows, of which the ranks hold "
                f"{found:,} now: both layouts must be of one table, with each row at one rank or on ranks that hold "
                "the same"
            )
    return result


class _Held(NamedTuple):
    """Rows of one holder: they lie there from place `start` on."""

    rows: Progression
    holder: int
    start: int


class _Index:
    """The progressions of all holders, by stride, then by residue, then in the order of their rows.

    No two of them share a row, so those of one residue follow each other.
    """

    def __init__(self, holders: Iterable[tuple[Rows, ...]]) -> None:
        from hybridmpi.checkpoint.layout import Progression  # with it comes HDF5, which not every run needs

        self._strides: dict[int, dict[int, list[_Held]]] = {}
        for holder, held in enumerate(holders):
            start = 0
            for first, stride, count in held:
                if count:
                    residues = self._strides.setdefault(stride, {})
                    rows = Progression(first, stride, count)
                    residues.setdefault(first % stride, []).append(_Held(rows, holder, start))
                start += count
        for residues in self._strides.values():
            for held in residues.values():
                held.sort(key=_first_row)

    def common(self, wanted: tuple[Rows, ...]) -> dict[int, list[Stretch]]:
        """Return what each holder has of the rows that a receiver wants, by their places at both: the receiver's
        progressions one after another, of each the holder's one after another."""
        from hybridmpi.checkpoint.layout import Progression, overlap

        found: dict[int, list[Stretch]] = {}
        target_start = 0
        for first, stride, count in wanted:
            stretches = []
            for held in self._near(rows := Progression(first, stride, count)):
                if shared := overlap(held.rows, rows):
                    at = held.start + shared.start, shared.step, target_start + shared.other_start, shared.other_step
                    stretches.append((held.holder, Stretch(*at, shared.count), held.start))
            for holder, stretch, _ in sorted(stretches, key=lambda entry: (entry[0], entry[2])):
                found.setdefault(holder, []).append(stretch)
            target_start += count
        return dict(sorted(found.items()))

    def _near(self, rows: Progression) -> Iterator[_Held]:
        """Yield the held progressions that reach into the range of `rows`, of the residues that `rows` have."""
        for stride, residues in self._strides.items():
            # The residues of its rows come again after so many of them.
            different = stride // gcd(stride, rows.stride)
            for number in range(min(rows.count, different)):
                held = residues.get((rows.first + number * rows.stride) % stride, ())
                place = max(bisect_right(held, rows.first, key=_first_row) - 1, 0)
                while place < len(held) and held[place].rows.first <= rows.last:
                    yield held[place]
                    place += 1


def _first_row(held: _Held) -> int:
    return held.rows.first
