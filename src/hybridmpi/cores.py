"""How many cores this process may use: by its affinity and by the quotas of its control groups, as containers set."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from pathlib import Path

GROUPS = Path("/sys/fs/cgroup")
MEMBERSHIP = Path("/proc/self/cgroup")


def usable_cores(groups: Path = GROUPS, membership: Path = MEMBERSHIP) -> int:
    """Return how many cores this process can keep busy, at least 1: those of its affinity, no more than its quota of
    processor time allows. Local."""
    quota = quota_of_groups(groups, membership)
    return affinity_cores() if quota is None else min(affinity_cores(), max(1, math.ceil(quota)))


def affinity_cores() -> int:
    """Return the number of cores that this process may run on, quotas aside. Local."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def quota_of_groups(groups: Path = GROUPS, membership: Path = MEMBERSHIP) -> float | None:
    """Return the least quota of the control groups of this process in cores, such as 1.5; None without one. Local."""
    found = []
    for folder, second in folders_of_groups("cpu", groups, membership):
        try:
            if second:
                quota, period = (folder / "cpu.max").read_text().split()
            else:
                quota, period = ((folder / f"cpu.cfs_{name}_us").read_text() for name in ("quota", "period"))
            if quota != "max" and int(quota) > 0 and int(period) > 0:
                found.append(int(quota) / int(period))
        except (OSError, ValueError):
            continue
    return min(found, default=None)


def folders_of_groups(
    controller: str, groups: Path = GROUPS, membership: Path = MEMBERSHIP
) -> Iterator[tuple[Path, bool]]:
    """Yield (folder, whether it is of version 2) of each control group of this process by which `controller` may limit
    it, from its own up to the root that is seen here. Local.

    In a container the group's path may be that of the host, which is not there: then only the root is.
    """
    try:
        lines = membership.read_text().splitlines()
    except OSError:
        return
    for line in lines:
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if number == "0":
            root, second = groups, True
        elif controller in controllers.split(","):
            root, second = groups / controller, False
        else:
            continue
        here = root / path.strip("/")
        for folder in (here, *here.parents):
            if folder == root.parent:
                break
            yield folder, second
