"""Where compiled kernels are kept: beside their source or in the user's cache, and where neither can be written, in a
folder of this user's among temporary files.

numba looks for a place itself and fails without one, as the module of a kernel is imported: an installation that is
read-only and a user without a home are usual in containers.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, MutableMapping
from contextlib import suppress

VARIABLE = "NUMBA_CACHE_DIR"
# About what a kernel takes; a disk without room for it is none to keep kernels on.
PROBE = bytes(1 << 16)

note = ""
"""In words, where kernels are kept if that is neither beside their source nor in the user's cache."""


def choose(sources: Iterable[str], environment: MutableMapping[str, str] = os.environ) -> None:
    """Name a folder to numba where it would find none for functions of the folders `sources`. Local; before kernels are
    imported."""
    global note
    if named := environment.get(VARIABLE):
        if _can_keep(named):
            return
    elif all(map(_is_writable, _with_caches(sources))) or _can_keep(_of_user(environment)):
        return
    from hybridmpi.folders import temporary_folder

    with suppress(OSError):  # no temporary files either: numba says so
        folder = str(temporary_folder() / "numba")
        if _can_keep(folder):
            environment[VARIABLE] = folder
            if "numba" in sys.modules:
                sys.modules["numba"].config.CACHE_DIR = folder
            why = f"{VARIABLE}={named} cannot" if named else "neither the installation nor your cache folder can"
            note = f"compiled kernels are kept in {folder} of every host, since {why} be written"


def _with_caches(sources: Iterable[str]) -> Iterable[str]:
    for folder in sources:
        for entry in os.scandir(folder):
            if entry.is_dir() and entry.name != "__pycache__":
                yield os.path.join(entry.path, "__pycache__")
        yield os.path.join(folder, "__pycache__")


def _is_writable(folder: str) -> bool:
    return os.access(folder if os.path.isdir(folder) else os.path.dirname(folder), os.W_OK | os.X_OK)


def _of_user(environment: MutableMapping[str, str]) -> str:
    """Return numba's folder in the user's cache; a name that cannot be made where there is no home."""
    cache = environment.get("XDG_CACHE_HOME", os.path.expanduser("~/.cache"))
    return os.path.join(cache if os.path.isabs(cache) else os.devnull, "numba")


def _can_keep(folder: str) -> bool:
    """Return whether a file can be made in `folder` by making one, and the folder before it."""
    probe = os.path.join(folder, f".hybridmpi-{os.getpid()}")
    try:
        os.makedirs(folder, mode=0o700, exist_ok=True)
        file = os.open(probe, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            return os.write(file, PROBE) == len(PROBE)
        finally:
            os.close(file)
            os.unlink(probe)
    except (OSError, ValueError):
        return False
