"""Measures links: a TCP sender and a receiver, run on hosts by `python probe.py receive WARM_UP SECONDS`, `send HOST`.

The receiver prints "bytes first last": what it took between two moments, by the clock that all hosts share. The first
is the end of a read, WARM_UP seconds or more after the sender came, in which TCP finds its speed; the last is that of a
read SECONDS or more later.
"""

from __future__ import annotations

import socket
import sys
import time
from contextlib import suppress

PORT = 5001
CHUNK = 1 << 18
PATIENCE_SECONDS = 30.0


def receive(warm_up: float, seconds: float) -> None:
    """Take one connection; print what came when."""
    with socket.create_server(("", PORT)) as server:
        print("listening", flush=True)
        server.settimeout(PATIENCE_SECONDS)
        connection, _ = server.accept()
    with connection:
        connection.settimeout(PATIENCE_SECONDS)
        buffer = bytearray(CHUNK)
        _, first = _take(connection, buffer, time.monotonic() + warm_up)
        total, last = _take(connection, buffer, first + seconds)
    print(total, first, last, flush=True)


def _take(connection: socket.socket, buffer: bytearray, until: float) -> tuple[int, float]:
    """Read until a read ends at `until` or later; return (bytes, when that was)."""
    total, now = 0, 0.0
    while now < until:
        total += connection.recv_into(buffer)
        now = time.monotonic()
    return total, now


def send(host: str) -> None:
    """Send zeros to a host until it has had enough."""
    data = bytes(CHUNK)
    with socket.create_connection((host, PORT), PATIENCE_SECONDS) as connection, suppress(ConnectionError):
        while True:
            connection.sendall(data)


if __name__ == "__main__":
    if sys.argv[1] == "receive":
        receive(*map(float, sys.argv[2:]))
    else:
        send(sys.argv[2])
