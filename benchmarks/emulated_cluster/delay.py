"""The cables of a cluster with latency: `python delay.py MICROSECONDS PORT...`, run on the switch.

Not every kernel has `tc netem`, so cables with a delay are not veth pairs but pairs of TAP devices, PORT and
PORT-host, between which this program carries frames: at once towards the switch, after the delay towards the host, so
that a frame between two hosts is delayed once. The devices take TCP segments as large as the hosts send them (up to
64 KiB), with the header of virtio in front, which is why a Python loop can keep up with a few hosts at 1 Gbit/s. Rates
are limited by the kernel, on the same devices. It runs at a real-time priority: it needs little of a core, but needs
it at once.
"""

from __future__ import annotations

import fcntl
import os
import select
import struct
import sys
import time
from collections import deque
from contextlib import suppress

TUN = "/dev/net/tun"
# From linux/if_tun.h.
TUNSETIFF, TUNSETOFFLOAD, TUNSETVNETHDRSZ = 0x400454CA, 0x400454D0, 0x400454D8
IFF_TAP, IFF_NO_PI, IFF_VNET_HDR = 0x0002, 0x1000, 0x4000
TUN_F_CSUM, TUN_F_TSO4 = 0x01, 0x02
VIRTIO_HEADER_BYTES = 10
LARGEST_FRAME = VIRTIO_HEADER_BYTES + 18 + (1 << 16)
# Frames taken from one device before the others, and those that are due, have their turn.
BATCH = 16
PRIORITY = 5


def main() -> None:
    """Make the devices, say so, and carry frames until killed."""
    delay = float(sys.argv[1]) * 1e-6
    peer: dict[int, int] = {}
    towards_host = set()
    for port in sys.argv[2:]:
        switch, host = tap(port), tap(f"{port}-host")
        peer |= {switch: host, host: switch}
        towards_host.add(switch)
    os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(PRIORITY))
    print("ready", flush=True)
    held: deque[tuple[float, int, bytes]] = deque()
    devices = list(peer)
    while True:
        now = time.monotonic()
        while held and held[0][0] <= now:
            _, device, frame = held.popleft()
            write(device, frame)
        readable, _, _ = select.select(devices, [], [], held[0][0] - now if held else None)
        for device in readable:
            for frame in frames(device):
                if device in towards_host:
                    held.append((time.monotonic() + delay, peer[device], frame))
                else:
                    write(peer[device], frame)


def tap(name: str) -> int:
    """Make a TAP device; return the file that its frames are read from and written to."""
    device = os.open(TUN, os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(device, TUNSETIFF, struct.pack("16sH22x", name.encode(), IFF_TAP | IFF_NO_PI | IFF_VNET_HDR))
    fcntl.ioctl(device, TUNSETVNETHDRSZ, struct.pack("i", VIRTIO_HEADER_BYTES))
    fcntl.ioctl(device, TUNSETOFFLOAD, TUN_F_CSUM | TUN_F_TSO4)
    return device


def frames(device: int) -> list[bytes]:
    """Return what a device has to carry, up to BATCH frames."""
    found = []
    with suppress(OSError):  # there is nothing more, or the device is not up yet
        while len(found) < BATCH:
            found.append(os.read(device, LARGEST_FRAME))
    return found


def write(device: int, frame: bytes) -> None:
    """Give a frame to a device; a frame for one that is down is lost, as on a cable that is not plugged in."""
    with suppress(OSError):
        os.write(device, frame)


if __name__ == "__main__":
    main()
