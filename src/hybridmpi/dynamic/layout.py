"""How the rows of state lie that vertices scatter and others gather."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from hybridmpi.errors import UsageError


class Layout(Protocol):
    """Where the vertices of one type scatter to and gather from. State has one array of rows for each key.

    widths: elements of a row by key. counts: by key, how many rows a vertex of the type has, one after the other.
    """

    widths: Mapping[Any, int]
    counts: Mapping[Any, int]

    def own(self, name: Any) -> tuple[Any, int, int]:
        """Return for what is scattered under a name: the key, the width of all of the vertex' rows, and the column."""

    def read(self, name: Any) -> tuple[Any, int, int]:
        """Return for what is gathered under a name: the key, the width of a row, and the column in it."""


class RowOfVertex:
    """One row for each vertex, in which every name has its columns: the same for all types."""

    def __init__(self, widths: Mapping[str, int]) -> None:
        """widths: of the names. Raises UsageError for one below 1."""
        if widths and min(widths.values()) < 1:
            raise UsageError(f"scattered state of widths {dict(widths)}: expected at least 1 each")
        self._named, self._columns, column = dict(widths), {}, 0
        for name in sorted(widths):
            self._columns[name] = column
            column += widths[name]
        self.widths, self.counts = {None: column}, {None: 1}

    def own(self, name: Any) -> tuple[Any, int, int]:
        """See `Layout`."""
        return None, self.widths[None], self._columns[name]

    read = own

    def columns(self, name: str) -> slice:
        """Return the columns of a name. Local."""
        first = self._columns[name]
        return slice(first, first + self._named[name])


class RowOfValue:
    """A row for each value, among those of its width: who gathers need not know which of a vertex' values it is.

    Names are (width, number) where scattered, (width,) where gathered.
    """

    def __init__(self, counts: Mapping[int, int]) -> None:
        """counts: how many values of each width a vertex of the type scatters."""
        self.counts = dict(counts)
        self.widths = {width: width for width in counts}

    def own(self, name: Any) -> tuple[Any, int, int]:
        """See `Layout`."""
        width, number = name
        return width, width * self.counts[width], width * number

    def read(self, name: Any) -> tuple[Any, int, int]:
        """See `Layout`."""
        (width,) = name
        return width, width, 0
