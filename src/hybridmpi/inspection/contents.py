"""What is in a checkpoint, by name: its arrays, found, chosen by pattern, with the words of their rows."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from fnmatch import fnmatchcase
from functools import cached_property

from hybridmpi.checkpoint import Checkpoint
from hybridmpi.checkpoint.places import Place
from hybridmpi.errors import CheckpointError, UsageError
from hybridmpi.inspection.stored import StoredArray
from hybridmpi.inspection.text import tame

CARRIED = "carried/"
"""What the names of carried arrays begin with: no parameter's name can."""


class Contents:
    """The arrays of one checkpoint: `arrays` by name, `slots` by name and slot. Nothing is read before it is asked for.

    Raises CheckpointError where `path` means no whole checkpoint (see `Checkpoint.open`).
    """

    def __init__(self, path: str | os.PathLike) -> None:
        self.checkpoint = checkpoint = Checkpoint.open(path)
        self.directory = checkpoint.directory
        self.arrays: dict[str, StoredArray] = {}
        self.slots: dict[str, dict[str, StoredArray]] = {}
        for name in sorted([*checkpoint.parameters, *checkpoint.tables]):
            if name in checkpoint.tables:
                self._add_table(name)
            else:
                self._add_dense(name)
        for name, saved in checkpoint.carried_arrays.items():
            key = CARRIED + name
            places = (saved.place,)
            self.arrays[key] = StoredArray(checkpoint, key, None, "carried", saved.shape, saved.dtype, places)
            self.slots[key] = {}

    def _add_table(self, name: str) -> None:
        table = self.checkpoint.tables[name]
        shape = (table.rows, table.dim)

        def stored(slot: str | None, key: str, dtype) -> StoredArray:
            places = tuple(shard.places[key] for shard in table.shards)
            return StoredArray(self.checkpoint, name, slot, "table", shape, dtype, places)

        self.arrays[name] = stored(None, "values", table.dtype)
        self.slots[name] = {slot: stored(slot, f"state/{slot}", table.slots[slot]) for slot in sorted(table.slots)}

    def _add_dense(self, name: str) -> None:
        saved = self.checkpoint.parameters[name]

        def stored(slot: str | None, place: Place) -> StoredArray:
            return StoredArray(self.checkpoint, name, slot, "dense", saved.shape, saved.dtype, (place,))

        self.arrays[name] = stored(None, saved.place)
        self.slots[name] = {slot: stored(slot, saved.slots[slot]) for slot in sorted(saved.slots)}

    @property
    def parameters(self) -> list[str]:
        """The names of all parameters, tables or dense, sorted."""
        return [name for name, array in self.arrays.items() if array.kind != "carried"]

    def select(self, patterns: Sequence[str] | None) -> list[str]:
        """Return the names that some pattern matches (*, ?, [abc]), in order; all parameters without patterns. Local.

        Carried arrays are called carried/NAME. Raises UsageError for a pattern that matches nothing.
        """
        if not patterns:
            return self.parameters
        for pattern in patterns:
            if not self.matching(pattern):
                raise UsageError(
                    f"{self.directory}: no parameter is called '{pattern}': {nearest(pattern, self.arrays)}"
                )
        chosen = {name for pattern in patterns for name in self.matching(pattern)}
        return [name for name in self.arrays if name in chosen]

    def matching(self, pattern: str) -> list[str]:
        """Return the names that one pattern matches; a name matches itself. Local."""
        return [name for name in self.arrays if name == pattern or fnmatchcase(name, pattern)]

    def array(self, name: str, slot: str | None = None) -> StoredArray:
        """Return the array of a parameter, or of a slot of its state. Local. Raises UsageError for unknown names."""
        if name not in self.arrays:
            raise UsageError(f"{self.directory}: no parameter is called '{name}': {nearest(name, self.arrays)}")
        if slot is None:
            return self.arrays[name]
        slots = self.slots[name]
        if slot not in slots:
            said = nearest(slot, slots) if slots else "it has no optimiser state"
            raise UsageError(f"{self.directory}: '{name}' has no slot '{slot}': {said}")
        return slots[slot]

    def all_of(self, name: str) -> list[StoredArray]:
        """Return a parameter's values and all slots of its state. Local."""
        return [self.arrays[name], *self.slots[name].values()]

    @cached_property
    def words(self) -> list[str]:
        """The vocabulary as it was saved; empty where none was."""
        return self.checkpoint.words() or []

    def words_of(self, name: str) -> list[str] | None:
        """Return the words that a parameter's rows stand for, None where they stand for none. Local.

        The rows of a parameter with as many rows as there are words stand for all of them. Jobs with several
        vocabularies say in their checkpoints where each table's words begin.
        """
        array, count = self.arrays[name], self.checkpoint.word_count
        if not count or len(array.shape) != 2:
            return None
        begin = self.checkpoint.meta.get("words_begin", {}).get(name, 0 if array.rows == count else None)
        if begin is None or begin + array.rows > count:
            return None
        return self.words[begin : begin + array.rows]


def nearest(name: str, known: Iterable[str]) -> str:
    """Return "did you mean 'x'?", or some of what is known where nothing is like `name`. Local."""
    known = list(known)
    if close := get_close_matches(name, known, n=3, cutoff=0.6):
        return f"did you mean {' or '.join(repr(match) for match in close)}?"
    if inside := [other for other in known if name and name in other]:
        known = inside
    shown = ", ".join(map(tame, known[:12])) + (f", ... ({len(known)} in all)" if len(known) > 12 else "")
    return f"expected one of {shown or '(none)'}"


def one_table(contents: Contents, name: str) -> StoredArray:
    """Return the table `name`. Local. Raises UsageError where it is none, CheckpointError where there are no tables."""
    tables = [other for other in contents.parameters if contents.arrays[other].kind == "table"]
    if not tables:
        raise CheckpointError(f"{contents.directory} holds no tables")
    if name not in tables:
        raise UsageError(f"{contents.directory}: no table is called '{name}': {nearest(name, tables)}")
    return contents.arrays[name]
