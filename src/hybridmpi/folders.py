"""Where things are kept that can be made again."""

from __future__ import annotations

import atexit
import json
import os
import pwd
import shutil
import stat
import tempfile
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

from hybridmpi import environment


def cache_folder() -> Path:
    """Return $XDG_CACHE_HOME/hybridmpi, or ~/.cache/hybridmpi where that is not set. Local.

    A user without a home, as in some containers, has a folder among temporary files.
    """
    try:
        return Path(environment.text("XDG_CACHE_HOME") or Path.home() / ".cache") / "hybridmpi"
    except RuntimeError:
        pass
    try:
        return temporary_folder()
    except OSError:  # a folder below which nothing can be kept
        return Path(os.devnull) / "hybridmpi"


def home() -> str:
    """Return the user's home; for a user without one, as in some containers, a folder among temporary files. Local."""
    if found := environment.text("HOME"):
        return found
    try:
        return pwd.getpwuid(os.getuid()).pw_dir or str(temporary_folder())
    except KeyError:
        return str(temporary_folder())


def temporary_folder() -> Path:
    """Return a folder among temporary files that nobody but this user can read or write. Local. Raises OSError.

    It is the same for all processes of the user. Where its name has been taken by another user, by a link, or by a
    folder that is open to others, this process has one of its own, which ends with it.
    """
    folder = Path(tempfile.gettempdir()) / f"hybridmpi-{os.getuid()}"
    with suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    status = folder.lstat()
    if stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid() and not status.st_mode & 0o077:
        return folder
    return _folder_of_this_process()


@cache
def _folder_of_this_process() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="hybridmpi-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def read_json(file: Path) -> Any:
    """Return the JSON value kept in `file`; None where it is absent or damaged. Local."""
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def write_json(file: Path, value: Any) -> None:
    """Keep a JSON value in `file`, written aside, then renamed. A folder that cannot be written keeps none. Local."""
    aside = file.with_name(f".{file.stem}.{os.getpid()}")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        aside.write_text(json.dumps(value, indent=1), encoding="utf-8")
        aside.replace(file)
    except OSError:
        with suppress(OSError):  # below a file that is no folder, looking for it is an error too
            aside.unlink(missing_ok=True)
