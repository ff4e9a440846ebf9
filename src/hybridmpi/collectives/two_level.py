"""Two-level all-reduce by messages: reduce-scatter among near ranks, all-reduce across on every lane, all-gather.

The near ranks are those of a supernode, or of a node where there is one supernode only. A lane is a set of ranks, one
of each place, that own the same slice: with m lanes each carries n / m across, so the slow links see
2 (N - 1) / N n / m bytes per lane of N places (REFERENCE: all-reduce today). Near ranks send each slice straight to its
owner, who adds in order of the ranks: one round, whatever their number. Places may have different numbers of ranks: the
smallest one's is the number of lanes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from hybridmpi.arrays import fit_to_receive
from hybridmpi.collectives.group import Group, completed
from hybridmpi.collectives.ring import ring, segment
from hybridmpi.collectives.steps import Steps, one_by_one, together
from hybridmpi.collectives.wire import PLAIN, Wire

# Large buffers go in pieces of this size, or a fourth of the buffer if that is more, up to the largest; so many of
# them at once: one is across while another is near.
PIECE_BYTES, LARGEST_PIECE = 2 << 20, 16 << 20
AT_ONCE = 4

# Tags of pieces that are under way together lie this far apart; buffers have tags below it.
TAGS = 4096


def two_level(
    group: Group, buffer: np.ndarray, wire: Wire = PLAIN, across: Callable[[Group, np.ndarray, Wire], Steps] = ring
) -> Steps:
    """Replace `buffer` [n] on every rank by the sum over the group, by `across` between places. Collective over the
    group; in place."""
    flat = fit_to_receive(buffer).reshape(-1)
    if group.size == 1 or flat.size == 0:
        return
    pieces = pieces_of(flat.nbytes)

    def slot(first: int) -> Steps:
        # One after the other, since they share a tag.
        tagged = group.tagged(group.tag + first * TAGS)
        numbers = range(first, pieces, AT_ONCE)
        return one_by_one(_piece(tagged, flat[segment(flat.size, pieces, k)], wire, across) for k in numbers)

    yield from together([slot(first) for first in range(min(AT_ONCE, pieces))])


def pieces_of(nbytes: int) -> int:
    """Return in how many pieces a buffer of `nbytes` goes. Local."""
    size = min(max(nbytes // AT_ONCE, PIECE_BYTES), LARGEST_PIECE)
    return max(1, -(-nbytes // size))


def _piece(group: Group, flat: np.ndarray, wire: Wire, across: Callable[[Group, np.ndarray, Wire], Steps]) -> Steps:
    near, lanes, lane = near_and_lane(group.places, group.index)
    position = near.index(group.index)
    slices = [flat[segment(flat.size, lanes, owner)] for owner in range(lanes)]
    peers = [index for index in near if index != group.index]
    if position < lanes:
        mine = slices[position]
        received = wire.scratch((len(peers), mine.size), flat)
        requests = [r for row, index in zip(received, peers, strict=True) for r in group.receive(row, index)]
    else:
        mine, received, requests = flat[:0], (), []
    for owner in range(lanes):
        if near[owner] != group.index:
            requests += group.send(wire.outgoing(slices[owner]), near[owner])
    yield completed(requests)
    for row in received:
        wire.add(row, mine)

    if position < lanes:
        yield from across(group.subset(lane), mine, wire)
        wire.settle(mine)

    landings = [(near[owner], slices[owner], wire.landing(slices[owner])) for owner in range(lanes)]
    requests = [r for index, _, landing in landings if index != group.index for r in group.receive(landing, index)]
    if position < lanes:
        outgoing = wire.outgoing(mine)
        requests += [r for index in peers for r in group.send(outgoing, index)]
    yield completed(requests)
    for index, values, landing in landings:
        if index != group.index:
            wire.land(landing, values)


def near_ranks(places: Sequence[tuple[int, ...]]) -> list[list[int]]:
    """Return the indices of each supernode, or of each node where there is one supernode only. Local."""
    depth = 1 if len({place[0] for place in places}) > 1 else 2
    members: dict[tuple[int, ...], list[int]] = {}
    for number, place in enumerate(places):
        members.setdefault(place[:depth], []).append(number)
    return list(members.values())


def near_and_lane(places: Sequence[tuple[int, ...]], index: int) -> tuple[list[int], int, list[int]]:
    """Return the indices near `index`, itself among them, the number of lanes, and the indices of its lane. Local.

    `places`: (supernode, node, ...) of all indices, sorted.
    """
    by_place = near_ranks(places)
    near = next(members for members in by_place if index in members)
    lanes = min(map(len, by_place))
    position = near.index(index)
    return near, lanes, [members[position] for members in by_place] if position < lanes else []
