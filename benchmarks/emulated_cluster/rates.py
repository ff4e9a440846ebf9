"""What links and trunks really carry, measured by TCP between hosts (probe.py)."""

from __future__ import annotations

import math
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from emulated_cluster.links import QUEUE_SECONDS, Layout
from emulated_cluster.namespaces import Namespaces
from hybridmpi.errors import HybridMPIError

PROBE = str(Path(__file__).resolve().with_name("probe.py"))
CHECK_SECONDS = 0.3
# Before that, receivers and senders start, and TCP doubles its speed every round trip until the link is full.
WARM_UP_SECONDS, WARM_UP_ROUND_TRIPS = 0.3, 20
# A sender has little enough on its way that no queue overflows, else losses would be measured; enough to fill the link
# for a round trip and for this long. The kernel allows about twice as much as it is asked for.
WINDOW_SECONDS = QUEUE_SECONDS / 4
PATIENCE_SECONDS = 60.0
# Nothing makes a link faster than its limit, and whatever else runs on the machine's cores makes it slower: what is
# measured below this share of the limit is measured again, so often in all, and the fastest counts.
GOOD, TRIES = 0.9, 3


@dataclass(frozen=True)
class Rate:
    """What a link was measured to carry, in Mbit/s of TCP payload, and what it was limited to, headers included."""

    name: str
    measured: float
    limit: float

    def __str__(self) -> str:
        return f"{self.name:<16}{self.measured:8.1f} Mbit/s of {self.limit:g} ({self.measured / self.limit:.0%})"


def measure(spaces: Namespaces, layout: Layout, delay_us: int) -> list[Rate]:
    """Measure each link and each trunk, one after the other, and return the rates. Local.

    A host sends to the next one of its group, so each link is used both ways; over a trunk, as many hosts of a group as
    can fill it send to one of the next group each. A group of one host has its link measured with its trunk only.
    """
    jobs = []
    for names in layout.members:
        for source, target in zip(names, names[1:] + names[:1], strict=True):
            if source != target:
                jobs.append((f"{source} -> {target}", [(source, target)], layout.rate))
    if layout.groups > 1:
        for group, names in enumerate(layout.members):
            other = (group + 1) % layout.groups
            pairs = list(zip(names, layout.members[other], strict=False))[: math.ceil(layout.trunk / layout.rate)]
            jobs.append((f"group {group} -> {other}", pairs, min(layout.trunk, len(pairs) * layout.rate)))
    found = []
    for name, pairs, limit in jobs:
        best = 0.0
        for _ in range(TRIES):
            best = max(best, _send(spaces, layout, pairs, limit, delay_us))
            if best >= GOOD * limit:
                break
        found.append(Rate(name, best / 1e6, limit / 1e6))
    return found


def _send(spaces: Namespaces, layout: Layout, pairs: list[tuple[str, str]], limit: int, delay_us: int) -> float:
    """Send from the first to the second host of all pairs at once; return the bit/s of all together."""
    python = [sys.executable, "-I", "-S", PROBE]
    round_trip = 2e-6 * delay_us
    window = round(limit / 8 * (round_trip + WINDOW_SECONDS) / len(pairs))
    start = time.monotonic() + WARM_UP_SECONDS + WARM_UP_ROUND_TRIPS * round_trip
    receivers, senders = [], []
    try:
        for _, target in pairs:
            receivers.append(spaces.start(target, [*python, "receive", str(start), str(start + CHECK_SECONDS)]))
        for receiver in receivers:
            receiver.stdout.readline()  # it listens
        for source, target in pairs:
            senders.append(spaces.start(source, [*python, "send", layout.address(target), str(window)]))
        lines = [receiver.communicate(timeout=PATIENCE_SECONDS)[0] for receiver in receivers]
    finally:
        spaces.end_jobs()
        words = [process.communicate()[0] for process in senders]
    if any(receiver.returncode for receiver in receivers):
        raise HybridMPIError(f"emulated cluster: the TCP probe failed between {pairs}: {' '.join(lines + words)}")
    seen = [[float(word) for word in line.split()] for line in lines]
    total = sum(count for count, _, _ in seen)
    return total * 8 / (max(last for _, _, last in seen) - min(first for _, first, _ in seen))
