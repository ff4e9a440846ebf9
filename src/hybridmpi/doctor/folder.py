"""The directory of checkpoints: written to as training writes, seen alike by all hosts, on what file system.

Run as a program it prints its findings as JSON: a file system that hangs then hangs a child, which has a deadline.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import time
from contextlib import suppress
from pathlib import Path

from hybridmpi.doctor.finding import Finding, fail, ok, seconds_text, size_text, warn
from hybridmpi.doctor.machine import GiB
from hybridmpi.wording import one_line

SMALL_SPACE = GiB
LEAST_SPACE = 16 << 20
SLOW_SECONDS = 1.0
PROBED = 1 << 20
FLEETING = {
    "tmpfs": "lies in memory: checkpoints are lost with this host, and take memory from training",
    "ramfs": "lies in memory: checkpoints are lost with this host, and take memory from training",
    "overlay": "belongs to the container: checkpoints are lost with it",
}
NETWORK = ("nfs", "nfs4", "lustre", "gpfs", "beegfs", "cifs", "ceph", "fuse", "9p", "virtiofs", "wekafs", "panfs")
SEEN_SECONDS = 3.0
"""How long a host may take to see what another has written: NFS keeps what it knows of a directory for seconds."""


def probe(directory: str) -> list[Finding]:
    """Return whether checkpoints can be written, and kept, in `directory`, or where it would be made. Local."""
    what = "checkpoints"
    wanted = Path(directory).absolute()
    folder = next(parent for parent in (wanted, *wanted.parents) if parent.exists())
    named = f"{wanted}" if folder == wanted else f"{folder} ({wanted} is yet to be made)"
    if not folder.is_dir():
        return [fail(what, f"{folder} is a file, not a directory", "hybridmpi doctor --directory ANOTHER")]
    kind, mounted = file_system(folder)
    found = [_write(what, folder, named, kind), _space(folder, kind)]
    if kind in FLEETING:
        text = f"{mounted} is {kind}, which {FLEETING[kind]}"
        found.append(warn("file system", text, "set [checkpoint] directory in the job file to a disk that stays"))
    else:
        network = kind.startswith(NETWORK)
        text = f"{kind} at {mounted}" + ("" if network else ", a disk of this host")
        found.append(ok("file system", text))
    return found


def _write(what: str, folder: Path, named: str, kind: str) -> Finding:
    """Write an HDF5 file aside, flush, rename, read it back, lock it: all that a checkpoint does."""
    import numpy as np

    from hybridmpi.checkpoint.files import write_file
    from hybridmpi.checkpoint.verify import verify_file
    from hybridmpi.errors import CheckpointError

    path = folder / f".hybridmpi-doctor-{os.uname().nodename}-{os.getpid()}.h5"
    values = np.arange(PROBED // 8)
    started = time.perf_counter()
    try:
        record = write_file(folder, path.name, {"values": values}, lambda file: None, {})
        seconds = time.perf_counter() - started
        same = verify_file(folder, record) is None
        locks = _locks(path)
    except (CheckpointError, OSError) as error:
        reason = one_line(error.__cause__ or error)
        remedy = "hybridmpi doctor --directory ANOTHER, and set [checkpoint] directory in the job file to what is well"
        if "Read-only" in reason:
            remedy = f"mount -o remount,rw (findmnt --target {folder} shows it); or {remedy}"
        elif "ermission" in reason:
            remedy = f"chmod u+rwx {folder}, if it is yours (ls -ld {folder}); or {remedy}"
        elif "space" in reason or "quota" in reason:
            remedy = f"remove old checkpoints there (df -h {folder}; quota -s); or {remedy}"
        return fail(what, f"{named} cannot be written: {reason}", remedy)
    finally:
        with suppress(OSError):
            path.unlink(missing_ok=True)
    if not same:
        return fail(what, f"{named}: a file read back holds other bytes than were written", "use another file system")
    text = f"{named}: write, fsync, rename and read of {size_text(PROBED)} took {seconds_text(seconds)}; {locks}"
    if seconds > SLOW_SECONDS:
        return warn(what, text, f"the file system ({kind}) is slow now: save less often, or use another directory")
    return ok(what, text, -seconds)


def _locks(path: Path) -> str:
    """Return in words whether the file can be locked; hybridmpi reads without locks and writes with or without."""
    with open(path, "r+b") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            return f"locks are refused ({error.strerror}), none is needed"
    return "locks work"


def _space(folder: Path, kind: str) -> Finding:
    free = shutil.disk_usage(folder).free
    text = f"{size_text(free)} free in {folder}"
    if free < SMALL_SPACE:
        make = fail if free < LEAST_SPACE else warn
        return make("space", f"only {text}", f"remove old checkpoints (du -sh {folder}/*), or use another directory")
    return ok("space", text, free)


def file_system(folder: Path) -> tuple[str, str]:
    """Return (type, mount point) of the file system that holds `folder`; ("unknown", ...) where none says. Local."""
    best = ("unknown", "/")
    resolved = folder.resolve()
    try:
        lines = Path("/proc/self/mountinfo").read_text().splitlines()
    except OSError:
        return best
    for line in lines:
        before, _, after = line.partition(" - ")
        mounted = before.split()[4].replace("\\040", " ")
        if resolved.is_relative_to(mounted) and len(mounted) >= len(best[1]):
            best = (after.split()[0], mounted)
    return best


def write_token(directory: str) -> tuple[str, str]:
    """Write a file with a text that nobody can guess; return (path, text), or ("", why not). Local."""
    wanted = Path(directory).absolute()
    folder = next(parent for parent in (wanted, *wanted.parents) if parent.exists())
    path, text = folder / f".hybridmpi-doctor-{os.getpid()}-{time.time_ns()}", os.urandom(8).hex()
    try:
        path.write_text(text)
    except OSError as error:
        return "", one_line(error)
    return str(path), text


def sees_token(path: str, text: str) -> bool:
    """Return whether this host reads `text` in the file `path` before SEEN_SECONDS have passed. Local."""
    deadline = time.monotonic() + SEEN_SECONDS
    while True:
        try:
            os.listdir(Path(path).parent)
            if Path(path).read_text() == text:
                return True
        except OSError:
            pass
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)


def seen_alike(path: str, sees: dict[str, bool]) -> list[Finding]:
    """Return whether all hosts see the directory in which rank 0 wrote `path` (""; it could not). Local, pure."""
    if not path:
        return []
    blind = [host for host, well in sees.items() if not well]
    if blind:
        return [fail(
            "same directory", f"what {next(iter(sees))} writes to {Path(path).parent} is not seen on "
            f"{', '.join(blind)}: every rank writes its shard, and one commits all",
            "use a directory that all hosts mount: hybridmpi doctor --directory /scratch/...",
        )]  # fmt: skip
    return [ok("same directory", f"{len(sees)} hosts see each other's files")]
