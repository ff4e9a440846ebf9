"""Paths that a user names, in job files and options: what they mean."""

from __future__ import annotations

import os
from pathlib import Path

from hybridmpi.errors import UsageError


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
