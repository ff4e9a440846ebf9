"""Who writes checkpoints into a directory: one run at a time, named in a file there while it lives.

File locks are no help: NFS and Lustre have them by configuration only. On one host the process tells whether its run
lives; from another host, or another container, the file does, which its run touches every few seconds.
"""

from __future__ import annotations

import atexit
import json
import os
import socket
import time
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from threading import Event, Thread
from typing import Any
from uuid import uuid4

from hybridmpi import environment
from hybridmpi.errors import CheckpointError, UsageError
from hybridmpi.folders import make_folders, remove_empty
from hybridmpi.wording import one_line

OWNER_FILE = ".owner.json"
# An owner touches its file this often; one whose file rests for as long as WATCH_SECONDS is gone.
BEAT_SECONDS, WATCH_SECONDS, LOOK_SECONDS = 5.0, 30.0, 0.5
# Two that take over from the same third see each other after this.
SETTLE_SECONDS = 0.2
# What batch systems call a job, and how often it was started again.
JOB_VARIABLES = ("SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID", "JOB_ID", "FLUX_JOB_ID")
RESTART_VARIABLE = "SLURM_RESTART_COUNT"

_held: dict[str, Owner] = {}


class Owner:
    """The right of this process to write into `root`, until `release`. Local; see `take`."""

    def __init__(self, root: Path) -> None:
        self.root, self.path = root, root / OWNER_FILE
        self.users = 0
        self._about = {**_process(), **_job(), "since": _now(), "token": uuid4().hex}
        self._released = Event()
        self._made: list[Path] = []

    def take(self) -> str:
        """Become the owner; return "", or a note on whom it was taken over from. Raises UsageError."""
        try:
            self._made = make_folders(self.root)
        except OSError as error:
            raise self._unwritable(error) from error
        try:
            note = self._take_over() if os.path.lexists(self.path) else ""
            if not note:
                with open(self.path, "x", encoding="utf-8") as file:
                    file.write(json.dumps(self._about))
        except FileExistsError as error:
            raise self._refusal(_read(self.path)) from error
        except OSError as error:
            raise self._unwritable(error) from error
        Thread(target=self._beat, name="directory-owner", daemon=True).start()
        return note

    def _take_over(self) -> str:
        """Take the place of an owner that is gone; return a note. Raises UsageError where it lives."""
        other = _read(self.path)
        if _lives(self.path, other):
            raise self._refusal(other)
        if not os.path.lexists(self.path):
            return ""
        aside = self.path.with_suffix(f".{self._about['token']}.tmp")
        try:
            aside.write_text(json.dumps(self._about), encoding="utf-8")
            os.replace(aside, self.path)
        finally:
            aside.unlink(missing_ok=True)
        time.sleep(SETTLE_SECONDS)
        self.check()
        return f"{self.root}: taken over from {_told(other)}, which is gone"

    def check(self) -> None:
        """Raise CheckpointError if another run has taken over: this one was thought to be gone."""
        found = _read(self.path)
        if not found and not os.path.lexists(self.path):
            with suppress(OSError), open(self.path, "x", encoding="utf-8") as file:
                file.write(json.dumps(self._about))
            return
        if found.get("token") != self._about["token"]:
            raise CheckpointError(
                f"{self.root}: {_told(found)} writes its checkpoints here now and thought that this run was gone; this "
                "one saves no more: end one of them, or set another directory"
            )

    def _refusal(self, other: dict[str, Any]) -> UsageError:
        return UsageError(
            f"{self.root}: {_told(other)} writes its checkpoints here. Wait for its end, end it, or set another "
            "directory (checkpoint.directory of a job)"
        )

    def _unwritable(self, error: OSError) -> UsageError:
        return UsageError(f"{self.root}: checkpoints cannot be written there: {one_line(error)}; set another directory")

    def _beat(self) -> None:
        while not self._released.wait(BEAT_SECONDS):
            with suppress(OSError):
                if _read(self.path).get("token") == self._about["token"]:
                    os.utime(self.path)

    def release(self) -> None:
        """Give the directory back, when all that took it in this process have. Local."""
        self.users -= 1
        if self.users > 0 or self._about["pid"] != os.getpid():
            return
        self._released.set()
        _held.pop(str(self.root), None)
        with suppress(OSError):
            if _read(self.path).get("token") == self._about["token"]:
                self.path.unlink()
        remove_empty(self._made)


def take(root: str | os.PathLike) -> tuple[Owner, str]:
    """Make this process the one that writes checkpoints into `root`; return the right to, and "" or a note. Local.

    A process may take a directory several times. Raises UsageError naming the job and the host of a run that has it and
    lives; one that is gone is taken over from. Whether one of another host lives takes WATCH_SECONDS to see.
    """
    root = Path(os.path.realpath(root))
    owner, note = _held.get(str(root)), ""
    if owner is None or owner._about["pid"] != os.getpid():
        owner = Owner(root)
        note = owner.take()
        _held[str(root)] = owner
    owner.users += 1
    return owner, note


@atexit.register
def _release_all() -> None:
    for owner in list(_held.values()):
        owner.users = 1
        owner.release()


def _lives(path: Path, other: dict[str, Any]) -> bool:
    """Return whether the owner `other` of a file lives."""
    here = _process()
    if all(other.get(key) == here[key] for key in ("host", "boot", "space")):
        return type(other.get("pid")) is int and _began(other["pid"]) == other.get("began")
    job = _job()
    if job["job"] and other.get("job") == job["job"] and other.get("restarts") != job["restarts"]:
        return False  # this is the same job, which the batch system has started again
    touched, until = _touched(path), time.monotonic() + WATCH_SECONDS
    while touched is not None and time.monotonic() < until:
        time.sleep(LOOK_SECONDS)
        now = _touched(path)
        if now not in (None, touched):
            return True
        touched = now
    return False


def _touched(path: Path) -> int | None:
    try:
        with open(path, "rb") as file:  # opening, unlike stat, makes NFS ask its server
            return os.fstat(file.fileno()).st_mtime_ns
    except OSError:
        return None


def _read(path: Path) -> dict[str, Any]:
    """Return what an owner says of itself; nothing where that cannot be read."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _process() -> dict[str, Any]:
    """Return what tells this process from all others: of other hosts, boots, containers, and of the same number."""
    boot = space = ""
    with suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        space = os.readlink("/proc/self/ns/pid")
    return {
        "host": socket.gethostname(),
        "boot": boot,
        "space": space,
        "pid": os.getpid(),
        "began": _began(os.getpid()),
    }


def _began(pid: int) -> int | None:
    """Return when a process began, in ticks since the host did; None of no process."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else int(fields[19])


def _job() -> dict[str, str]:
    job = next(filter(None, map(environment.text, JOB_VARIABLES)), "")
    return {"job": job, "restarts": environment.text(RESTART_VARIABLE)}


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _told(about: dict[str, Any]) -> str:
    """Return who an owner is, in words."""
    if not about:
        return "another run"
    job = f"job {about['job']}" if about.get("job") else "a run"
    return one_line(f"{job} on {about.get('host')} (process {about.get('pid')}, since {about.get('since')})")[:300]
