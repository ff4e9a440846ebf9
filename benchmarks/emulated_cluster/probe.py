"""Measures links by TCP: `probe.py receive FROM UNTIL` runs on one host, `probe.py send HOST WINDOW` on another.

Times are those of time.monotonic(), a clock that all hosts share. The receiver prints "bytes first last": what it took
between the first moment at or after FROM in which a read ended and the first one at or after UNTIL.
"""

from __future__ import annotations

import socket
import sys
import time
from contextlib import suppress

PORT = 5001
CHUNK = 1 << 18
PATIENCE_SECONDS = 30.0
SO_SNDBUFFORCE = 32  # of asm-generic/socket.h: beyond the machine's maximum, for root


def receive(start: float, until: float) -> None:
    """Take one connection; print what came when."""
    with socket.create_server(("", PORT)) as server:
        print("listening", flush=True)
        server.settimeout(PATIENCE_SECONDS)
        connection, _ = server.accept()
    with connection:
        connection.settimeout(PATIENCE_SECONDS)
        buffer = bytearray(CHUNK)
        _, first = _take(connection, buffer, start)
        total, last = _take(connection, buffer, until)
    print(total, first, last, flush=True)


def _take(connection: socket.socket, buffer: bytearray, until: float) -> tuple[int, float]:
    """Read until a read ends at `until` or later; return (bytes, when that was)."""
    total, now = 0, 0.0
    while now < until:
        total += connection.recv_into(buffer)
        now = time.monotonic()
    return total, now


def send(host: str, window: int) -> None:
    """Send zeros to a host until it has had enough, with about `window` bytes on their way."""
    data = bytes(CHUNK)
    with socket.create_connection((host, PORT), PATIENCE_SECONDS) as connection, suppress(ConnectionError):
        connection.setsockopt(socket.SOL_SOCKET, SO_SNDBUFFORCE, window)
        while True:
            connection.sendall(data)


if __name__ == "__main__":
    if sys.argv[1] == "receive":
        receive(float(sys.argv[2]), float(sys.argv[3]))
    else:
        send(sys.argv[2], int(sys.argv[3]))
