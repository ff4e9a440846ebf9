"""Things found in the files of Python's standard library, each once, in a training and a held-out part."""

from __future__ import annotations

import platform
from collections.abc import Callable, Hashable
from hashlib import blake2b
from typing import TypeVar

from hybridmpi.data import python_source
from hybridmpi.data.text_file import STANDARD_LIBRARY
from hybridmpi.errors import DataError

T = TypeVar("T")


class LibraryParts:
    """The standard library's files but for its tests; `files_read`: how many gave something. Local.

    Raises DataError where this Python has none.
    """

    def __init__(self) -> None:
        # Tests are left out: they repeat themselves, and some are broken on purpose.
        tests = {"test", "tests", "idle_test"}
        self.files = [f for f in python_source.standard_library() if not tests & set(f.name.split("/"))]
        if not self.files:
            raise DataError("this Python has no .py files of its standard library: name files of your own")
        self.python = f"Python {platform.python_version()}"
        self.files_read = 0

    def identity(self) -> list[object]:
        """Return what a cache knows these files and their present content by. Local."""
        return [STANDARD_LIBRARY, platform.python_version(), [(f.name, f.size, f.modified) for f in self.files]]

    def read(
        self, find: Callable[[str], list[T]], key: Callable[[T], Hashable], most: int, held_out: float
    ) -> tuple[list[T], list[T]]:
        """Return (training part, held-out part) of what `find` returns for each file's text, each `key` once. Local.

        Files come in the order of a hash of their names, so that few are a fair sample, until there are `most` things;
        those that come first are held out, about `held_out` of all things in whole files. A file that cannot be read,
        or for which `find` raises NotPythonError, is passed over.
        """
        by_file, count, seen = [], 0, set()
        for file in sorted(self.files, key=lambda file: blake2b(file.name.encode()).digest()):
            try:
                found = find(python_source.read_text(file.path))
            except (python_source.NotPythonError, OSError):
                continue
            by_file.append(distinct(found, key, seen)[: most - count])
            count += len(by_file[-1])
            if count == most:
                break
        self.files_read = len(by_file)
        cut, later = 0, 0
        while cut < len(by_file) - 1 and later < held_out * count:
            later += len(by_file[cut])
            cut += 1
        parts = [[thing for found in files for thing in found] for files in (by_file[cut:], by_file[:cut])]
        return parts[0], parts[1]


def distinct(things: list[T], key: Callable[[T], Hashable], seen: set[Hashable]) -> list[T]:
    """Return the things whose key is not in `seen`, each key once, and add their keys to it. Local."""
    fresh = []
    for thing in things:
        if (its := key(thing)) not in seen:
            seen.add(its)
            fresh.append(thing)
    return fresh
