"""A cluster that is there inside a `with` statement, and gone after it however it ends."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from emulated_cluster import links
from emulated_cluster.job import describe
from emulated_cluster.namespaces import Namespaces, reason_against
from emulated_cluster.placement import BLOCK
from emulated_cluster.rates import Rate, measure
from hybridmpi.errors import HybridMPIError, UsageError

DELAY = str(Path(__file__).resolve().with_name("delay.py"))


@dataclass(frozen=True)
class Outcome:
    """How a job ended: exit code, standard output and error together, and seconds from its launch to its end."""

    code: int
    output: str
    seconds: float

    def __str__(self) -> str:
        return f"exit {self.code} after {self.seconds:.1f} s\n{self.output}"


class Cluster:
    """Hosts n1, n2, ... on links of `rate`, in `groups` that are joined by a `trunk` each (rates such as "250mbit").
    `delay_us`: microseconds that a frame needs from any host to any other, one way, beside what the rates cost.

    Use it in a `with` statement. Raises UsageError for what cannot be, and where the machine does not allow it
    (`reason_against` says so beforehand).
    """

    def __init__(
        self, hosts: int = 4, rate: str = "1gbit", groups: int = 1, trunk: str | None = None, delay_us: int = 0
    ) -> None:
        if delay_us < 0:
            raise UsageError(f"delay of {delay_us} us: expected 0 or more")
        limit = links.parse_rate(trunk) if trunk else None
        self.layout = links.Layout(hosts, groups, links.parse_rate(rate), limit)
        self.delay_us = delay_us
        self._namespaces: Namespaces | None = None
        self._carrier: subprocess.Popen | None = None

    def __enter__(self) -> Cluster:
        if reason := reason_against():
            raise UsageError(f"no emulated cluster here: {reason}")
        self._namespaces = Namespaces({name: self.layout.address(name) for name in self.layout.names})
        try:
            self._connect()
        except BaseException:
            self.down()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.down()

    def down(self) -> None:
        """End the hosts and all that runs on them; a second call does nothing. Local."""
        if self._namespaces is not None:
            self._namespaces.end()
            self._namespaces = None
        if self._carrier is not None:
            self._carrier.communicate()
            self._carrier = None

    @property
    def spaces(self) -> Namespaces:
        """The namespaces; raises HybridMPIError outside of the `with` statement."""
        if self._namespaces is None:
            raise HybridMPIError("this emulated cluster is not up: use it in a with statement")
        return self._namespaces

    def _connect(self) -> None:
        layout, do = self.layout, self.spaces.do
        if self.delay_us:
            argv = [sys.executable, "-I", "-S", DELAY, str(self.delay_us), *layout.names]
            self._carrier = self.spaces.start(None, argv)
            if (line := self._carrier.stdout.readline()) != "ready\n":
                words = (line + self._carrier.stdout.read()).strip()
                raise HybridMPIError(f"emulated cluster: the cables with a delay could not be made: {words}")
            self.spaces.keep()
        cables = links.cables(layout, self.spaces.pids, bool(self.delay_us))
        do(None, ["ip", "-batch", "-"], links.bridges(layout) + cables)
        do(None, ["tc", "-batch", "-"], links.limits_of_switch(layout))
        for name in layout.names:
            do(name, ["ip", "-batch", "-"], links.interface(layout, name))
            do(name, ["tc", "-batch", "-"], links.limit("eth0", layout.rate))

    def run(
        self,
        command: Sequence[str],
        ranks: int | None = None,
        env: Mapping[str, str] | None = None,
        placement: str = BLOCK,
        timeout: float = 600.0,
        echo: bool = False,
    ) -> Outcome:
        """Run an MPI job on the hosts; return how it ended. Local.

        `command`: as for `hybridmpi launch`: a program with its arguments, where `python` is this one, or a hybridmpi
        command. `ranks`: default one per host. `env`: added to the environment of every rank. `echo`: print the
        launcher's command line on stderr, and all output as it comes. Raises TimeoutError, with the output so far,
        after `timeout` seconds. Whatever way it ends, nothing of the job runs on.
        """
        spaces = self.spaces
        ranks = self.layout.hosts if ranks is None else ranks
        job = describe(command, ranks, self.layout.members, placement, env or {}, spaces.pids)
        if echo:
            print(job, file=sys.stderr, flush=True)
        started = time.monotonic()
        process = subprocess.Popen(
            spaces.enter(job.head, job.argv, os.getcwd()),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=job.environment,
            start_new_session=True,
        )
        parts: list[bytes] = []
        reader = threading.Thread(target=_read, args=(process.stdout, parts, echo), daemon=True)
        reader.start()
        late = False
        try:
            process.wait(timeout)
        except subprocess.TimeoutExpired:
            late = True
        finally:
            seconds = time.monotonic() - started
            process.kill()  # where it has not ended, and has perhaps not even come to the hosts
            spaces.end_jobs()
            process.wait()
            reader.join()
            process.stdout.close()
        output = b"".join(parts).decode(errors="replace").replace("\0", "")  # Open MPI ends a banner with a zero byte
        if late:
            raise TimeoutError(f"no end after {timeout:g} s, and killed: {job}\n{output}")
        return Outcome(process.returncode, output, seconds)

    def trunk_bytes(self) -> list[tuple[int, int]]:
        """Return for every group the bytes that (left, entered) it over its trunk so far, as the kernel counts. Local.

        Frames with their Ethernet, IP and TCP headers, but one set of headers for up to 64 KiB that TCP sent at once.
        With two groups, what leaves one enters the other.
        """
        if self.layout.groups == 1:
            raise UsageError("trunk bytes: this cluster has one group, so no trunk")
        counters = Path(f"/proc/{self.spaces.root.pid}/net/dev").read_text()
        seen = [links.bytes_of(counters, f"trunk{group}") for group in range(self.layout.groups)]
        return [(sent, received) for received, sent in seen]

    def check(self) -> list[Rate]:
        """Measure each link and each trunk by TCP, one after the other, and return the rates. Local."""
        return measure(self.spaces, self.layout, self.delay_us)


def _read(stream: object, parts: list[bytes], echo: bool) -> None:
    """Collect what a job writes until all of its processes have ended."""
    while data := os.read(stream.fileno(), 1 << 16):
        parts.append(data)
        if echo:
            sys.stdout.buffer.write(data)
            sys.stdout.flush()
