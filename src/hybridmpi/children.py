"""Python as a child process of hybridmpi."""

from __future__ import annotations

import sys


def python(*arguments: str) -> list[str]:
    """Return the command that runs this Python with `arguments`, such as -m and a module of hybridmpi. Local.

    Never for a user's file: the current folder is not where modules are looked for, since a queue.py or a numpy.py of
    the user's there would be taken for the library's.
    """
    return [sys.executable, "-P", *arguments]
