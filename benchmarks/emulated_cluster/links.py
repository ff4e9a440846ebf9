"""The network between the hosts: what `ip` and `tc` are told, as text. Pure functions.

    n1 eth0 --- n1 | group0 | trunk0 --- core0 |      | core1 --- trunk1 | group1 | n5 --- eth0 n5
    n2 eth0 --- n2 |        |                  | core |                  |        | n6 --- eth0 n6
       host         bridge                      bridge                     bridge            host

Every `---` is a veth pair (with a delay, those to the hosts are what delay.py makes instead), limited to its rate at
both ends by a token bucket (tc tbf), so in both directions. With one group there is its bridge only. With more, each
group's link to the core is its *trunk*; for two groups that is the same as one link between them, since what leaves one
trunk enters the other at the same rate.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from hybridmpi.errors import UsageError

UNITS = {"kbit": 10**3, "mbit": 10**6, "gbit": 10**9}
MOST_HOSTS = 64
# The hosts' packets are up to 64 KiB long (segments are cut, in a real network, by the network card; here they never
# are). A bucket that holds two of them passes them whole and is not emptied between two of its timer's ticks, as long
# as one millisecond of the rate fits too; anything larger would let the first part of a message travel at no cost.
SMALLEST_BURST = 128 << 10
BURST_SECONDS = 1e-3
# What waits at a link that is too slow for its senders; beyond that packets are lost, and TCP slows down.
QUEUE_SECONDS = 0.05


@dataclass(frozen=True)
class Layout:
    """Which hosts there are, in which groups, on what links; rates in bit/s, `trunk` None with one group.

    Hosts are n1, n2, ... and groups take equal shares of them in that order, the first ones one more where needed.
    """

    hosts: int
    groups: int
    rate: int
    trunk: int | None

    def __post_init__(self) -> None:
        if not 1 <= self.hosts <= MOST_HOSTS:
            raise UsageError(f"{self.hosts} hosts: expected 1 to {MOST_HOSTS}")
        if not 1 <= self.groups <= self.hosts:
            raise UsageError(f"{self.groups} groups of {self.hosts} hosts: expected 1 to {self.hosts}")
        if (self.trunk is None) != (self.groups == 1):
            expected = "no trunk with one group" if self.groups == 1 else "the rate of the trunk, such as 250mbit"
            raise UsageError(f"{self.groups} group{'s' * (self.groups > 1)}: expected {expected}")

    @property
    def names(self) -> list[str]:
        """The hosts' names."""
        return [f"n{number + 1}" for number in range(self.hosts)]

    @property
    def members(self) -> list[list[str]]:
        """The names of each group's hosts."""
        small, larger = divmod(self.hosts, self.groups)
        starts = [group * small + min(group, larger) for group in range(self.groups + 1)]
        return [self.names[start:stop] for start, stop in zip(starts, starts[1:], strict=False)]

    def address(self, name: str) -> str:
        """Return the IPv4 address of a host: no route leads there from outside, nor from there to anywhere else."""
        return f"10.77.0.{int(name[1:])}"


def parse_rate(text: str) -> int:
    """Return bit/s for text such as 1gbit, 250mbit, 2.5gbit. Local. Raises UsageError."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)(kbit|mbit|gbit)", text)
    rate = round(float(match[1]) * UNITS[match[2]]) if match else 0
    if rate < UNITS["mbit"]:
        raise UsageError(f"rate '{text}': expected at least 1mbit, written such as 1gbit, 250mbit or 2.5gbit")
    return rate


def bridges(layout: Layout) -> str:
    """Return what `ip -batch` is told in the switch's namespace: bridges, and the trunks between them. Local."""
    lines = [_bridge(f"group{group}") for group in range(layout.groups)]
    if layout.groups > 1:
        lines.append(_bridge("core"))
        for group in range(layout.groups):
            lines += [
                f"link add trunk{group} type veth peer name core{group}",
                f"link set trunk{group} master group{group} up",
                f"link set core{group} master core up",
            ]
    return "\n".join(lines) + "\n"


def cables(layout: Layout, pids: dict[str, int], delayed: bool) -> str:
    """Return what `ip -batch` is told in the switch's namespace: a cable from the group's bridge to each host, which
    is held by process pids[host]. Local. `delayed`: the cables are there already, with both ends on the switch."""
    lines = []
    for group, names in enumerate(layout.members):
        for name in names:
            if delayed:
                lines.append(f"link set {name}-host netns {pids[name]} name eth0")
            else:
                lines.append(f"link add {name} type veth peer name eth0 netns {pids[name]}")
            lines.append(f"link set {name} master group{group} up")
    return "\n".join(lines) + "\n"


def interface(layout: Layout, name: str) -> str:
    """Return what `ip -batch` is told on a host. Local."""
    return f"addr add {layout.address(name)}/24 dev eth0\nlink set eth0 up\n"


def limits_of_switch(layout: Layout) -> str:
    """Return what `tc -batch` is told in the switch's namespace. Local."""
    lines = [limit(name, layout.rate) for name in layout.names]
    if layout.groups > 1:
        lines += [limit(f"{end}{group}", layout.trunk) for group in range(layout.groups) for end in ("trunk", "core")]
    return "".join(lines)


def limit(device: str, rate: int) -> str:
    """Return what `tc -batch` is told to let `device` send `rate` bit/s. Local."""
    queue = max(2 * burst(rate), round(rate / 8 * QUEUE_SECONDS))
    return f"qdisc add dev {device} root tbf rate {rate}bit burst {burst(rate)} limit {queue}\n"


def burst(rate: int) -> int:
    """Return the bytes that a link of `rate` bit/s may send at once after a pause. Local."""
    return max(SMALLEST_BURST, round(rate / 8 * BURST_SECONDS))


def bytes_of(counters: str, device: str) -> tuple[int, int]:
    """Return (received, sent) bytes of a device, from the text of /proc/net/dev. Local."""
    for line in counters.splitlines():
        name, _, numbers = line.partition(":")
        if name.strip() == device:
            fields = numbers.split()
            return int(fields[0]), int(fields[8])
    raise ValueError(f"no device '{device}' in {counters!r}")


def _bridge(name: str) -> str:
    # No group membership traffic, and no wait before a port forwards.
    return f"link add {name} type bridge mcast_snooping 0 stp_state 0 forward_delay 0\nlink set {name} up"
