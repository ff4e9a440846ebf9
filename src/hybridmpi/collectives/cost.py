"""What an all-reduce between nodes costs: the formulas of the algorithms, in seconds.

With latency a, seconds per byte b and seconds per byte added g (REFERENCE: all-reduce today; swCaffe, arXiv 1903.06934,
section V). a and b belong to a level: partners in one node, in one supernode, across the trunk; each is measured with
all ranks exchanging at once, so that what they share counts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from hybridmpi.collectives.folding import largest_power, member
from hybridmpi.collectives.group import LEVELS, level
from hybridmpi.collectives.two_level import near_and_lane, near_ranks, pieces_of


@dataclass(frozen=True)
class Link:
    """An exchange of n bytes each way takes `latency` + n `per_byte` seconds."""

    latency: float
    per_byte: float

    def seconds(self, nbytes: float) -> float:
        """Return the time of an exchange of `nbytes` each way. Local."""
        return self.latency + nbytes * self.per_byte


@dataclass(frozen=True)
class Network:
    """The places of a group's ranks in the order of their indices, the link of each level, seconds per byte added."""

    places: Sequence[tuple[int, ...]]
    links: Mapping[str, Link]
    add: float

    @cached_property
    def size(self) -> int:
        """The number of ranks."""
        return len(self.places)

    def between(self, pairs: Sequence[tuple[int, int]]) -> Link:
        """Return the link of the farthest of these pairs of indices: what an exchange of all of them takes; a free one
        where every index is paired with itself. Local."""
        levels = [level(self.places[i], self.places[j]) for i, j in pairs if i != j]
        return self.links[max(levels, key=LEVELS.index)] if levels else Link(0.0, 0.0)

    def one_by_one(self) -> Link:
        """Return the link of the ring's slowest hop. Only one rank of a supernode sends across the trunk, which is then
        shared with nobody; it is still no faster than a link to a near rank. Local."""
        links = [self.links[level(self.places[i - 1], self.places[i])] for i in range(self.size)]
        if "trunk" in self.links and self.size > 1:
            at_once = min(_count(self.places, place[0]) for place in self.places)
            trunk = self.links["trunk"]
            near = [link.per_byte for name, link in self.links.items() if name != "trunk"]
            alone = Link(trunk.latency, max([trunk.per_byte / at_once, *near]))
            links = [alone if link is trunk else link for link in links]
        return max(links, key=lambda link: link.seconds(1 << 20))


def predict(algorithm: str, nbytes: int, network: Network) -> float:
    """Return the seconds that `algorithm` takes for a buffer of `nbytes`. Local."""
    return FORMULAS[algorithm](nbytes, network) if network.size > 1 else 0.0


def _doubling(n: int, net: Network) -> float:
    power = largest_power(net.size)
    return _fold(n, net) + sum(net_at.seconds(n) + n * net.add for _, net_at in _distances(net, power))


def _halving(n: int, net: Network) -> float:
    power = largest_power(net.size)
    steps = [(link, n / (2 * distance)) for distance, link in _distances(net, power)]
    return _fold(n, net) + sum(2 * link.seconds(part) + part * net.add for link, part in steps)


def _ring(n: int, net: Network) -> float:
    # Additions hide behind transfers, but for those of the last chunk of a step.
    return 2 * (net.size - 1) * net.one_by_one().seconds(n / net.size)


def _two_level(n: int, net: Network) -> float:
    near, lanes, lane = near_and_lane(net.places, max(near_ranks(net.places), key=len)[0])
    others, part, pieces = len(near) - 1, n / lanes, pieces_of(n)
    link = net.between([(near[0], index) for index in near])
    inside = 2 * link.seconds(others * part) + 2 * max(0, others - 1) * link.latency + others * part * net.add
    far = net.between([(lane[0], index) for index in lane])
    across = 2 * (len(lane) - 1) * far.seconds(part / len(lane)) + part * net.add
    # While one piece is across, another one is near.
    return (inside + across) / pieces + max(inside, across) * (pieces - 1) / pieces


FORMULAS = {
    "recursive_doubling": _doubling,
    "halving_doubling": _halving,
    "ring": _ring,
    "two_level": _two_level,
}


def _fold(n: int, net: Network) -> float:
    extra = net.size - largest_power(net.size)
    if not extra:
        return 0.0
    return 2 * net.between([(2 * i, 2 * i + 1) for i in range(extra)]).seconds(n) + n * net.add


def _distances(net: Network, power: int) -> list[tuple[int, Link]]:
    """Return (distance, the link of the exchanges at it) for the core's partners 1, 2, 4, ... apart."""
    extra = net.size - power
    distances = [1 << k for k in range(power.bit_length() - 1)]
    return [(d, net.between([(member(c, extra), member(c ^ d, extra)) for c in range(power)])) for d in distances]


def _count(places: Sequence[tuple[int, ...]], supernode: int) -> int:
    return sum(place[0] == supernode for place in places)
