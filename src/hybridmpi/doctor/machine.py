"""This host and this process: memory, shared memory, limits, numba's cache. Without MPI."""

from __future__ import annotations

import os
import resource
import shutil
import time
from importlib.util import find_spec
from pathlib import Path

from hybridmpi import environment as variables
from hybridmpi import kernel_cache
from hybridmpi.cores import folders_of_groups
from hybridmpi.doctor.finding import Finding, fail, ok, size_text, warn
from hybridmpi.folders import home

GiB = 1 << 30
# Of a rank: with numpy and numba it takes 0.2 GiB before it has a model.
LEAST_MEMORY = 128 << 20
SMALL_MEMORY = 512 << 20
# Docker's default of 64 MiB holds no table; what MPI itself takes for a node is a few MiB a rank.
LEAST_SHARED = 16 << 20
SMALL_SHARED = 1 << 30
LEAST_FILES = 256
SHARED_MEMORY = Path("/dev/shm")


def probe_host(ranks: int = 1) -> list[Finding]:
    """Return what holds for a whole host with so many ranks: memory, shared memory. Local."""
    return [_memory(ranks), _shared_memory()]


def probe_process() -> list[Finding]:
    """Return what may differ between processes: limits, numba's cache. Local."""
    return [*limits(), _numba_cache()]


def available_memory() -> int:
    """Return the bytes of memory that new processes may take, of the host or of the batch job's limit. Local."""
    memory = {}
    for line in Path("/proc/meminfo").read_text().splitlines():
        name, _, rest = line.partition(":")
        memory[name] = int(rest.split()[0]) << 10
    available = memory["MemAvailable"]
    for limit, used in _limits_of_groups():
        available = min(available, limit - used)
    return available


def _limits_of_groups() -> list[tuple[int, int]]:
    """Return (limit, used) in bytes of every control group of this process that has a limit."""
    found = []
    for folder, second in folders_of_groups("memory"):
        limit, used = ("max", "current") if second else ("limit_in_bytes", "usage_in_bytes")
        try:
            text = (folder / f"memory.{limit}").read_text().strip()
            if text != "max" and int(text) < 1 << 60:
                found.append((int(text), int((folder / f"memory.{used}").read_text())))
        except (OSError, ValueError):
            continue
    return found


def _memory(ranks: int) -> Finding:
    free = available_memory()
    text = f"{size_text(free)} available on this host"
    if ranks > 1:
        text += f", {size_text(free / ranks)} a rank"
    if free / ranks < SMALL_MEMORY:
        make = fail if free / ranks < LEAST_MEMORY else warn
        return make(
            "memory", f"only {text}", "end other programs, start fewer ranks, or ask for more: sbatch --mem=16G"
        )
    return ok("memory", text, free / ranks)


def _shared_memory() -> Finding:
    what = "shared memory"
    try:
        total, _, free = shutil.disk_usage(SHARED_MEMORY)
    except OSError as error:
        return fail(what, f"{SHARED_MEMORY}: {error.strerror}; the ranks of a node share tables there", "mount it: "
                    f"mount -t tmpfs tmpfs {SHARED_MEMORY}")  # fmt: skip
    text = f"{size_text(free)} of {size_text(total)} free in {SHARED_MEMORY}"
    remedy = (
        "in a container: docker run --shm-size=8g, or --ipc=host; elsewhere remove what ended jobs left: "
        f"ls -l {SHARED_MEMORY}"
    )
    if free < SMALL_SHARED:
        make = fail if free < LEAST_SHARED else warn
        return make(what, f"only {text}: the tables that a node holds must fit", remedy)
    if not os.access(SHARED_MEMORY, os.W_OK):
        return fail(what, f"{SHARED_MEMORY} cannot be written", f"chmod 1777 {SHARED_MEMORY}")
    return ok(what, text, free)


def limits() -> list[Finding]:
    """Return what `ulimit` shows that hurts; one line if nothing does. Local."""
    found = []
    what, infinite = "limits", resource.RLIM_INFINITY
    address = resource.getrlimit(resource.RLIMIT_AS)[0]
    if address != infinite:
        found.append(warn(
            what,
            f"ulimit -v allows {size_text(address)} of address space: shared tables and numba count against it",
            "ulimit -v unlimited",
        ))  # fmt: skip
    data = resource.getrlimit(resource.RLIMIT_DATA)[0]
    if data != infinite:
        found.append(warn(what, f"ulimit -d allows {size_text(data)} of data", "ulimit -d unlimited"))
    if resource.getrlimit(resource.RLIMIT_STACK)[0] == infinite:
        found.append(warn(
            what,
            "ulimit -s is unlimited: threads then get stacks of 2 MiB only, which large kernels overflow",
            "ulimit -s 8192",
        ))  # fmt: skip
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if files != infinite and files < LEAST_FILES:
        found.append(warn(what, f"ulimit -n allows {files} open files; MPI opens several a rank", "ulimit -n 4096"))
    size = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
    if size != infinite:
        found.append(fail(
            what, f"ulimit -f allows files of {size_text(size)}: a larger checkpoint or shared table kills the rank",
            "ulimit -f unlimited",
        ))  # fmt: skip
    locked = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    if locked != infinite and locked < GiB and Path("/sys/class/infiniband").is_dir() and os.geteuid() != 0:
        found.append(warn(
            what, f"ulimit -l allows {size_text(locked)} of locked memory; InfiniBand locks all that it sends",
            "ulimit -l unlimited, for batch jobs in /etc/security/limits.conf and slurmd's LimitMEMLOCK",
        ))  # fmt: skip
    return found or [ok(what, f"nothing in the way: {files} open files, address space and file size not limited")]


def _numba_cache() -> Finding:
    """Where numba keeps compiled kernels: NUMBA_CACHE_DIR, else beside the source, else the user's cache folder."""
    what = "numba's cache"
    if kernel_cache.note:
        return warn(what, kernel_cache.note, "export NUMBA_CACHE_DIR=DIRECTORY that all hosts can write")
    beside = Path(find_spec("hybridmpi").submodule_search_locations[0]) / "sparse" / "__pycache__"
    user = Path(variables.text("XDG_CACHE_HOME") or Path(home(), ".cache")) / "numba"
    named = variables.text("NUMBA_CACHE_DIR")
    for folder in [Path(named)] if named else [beside, user]:
        existing = next(parent for parent in (folder.absolute(), *folder.absolute().parents) if parent.exists())
        if can_write(existing):
            return ok(what, str(folder))
    return warn(
        what,
        f"{named or f'neither {beside} nor {user}'} cannot be written: every rank compiles every kernel at every start",
        "export NUMBA_CACHE_DIR=DIRECTORY that all hosts can write",
    )


def can_write(folder: Path) -> bool:
    """Return whether a file can be made in `folder`, by making one. Local."""
    probe = folder / f".hybridmpi-doctor-{os.getpid()}-{time.monotonic_ns()}"
    try:
        probe.touch(exist_ok=False)
        probe.unlink()
    except OSError:
        return False
    return True
