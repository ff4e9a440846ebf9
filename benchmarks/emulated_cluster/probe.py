"""Measures links: a TCP sender and a receiver, run on hosts by `python probe.py receive|send ...`.

The receiver takes what comes until the sender closes. It prints "bytes first last": what came after the first read that
ended later than its warm-up, in which TCP finds its speed; when that read ended, and when the last one did, by the
clock that all hosts share.
"""

from __future__ import annotations

import socket
import sys
import time

PORT = 5001
CHUNK = 1 << 18
PATIENCE_SECONDS = 30.0


def receive(warm_up: float) -> None:
    """Take one connection; print what came when, after `warm_up` seconds of it."""
    with socket.create_server(("", PORT)) as server:
        print("listening", flush=True)
        server.settimeout(PATIENCE_SECONDS)
        connection, _ = server.accept()
    with connection:
        connection.settimeout(PATIENCE_SECONDS)
        buffer = bytearray(CHUNK)
        connection.recv_into(buffer)
        first = time.monotonic()
        end = first + warm_up
        while first < end and connection.recv_into(buffer):
            first = time.monotonic()
        last = first
        total = 0
        while count := connection.recv_into(buffer):
            total += count
            last = time.monotonic()
    print(total, first, last, flush=True)


def send(host: str, seconds: float) -> None:
    """Send zeros to a host for so long."""
    data = bytes(CHUNK)
    with socket.create_connection((host, PORT), PATIENCE_SECONDS) as connection:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            connection.sendall(data)


if __name__ == "__main__":
    if sys.argv[1] == "receive":
        receive(float(sys.argv[2]))
    else:
        send(sys.argv[2], float(sys.argv[3]))
