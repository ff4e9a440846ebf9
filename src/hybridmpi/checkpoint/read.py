"""Read a checkpoint on any number of ranks and servers, whatever number wrote it."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from hybridmpi.checkpoint.files import FileRecord
from hybridmpi.checkpoint.generations import find
from hybridmpi.checkpoint.layout import DENSE_FILE, INDEX_FILE, MANIFEST_FILE, Overlap, Progression, overlap
from hybridmpi.checkpoint.manifest import from_entry, read_manifest
from hybridmpi.checkpoint.places import Parts, Place, told_array
from hybridmpi.checkpoint.source import Source, source
from hybridmpi.errors import CheckpointError, DamageError


@dataclass(frozen=True)
class SavedShard:
    """Some rows of a table, and where its values and each slot of its state ("values", "state/SLOT") lie."""

    file: str
    span: Progression
    places: dict[str, Place]


@dataclass(frozen=True)
class SavedTable:
    """What a checkpoint holds of one table: `slots` maps optimiser slots to dtypes; its rows are in `shards`."""

    rows: int
    dim: int
    dtype: np.dtype
    kind: str
    slots: dict[str, np.dtype]
    shards: tuple[SavedShard, ...]


@dataclass(frozen=True)
class SavedArray:
    """What a checkpoint holds of one dense parameter or carried array; each slot is as the parameter is."""

    shape: tuple[int, ...]
    dtype: np.dtype
    place: Place
    slots: dict[str, Place] = field(default_factory=dict)


@dataclass(frozen=True)
class Checkpoint:
    """One whole generation: what is in it, by name; arrays are read when asked for.

    Every byte that is read is held against its digest before it is returned, once for each object. Plain data, so that
    one rank can open it and broadcast it. `meta` is what `write_dense` and `commit` were given; `created` is the time
    of the commit, ISO 8601 in UTC; `servers` the number of servers that wrote it.
    """

    directory: Path
    step: int
    created: str
    servers: int
    meta: dict[str, Any]
    tables: dict[str, SavedTable]
    parameters: dict[str, SavedArray]
    carried_arrays: dict[str, SavedArray]
    word_count: int | None
    size: int
    files: dict[str, FileRecord]
    verified: set[tuple[str, int]] = field(default_factory=set, compare=False)

    @classmethod
    def open(cls, path: str | os.PathLike) -> Checkpoint:
        """Open a generation's directory, a file in it, or the newest whole generation below a root. Local.

        Checks that every file that is read is there with its recorded size, and has all arrays; digests are checked in
        reading. Raises CheckpointError when `path` is no checkpoint or holds no whole generation, DamageError when a
        file is missing or cut short, or does not hold what the manifest says.
        """
        directory = find(path)
        content = read_manifest(directory)
        records = {entry["name"]: from_entry(entry) for entry in content["files"]}
        verified: set[tuple[str, int]] = set()
        for record in records.values():
            if record.name != INDEX_FILE:  # which only other tools read
                with source(directory, record, verified):
                    pass
        arrays = Arrays(directory, content, records)
        return cls(
            directory=directory,
            step=content["step"],
            created=content["created"],
            servers=content["servers"],
            meta=content["meta"],
            tables=arrays.tables,
            parameters=arrays.parameters,
            carried_arrays=arrays.carried,
            word_count=content["words"],
            size=sum(record.size for record in records.values()),
            files=records,
            verified=verified,
        )

    @contextmanager
    def opened(self, file: str) -> Iterator[Source]:
        """Yield one of the files, open for reading, its structure verified. Local. Raises DamageError."""
        with source(self.directory, self.files[file], self.verified) as opened:
            opened.structure()
            yield opened

    def check(
        self,
        parameters: Mapping[str, tuple[int, ...]],
        tables: Mapping[str, tuple[int, int]],
        slots: Sequence[str] | None = None,
        dtypes: Mapping[str, np.dtype] | None = None,
    ) -> None:
        """Raise CheckpointError listing every way in which the checkpoint does not fit a model. Local, reads nothing.

        `parameters` maps the model's dense parameters to shapes, `tables` its tables to (rows, dim); `slots` are the
        optimiser's state slots, None where the optimiser's state is not wanted; `dtypes` those of parameters and of
        tables, where they matter.
        """
        saved = {name: ("dense", array.shape, sorted(array.slots)) for name, array in self.parameters.items()}
        saved |= {name: ("table", (t.rows, t.dim), sorted(t.slots)) for name, t in self.tables.items()}
        wanted = {name: ("dense", tuple(shape)) for name, shape in parameters.items()}
        wanted |= {name: ("table", tuple(shape)) for name, shape in tables.items()}
        problems = []
        for name in sorted(saved.keys() | wanted.keys()):
            expected = "{} {}".format(*wanted[name]) if name in wanted else "nothing of that name"
            found = "{} {}".format(*saved[name]) if name in saved else "nothing of that name"
            if expected != found:
                problems.append(f"'{name}': expected {expected}, found {found}")
            elif slots is not None and saved[name][2] != sorted(slots):
                problems.append(f"'{name}': expected optimiser slots {sorted(slots)}, found {saved[name][2]}")
            elif dtypes and (found := self._dtypes(name)) != {dtypes[name].name}:
                problems.append(f"'{name}': expected dtype {dtypes[name]}, found {', '.join(sorted(found))}")
        if problems:
            raise CheckpointError(
                f"{self.directory} was made for another model:\n  " + "\n  ".join(problems) + "\n"
                "Resume with the job file it was made with, or start in another checkpoint directory"
            )

    def read_rows(self, table: str, first: int, stride: int, count: int) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        """Return (values [count, dim], state by slot) of the rows first + i * stride of `table`. Local.

        Raises CheckpointError for an unknown table and rows outside it, DamageError naming the file, the parameter and
        the rows where bytes are not what was written.
        """
        saved = self._table(table)
        wanted = Progression(first, stride, count)
        self._check_rows(table, wanted)
        values = np.empty((count, saved.dim), saved.dtype)
        state = {slot: np.empty((count, saved.dim), dtype) for slot, dtype in saved.slots.items()}
        self.read_into(table, [(wanted, values, state)])
        return values, state

    def read_into(
        self, table: str, targets: Sequence[tuple[Progression, np.ndarray, Mapping[str, np.ndarray]]]
    ) -> None:
        """Read rows of `table` into arrays: for each target, which rows, and their values and state. Local.

        Any partition can be asked for, whatever partition was saved: only shards that overlap are opened, and all that
        is wanted of one is read together. Rows that lie as in the target take no memory beside it, others a buffer.
        Raises as `read_rows` does, and CheckpointError where slots, dtypes or widths are others than the saved ones;
        after a DamageError the arrays hold anything.
        """
        saved = self._table(table)
        for wanted, values, state in targets:
            self._check_rows(table, wanted)
            shape = (wanted.count, saved.dim)
            found = {None: (values.shape, values.dtype)} | {s: (array.shape, array.dtype) for s, array in state.items()}
            expected = {None: (shape, saved.dtype)} | {slot: (shape, dtype) for slot, dtype in saved.slots.items()}
            if found != expected:
                raise CheckpointError(
                    f"{self.directory}, table '{table}': holds {_told(expected)}; this run wants {_told(found)}. "
                    "Resume with the model and the optimizer that it was made with"
                )
        for shard in saved.shards:
            shared = [overlap(shard.span, wanted) for wanted, _, _ in targets]
            if not any(shared) or not saved.dim:
                continue
            with self.opened(shard.file) as file:
                for key, place in shard.places.items():
                    slot = key.removeprefix("state/")
                    arrays = [values if key == "values" else state[slot] for _, values, state in targets]
                    file.read(place, [(part, array) for part, array in zip(shared, arrays, strict=True) if part])

    def read_dense(self) -> tuple[dict[str, np.ndarray], dict[str, dict[str, np.ndarray]]]:
        """Return (parameters by name, state by slot and name), as `write_dense` was given them. Local.

        Raises DamageError naming the parameter whose bytes are not what was written.
        """
        state: dict[str, dict[str, np.ndarray]] = {}
        with self.opened(DENSE_FILE) as file:
            parameters = {name: _whole(file, saved.place) for name, saved in self.parameters.items()}
            for name, saved in self.parameters.items():
                for slot, place in saved.slots.items():
                    state.setdefault(slot, {})[name] = _whole(file, place)
        return parameters, state

    def carried(self) -> dict[str, np.ndarray]:
        """Return the carried arrays by name (one row per stream). Local. Raises as `read_dense` does."""
        with self.opened(DENSE_FILE) as file:
            return {name: _whole(file, saved.place) for name, saved in self.carried_arrays.items()}

    def words(self) -> list[str] | None:
        """Return the vocabulary in the order of its ids, None if none was saved. Local. Raises DamageError."""
        if self.word_count is None:
            return None
        from hybridmpi.checkpoint.vocabulary import read_words

        with self.opened(DENSE_FILE) as file:
            return read_words(file, self.word_count)

    def _dtypes(self, name: str) -> set[str]:
        """Return the dtypes of a parameter and its state."""
        saved = self.tables.get(name) or self.parameters[name]
        slots = saved.slots.values() if isinstance(saved, SavedTable) else ()
        return {saved.dtype.name, *(dtype.name for dtype in slots)}

    def _table(self, name: str) -> SavedTable:
        if name not in self.tables:
            raise CheckpointError(
                f"{self.directory / MANIFEST_FILE}: no table '{name}'; expected one of: "
                f"{', '.join(self.tables) or 'none'}"
            )
        return self.tables[name]

    def _check_rows(self, table: str, wanted: Progression) -> None:
        rows = self._table(table).rows
        if wanted.count < 0 or wanted.stride < 1 or (wanted.count and not (wanted.first >= 0 and wanted.last < rows)):
            raise CheckpointError(
                f"{self.directory}, table '{table}': {wanted.count} rows {wanted.first} + i * {wanted.stride} were "
                f"asked for, the table has rows 0 to {rows - 1}; the model and the checkpoint disagree on its size"
            )


class Arrays:
    """All arrays of a manifest's content, each with its place, by the marks of the files.

    Raises DamageError where the files do not hold what the manifest says.
    """

    def __init__(self, directory: Path, content: dict[str, Any], records: dict[str, FileRecord]) -> None:
        self._parts = {name: Parts(record) for name, record in records.items()}
        try:
            self.tables = {name: self._table(name, entry) for name, entry in content["tables"].items()}
            self.parameters = {
                name: self._dense(f"/parameters/{name}", name, entry) for name, entry in content["parameters"].items()
            }
            self.carried = {
                name: self._dense(f"/carried/{name}", f"carried/{name}", entry)
                for name, entry in content["carried"].items()
            }
        except CheckpointError as error:
            raise DamageError(f"{directory / MANIFEST_FILE}: says what cannot be: {error}") from error

    def _table(self, name: str, entry: dict[str, Any]) -> SavedTable:
        dtype, dim = np.dtype(entry["dtype"]), entry["dim"]
        slots = {slot: np.dtype(of_slot) for slot, of_slot in entry["slots"].items()}
        arrays = {"values": (None, dtype)} | {f"state/{slot}": (slot, of_slot) for slot, of_slot in slots.items()}
        shards = []
        for s in entry["shards"]:
            span = Progression(s["first"], s["stride"], s["count"])
            parts = self._parts[s["file"]]
            places = {
                key: parts.place(f"{s['path']}/{key}", told_array(name, slot), span, (span.count, dim), of_array)
                for key, (slot, of_array) in arrays.items()
            }
            shards.append(SavedShard(s["file"], span, places))
        return SavedTable(entry["rows"], dim, dtype, entry["kind"], slots, tuple(shards))

    def _dense(self, key: str, name: str, entry: dict[str, Any]) -> SavedArray:
        shape, dtype = tuple(entry["shape"]), np.dtype(entry["dtype"])
        span, parts = Progression(0, 1, shape[0] if shape else 1), self._parts[DENSE_FILE]
        slots = {
            slot: parts.place(f"/optimizer/{name}/{slot}", told_array(name, slot), span, shape, dtype)
            for slot in entry.get("slots", ())
        }
        return SavedArray(shape, dtype, parts.place(key, told_array(name), span, shape, dtype), slots)


def _whole(file: Source, place: Place) -> np.ndarray:
    """Read all of an array."""
    out = np.empty(place.shape, place.dtype)
    rows = out if place.shape else out.reshape(1)
    file.read(place, [(Overlap(0, 1, 0, 1, len(rows)), rows)])
    return out


def _told(arrays: Mapping[str | None, tuple[tuple[int, ...], np.dtype]]) -> str:
    """Return in words what a table's values and slots are."""
    return ", ".join(
        f"{'values' if slot is None else f'state {slot!r}'} {dtype} {shape}" for slot, (shape, dtype) in arrays.items()
    )
