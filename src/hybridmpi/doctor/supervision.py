"""Running the examination so that it may crash, hang or be killed: what is known by then is reported all the same."""

from __future__ import annotations

import json
import queue
import re
import signal
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import IO, Any

from hybridmpi.children import python
from hybridmpi.doctor.finding import FAIL, MARK, Finding, fail, warn
from hybridmpi.mpi_implementations import PLUGINS, Implementation, implementation
from hybridmpi.wording import telling

PATIENCE = 30.0
"""Seconds that any one step may take."""
PATIENCE_FOR = {"start of MPI": 60.0, "imports, checkpoints and GPU": 60.0}
NO_PMI = re.compile(r"PMI(x|X|2)?\b.*\b(version|support|mismatch)|PMI[X2]?_Init|unable to init\w* PMI", re.IGNORECASE)
"""What an MPI says that was started by something that does not speak its PMI."""
# Of what MPI and the launcher print, so much is kept.
KEPT_LINES = 200
MEANING = {
    "this host": "look at the load of this host and at the file system that holds the environment",
    "start of MPI": "hybridmpi launch -n 2 -- doctor on one host; if that is well, look for a firewall between hosts, "
    "and {messages}",
    "all-reduce": "the network that MPI chose does not work here: {messages}",
    "one-sided": "windows do not work with this MPI here: {one_sided}; or more room in /dev/shm",
    "large windows": "tables of more than 2 GiB a rank may not work with this MPI: use more servers, or another MPI",
}
SECTIONS = ("software", "MPI", "ranks", "communication", "machine", "files", "directory")


@dataclass
class Examined:
    """What an examination came to: the findings by section, how many ranks on which hosts, whether it was finished."""

    sections: dict[str, list[Finding]] = field(default_factory=dict)
    ranks: int = 0
    hosts: list[str] = field(default_factory=list)
    finished: bool = False
    step: str = ""
    stopped: bool = False
    spoken: list[str] = field(default_factory=list)
    mpi: Implementation | None = None

    def findings(self) -> list[Finding]:
        """Return all findings in the order of the report."""
        return [finding for name in SECTIONS for finding in self.sections.get(name, ())]


class Stopped(Exception):  # noqa: N818  (no error: the launcher or the user ends this process)
    """A signal that ends this process; the report comes before the end."""


def examine(argv: Sequence[str], environment: Mapping[str, str]) -> Examined:
    """Run the examination, one rank or a launcher of several, to its end, its death or its deadline. Local.

    File descriptors are passed on, since MPICH's launchers talk to their ranks through one. A death, a step that does
    not end and a signal to this process become a `fail` that names the step.
    """
    result = Examined()
    previous = {number: signal.signal(number, _stop) for number in (signal.SIGTERM, signal.SIGINT)}
    child = None
    try:
        child = subprocess.Popen(
            argv,
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            close_fds=False,
            text=True,
            errors="replace",
        )
        reason = _listen(child, result)
    except Stopped:
        result.stopped = True
        reason = "was ended from outside: another rank failed, or the batch system or the user stopped the job"
    finally:
        if child is not None:
            _end(child)
        for number, handler in previous.items():
            signal.signal(number, handler)
    told = result.sections.setdefault("communication", [])
    if reason or not result.finished:
        step = result.step or "start"
        told_most = telling("\n".join(result.spoken))
        said = f"; it said: {told_most}" if told_most else ""
        told.append(fail(step, f"{reason or 'ended early'}{said}", _remedy(result)))
        result.finished = False
    elif result.spoken and not any(finding.status == FAIL for finding in result.findings()):
        printed = telling("\n".join(result.spoken))
        told.append(warn("messages", f"MPI printed: {printed}", "look it up; training goes on all the same"))
    return result


def _remedy(result: Examined) -> str:
    """Return what to do about the step that the examination did not survive."""
    if result.step == "start of MPI" and any(NO_PMI.search(line) for line in result.spoken):
        right = f"srun --mpi={result.mpi.plugin}" if result.mpi else f"srun {PLUGINS}"
        return (
            f"the launcher and this MPI share no PMI: start with hybridmpi launch, which finds the right launcher, or "
            f"{right}"
        )
    advice = MEANING.get(result.step, "hybridmpi launch -n 2 -- doctor on one host tells whether it is the network")
    mpi = result.mpi
    return advice.format(
        messages=mpi.messages if mpi else "try another MPI",
        one_sided=mpi.one_sided if mpi else "try another MPI",
    )


def _stop(number: int, frame: object) -> None:
    raise Stopped


def _listen(child: subprocess.Popen, result: Examined) -> str:
    """Take in what the child says until it ends; return "" if it ended well, else how it ended."""
    lines: queue.Queue[tuple[str, bool] | None] = queue.Queue()
    for stream in (child.stdout, child.stderr):
        threading.Thread(target=_read, args=(stream, lines), daemon=True).start()
    open_streams, deadline = 2, time.monotonic() + PATIENCE
    while open_streams:
        try:
            line = lines.get(timeout=max(0.0, deadline - time.monotonic()))
        except queue.Empty:
            return f"did not end within {PATIENCE_FOR.get(result.step, PATIENCE):g} s"
        if line is None:
            open_streams -= 1
            continue
        if line.startswith(MARK):
            message = json.loads(line.removeprefix(MARK))
            _take(message, result)
            if "begin" in message:
                deadline = time.monotonic() + PATIENCE_FOR.get(result.step, PATIENCE)
        elif line.strip() and len(result.spoken) < KEPT_LINES:
            result.spoken.append(line.strip())
    status = child.wait()
    if status == 0:
        return ""
    return f"died of signal {-status} ({signal.Signals(-status).name})" if status < 0 else f"ended with status {status}"


def _read(stream: IO[str], lines: queue.Queue) -> None:
    for line in stream:
        lines.put(line.rstrip("\n").strip("\0"))
    lines.put(None)


def _take(message: dict[str, Any], result: Examined) -> None:
    if "begin" in message:
        result.step = message["begin"]
    elif "mpi" in message:
        result.mpi = implementation(*message["mpi"])
    elif "section" in message:
        result.sections[message["section"]] = [
            Finding(**{**finding, "where": tuple(finding["where"])}) for finding in message["findings"]
        ]
    else:
        result.ranks, result.hosts = message["end"]["ranks"], message["end"]["hosts"]
        result.finished = True


def _end(child: subprocess.Popen) -> None:
    """End the child if it still runs: by TERM, upon which launchers end their ranks, then by KILL."""
    if child.poll() is None:
        child.terminate()
        try:
            child.wait(timeout=2)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()


def rank_program(directory: str) -> list[str]:
    """Return the program of one rank. Local."""
    return python("-m", "hybridmpi.doctor.examination", directory)
