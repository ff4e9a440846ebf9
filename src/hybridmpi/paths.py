"""Paths that a user names, in job files and options: what they mean, and whether they can be written."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from hybridmpi.errors import UsageError

PAGE = 4096
"""Bytes that are written to see whether writing is possible."""


def expanded(path: str, place: str) -> str:
    """Return `path` with the home for a leading ~ or ~user; "" stays "". Local.

    Variables such as $HOME stay as they are. Raises UsageError, which names `place`, for ~ without such a home, and for
    a text that cannot be a path.
    """
    if "\0" in path:
        raise UsageError(f"{place}: a path cannot hold the character NUL; leave it out")
    try:
        path.encode("utf-8")
    except UnicodeEncodeError as error:
        raise UsageError(f"{place}: {path!a} is not UTF-8, as job files and checkpoints are; rename it") from error
    if not path.startswith("~"):
        return path
    found = os.path.expanduser(path)
    if found == path:
        head = path.partition("/")[0]
        raise UsageError(f"{place} = {path}: no home folder of {head} is known; a file of that name is ./{head}")
    return found


def path_argument(text: str) -> Path:
    """Return the path that an option of a command names, of which the shell does not always expand ~. Local."""
    return Path(expanded(text, text))


def require_output(
    path: Path, option: str, force: bool = False, inputs: Iterable[str | Path] = (), mark: bytes = b"", remedy: str = ""
) -> None:
    """Raise UsageError unless a command can write the file `path` in the end, and nobody misses what is there now.
    Local; tries it, and leaves nothing.

    A file that is there stays, unless `force` says so or it holds `mark`, by which the command knows what it has made.
    None of `inputs`, which the command reads, is overwritten at all. `remedy`: what to do about a file that is there.
    """
    if any(os.path.exists(one) and os.path.exists(path) and os.path.samefile(one, path) for one in inputs):
        raise UsageError(f"{option} {path}: that is what the command reads; expected another name")
    if os.path.isdir(path):
        raise UsageError(f"{option} {path}: that is a directory; expected the name of a file")
    if os.path.lexists(path):
        if not os.path.isfile(path):
            raise UsageError(f"{option} {path}: that is a device, a pipe or a link to nothing; expected another name")
        if not force and not (mark and holds(path, mark)):
            whose = " and was not made by this command" if mark else ""
            remedy = remedy or "give another name, or --force to replace it"
            raise UsageError(f"{option} {path}: the file exists{whose}; {remedy}")
    if not path.absolute().parent.is_dir():
        raise UsageError(f"{option} {path}: there is no folder '{path.parent}'; make it first")
    try:
        try_writing(path.parent / f".{path.name[:200]}.{os.getpid()}.try")
        if os.path.exists(path):
            os.close(os.open(path, os.O_WRONLY))
        else:
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL))
            os.unlink(path)
    except OSError as error:
        raise UsageError(f"{option} {path}: cannot be written: {error.strerror}; expected another name") from error


def holds(path: Path, mark: bytes) -> bool:
    """Return whether a file can be read and holds `mark`. Local."""
    try:
        return mark in path.read_bytes()
    except OSError:
        return False


def try_writing(path: str | Path) -> None:
    """Write a new file of a page, down to the disk, and remove it. Local. Raises OSError where that is impossible: a
    folder may look writable, and its disk be full."""
    opened = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        left = memoryview(bytes(PAGE))
        while left:
            left = left[os.write(opened, left) :]
        os.fsync(opened)
    finally:
        os.close(opened)
        os.unlink(path)
