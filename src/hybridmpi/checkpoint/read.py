"""Read a checkpoint on any number of ranks and servers, whatever number wrote it."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from hybridmpi.checkpoint.files import SLAB_BYTES, reading
from hybridmpi.checkpoint.generations import check_size, find
from hybridmpi.checkpoint.layout import DENSE_FILE, MANIFEST_FILE, Overlap, Progression, overlap
from hybridmpi.checkpoint.manifest import from_entry, read_manifest
from hybridmpi.errors import CheckpointError


@dataclass(frozen=True)
class SavedShard:
    """Some rows of a table: the file and the group in it that hold them."""

    file: str
    path: str
    span: Progression


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
    """What a checkpoint holds of one dense parameter or carried array."""

    shape: tuple[int, ...]
    dtype: np.dtype
    slots: tuple[str, ...] = ()


@dataclass(frozen=True)
class Checkpoint:
    """One whole generation: what is in it, by name; arrays are read when asked for.

    Plain data, so that one rank can open it and broadcast it. `meta` is what `write_dense` and `commit` were given;
    `created` is the time of the commit, ISO 8601 in UTC; `servers` the number of servers that wrote it.
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

    @classmethod
    def open(cls, path: str | os.PathLike) -> Checkpoint:
        """Open a generation's directory, a file in it, or the newest whole generation below a root. Local.

        Checks that every file is there with its recorded size, not its digest (see `verify`). Raises CheckpointError
        when `path` is no checkpoint, holds no whole generation, or a file is missing or cut short.
        """
        directory = find(path)
        content = read_manifest(directory)
        records = [from_entry(entry) for entry in content["files"]]
        for record in records:
            check_size(directory, record)
        return cls(
            directory=directory,
            step=content["step"],
            created=content["created"],
            servers=content["servers"],
            meta=content["meta"],
            tables={name: _saved_table(entry) for name, entry in content["tables"].items()},
            parameters={name: _saved_array(entry) for name, entry in content["parameters"].items()},
            carried_arrays={name: _saved_array(entry) for name, entry in content["carried"].items()},
            word_count=content["words"],
            size=sum(record.size for record in records),
        )

    def check(
        self,
        parameters: Mapping[str, tuple[int, ...]],
        tables: Mapping[str, tuple[int, int]],
        slots: Sequence[str] | None = None,
    ) -> None:
        """Raise CheckpointError listing every way in which the checkpoint does not fit a model. Local, reads nothing.

        `parameters` maps the model's dense parameters to shapes, `tables` its tables to (rows, dim); `slots` are the
        optimiser's state slots, None where the optimiser's state is not wanted.
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
        if problems:
            raise CheckpointError(
                f"{self.directory} was made for another model:\n  " + "\n  ".join(problems) + "\n"
                "Resume with the job file it was made with, or start in another checkpoint directory"
            )

    def read_rows(self, table: str, first: int, stride: int, count: int) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        """Return (values [count, dim], state by slot) of the rows first + i * stride of `table`. Local.

        Any partition can be asked for, whatever partition was saved: only shards that overlap are opened, and they are
        read through a buffer of SLAB_BYTES, so memory is the result and that buffer. Raises CheckpointError for an
        unknown table, rows outside it, or a file that does not hold what the manifest says.
        """
        saved = self._table(table)
        wanted = Progression(first, stride, count)
        if count < 0 or stride < 1 or (count and not (first >= 0 and wanted.last < saved.rows)):
            raise CheckpointError(
                f"{self.directory}, table '{table}': {count} rows {first} + i * {stride} were asked for, the table has "
                f"rows 0 to {saved.rows - 1}; the model and the checkpoint disagree on its size"
            )
        dtypes = {"values": saved.dtype} | {f"state/{slot}": dtype for slot, dtype in saved.slots.items()}
        out = {key: np.empty((count, saved.dim), dtype) for key, dtype in dtypes.items()}
        for shard in saved.shards:
            shared = overlap(shard.span, wanted)
            if shared is None or not saved.dim:
                continue
            with reading(self.directory / shard.file) as file:
                for key, array in out.items():
                    dataset = dataset_at(file, f"{shard.path}/{key}", (shard.span.count, saved.dim))
                    read_overlap(dataset, shared, array)
        return out.pop("values"), {slot: out[f"state/{slot}"] for slot in saved.slots}

    def read_dense(self) -> tuple[dict[str, np.ndarray], dict[str, dict[str, np.ndarray]]]:
        """Return (parameters by name, state by slot and name), as `write_dense` was given them. Local.

        Raises CheckpointError naming the file and the parameter when dense.h5 lacks one or it has another shape.
        """
        state: dict[str, dict[str, np.ndarray]] = {}
        with reading(self.directory / DENSE_FILE) as file:
            parameters = {
                name: dataset_at(file, f"/parameters/{name}", saved.shape)[()]
                for name, saved in self.parameters.items()
            }
            for name, saved in self.parameters.items():
                for slot in saved.slots:
                    state.setdefault(slot, {})[name] = dataset_at(file, f"/optimizer/{name}/{slot}")[()]
        return _arrays(parameters), {slot: _arrays(arrays) for slot, arrays in state.items()}

    def carried(self) -> dict[str, np.ndarray]:
        """Return the carried arrays by name (one row per stream). Local."""
        with reading(self.directory / DENSE_FILE) as file:
            return _arrays(
                {n: dataset_at(file, f"/carried/{n}", saved.shape)[()] for n, saved in self.carried_arrays.items()}
            )

    def words(self) -> list[str] | None:
        """Return the vocabulary in the order of its ids, None if none was saved. Local."""
        if self.word_count is None:
            return None
        with reading(self.directory / DENSE_FILE) as file:
            return list(dataset_at(file, "/vocabulary/words", (self.word_count,)).asstr()[:])

    def _table(self, name: str) -> SavedTable:
        if name not in self.tables:
            raise CheckpointError(
                f"{self.directory / MANIFEST_FILE}: no table '{name}'; expected one of: "
                f"{', '.join(self.tables) or 'none'}"
            )
        return self.tables[name]


def dataset_at(file: h5py.File, key: str, shape: tuple[int, ...] | None = None) -> h5py.Dataset:
    """Return the dataset `key` of an open file, with `shape` where one is given. Local.

    Raises CheckpointError naming the file where it is absent or has another shape.
    """
    dataset = file.get(key)
    if not isinstance(dataset, h5py.Dataset):
        raise CheckpointError(
            f"{file.filename}: no dataset {key}; the manifest lists it, so the file was replaced or damaged: verify it"
        )
    if shape is not None and dataset.shape != shape:
        raise CheckpointError(
            f"{file.filename}: {key}: expected shape {shape} by the manifest, found {dataset.shape}: the file was "
            "replaced; restore it from a copy"
        )
    return dataset


def read_overlap(dataset: h5py.Dataset, shared: Overlap, out: np.ndarray) -> None:
    """Read the rows `shared` of `dataset` into the rows of `out`, of the same width, that they belong to. Local.

    HDF5 works through a strided selection row by row. Reading what lies between as well and striding in memory takes as
    long for rows of 64 bytes to 2 KiB (disks and caches move pages anyway) and a quarter of the time for narrow ones.
    """
    row_bytes = out.strides[0]
    if shared.step == shared.other_step == 1:
        rows = np.s_[shared.start : shared.start + shared.count]
        dataset.read_direct(out, rows, np.s_[shared.other_start : shared.other_start + shared.count])
        return
    at_once = max(1, SLAB_BYTES // (row_bytes * shared.step))
    buffer = np.empty((min((at_once - 1) * shared.step + 1, len(dataset)), *out.shape[1:]), out.dtype)
    target = out[shared.other_start :: shared.other_step]
    for begin in range(0, shared.count, at_once):
        count = min(at_once, shared.count - begin)
        start, length = shared.start + begin * shared.step, (count - 1) * shared.step + 1
        dataset.read_direct(buffer, np.s_[start : start + length], np.s_[:length])
        target[begin : begin + count] = buffer[: length : shared.step]


def _arrays(values: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Return arrays in native byte order, also where h5py gives a scalar for a dataset without axes."""
    arrays = {name: np.asarray(value) for name, value in values.items()}
    return {name: array.astype(array.dtype.newbyteorder("="), copy=False) for name, array in arrays.items()}


def _saved_table(entry: dict[str, Any]) -> SavedTable:
    return SavedTable(
        entry["rows"],
        entry["dim"],
        np.dtype(entry["dtype"]),
        entry["kind"],
        {slot: np.dtype(dtype) for slot, dtype in entry["slots"].items()},
        tuple(
            SavedShard(s["file"], s["path"], Progression(s["first"], s["stride"], s["count"])) for s in entry["shards"]
        ),
    )


def _saved_array(entry: dict[str, Any]) -> SavedArray:
    return SavedArray(tuple(entry["shape"]), np.dtype(entry["dtype"]), tuple(entry.get("slots", ())))
