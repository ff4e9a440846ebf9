"""What goes into the files of one generation: a server's shards, and everything dense."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from hybridmpi.checkpoint.files import FileRecord, write_file
from hybridmpi.checkpoint.layout import DENSE_FILE, FORMAT, MANIFEST_FILE, TableShard, check_name, server_file
from hybridmpi.checkpoint.vocabulary import write_words
from hybridmpi.errors import CheckpointError

Arrays = Mapping[str, np.ndarray]


def write_server(directory: Path, server: int, servers: int, tables: Sequence[TableShard]) -> FileRecord:
    """Write server-NNN.h5, the shards that server `server` of `servers` holds, into `directory`. Local.

    /tables/NAME carries the attributes rows, dim, kind, first, stride and the datasets values and state/SLOT, each [n,
    dim]; of several shards of one table, each has a group part-NNN there. Nothing is copied as a whole. Returns the
    record that `commit` wants. Raises CheckpointError when `directory` already holds a whole generation, or when the
    file cannot be written.
    """
    if not 0 <= server < servers:
        raise CheckpointError(f"server {server} of {servers}: expected a number from 0 to {servers - 1}")
    _check_open(directory)
    arrays: dict[str, np.ndarray] = {}
    shards: list[dict[str, Any]] = []
    several = Counter(table.name for table in tables)
    numbers: Counter[str] = Counter()
    for table in tables:
        path = f"/tables/{table.name}"
        if several[table.name] > 1:
            path += f"/part-{numbers[table.name]:03d}"
            numbers[table.name] += 1
        arrays[f"{path}/values"] = table.values
        arrays |= {f"{path}/state/{slot}": table.state[slot] for slot in sorted(table.state)}
        shards.append({
            "name": table.name,
            "rows": table.rows,
            "dim": table.dim,
            "dtype": table.values.dtype.name,
            "kind": table.kind,
            "slots": {slot: table.state[slot].dtype.name for slot in sorted(table.state)},
            "path": path,
            "first": table.first,
            "stride": table.stride,
            "count": len(table.values),
        })  # fmt: skip
    _check_dtypes(arrays)

    def describe(file: h5py.File) -> None:
        file.attrs.update(format=FORMAT, server=server, servers=servers)
        for shard in shards:
            file[shard["path"]].attrs.update({key: shard[key] for key in ("rows", "dim", "kind", "first", "stride")})

    return write_file(
        Path(directory), server_file(server), arrays, describe, {"server": server, "servers": servers, "shards": shards}
    )


def write_dense(
    directory: Path,
    parameters: Arrays,
    state: Mapping[str, Arrays],
    carried: Arrays,
    meta: Mapping[str, Any],
    words: Sequence[str] | None = None,
) -> FileRecord:
    """Write dense.h5, all that is not in tables, into `directory`. Local.

    `parameters` and `carried` (arrays per stream, such as an LSTM's state) map names to arrays; `state` maps each
    optimiser slot to arrays by parameter name; `meta` is what JSON can hold (step, seed, data position, optimiser,
    job); `words` is the vocabulary. They become /parameters/NAME, /carried/NAME, /optimizer/NAME/SLOT, /meta (scalars
    as attributes, the rest as JSON text) and /vocabulary/words. Returns the record that `commit` wants. Raises
    CheckpointError naming what cannot be stored.
    """
    _check_open(directory)
    check_meta(meta)
    for slot, arrays in state.items():
        for name in arrays:
            if name not in parameters:
                raise CheckpointError(f"optimiser slot '{slot}' names parameter '{name}', which is not being saved")
            if _shape(arrays[name]) != _shape(parameters[name]):
                raise CheckpointError(
                    f"optimiser slot '{slot}' of parameter '{name}': {arrays[name].dtype} {arrays[name].shape}; "
                    f"expected what the parameter is, {parameters[name].dtype} {parameters[name].shape}"
                )
    slots = {name: sorted(slot for slot in state if name in state[slot]) for name in sorted(parameters)}
    named = {f"parameter '{name}'": name for name in parameters} | {f"carried '{name}'": name for name in carried}
    for what, name in [*named.items(), *((f"slot '{slot}'", slot) for slot in state)]:
        check_name(name, what)
    placed = {f"/parameters/{name}": parameters[name] for name in sorted(parameters)}
    placed |= {f"/optimizer/{name}/{slot}": state[slot][name] for name in slots for slot in slots[name]}
    placed |= {f"/carried/{name}": carried[name] for name in sorted(carried)}
    _check_dtypes(placed)

    def describe(file: h5py.File) -> None:
        file.attrs["format"] = FORMAT
        for group in ("parameters", "optimizer", "carried"):
            file.require_group(group)
        _describe_meta(file.create_group("meta"), meta)
        if words is not None:
            write_words(file, list(words))

    contents = {
        "parameters": {name: _shape(parameters[name]) | {"slots": slots[name]} for name in slots},
        "carried": {name: _shape(carried[name]) for name in sorted(carried)},
        "words": None if words is None else len(words),
        "meta": dict(meta),
    }
    return write_file(Path(directory), DENSE_FILE, placed, describe, contents)


def check_meta(meta: Mapping[str, Any]) -> None:
    """Raise CheckpointError naming the first key of `meta` whose value JSON would not give back unchanged. Local."""
    for key, value in meta.items():
        check_name(key, "meta")
        try:
            same = _same(json.loads(json.dumps(value, allow_nan=False)), value)
        except (TypeError, ValueError) as error:
            raise CheckpointError(
                f"meta['{key}'] cannot be stored as JSON: {error}; convert it to plain values"
            ) from error
        if not same:
            raise CheckpointError(
                f"meta['{key}'] does not survive a JSON round trip: expected plain str, int, float, bool, None, list, "
                f"dict with str keys, found {type(value).__name__} {str(value)[:80]}; turn tuples into lists and keys "
                "into strings"
            )


def _same(a: Any, b: Any) -> bool:
    """Return whether two JSON values agree in value and type: 1, 1.0 and True are three things."""
    if type(a) is not type(b):
        return False
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(_same(a[key], b[key]) for key in a)
    if isinstance(a, list):
        return len(a) == len(b) and all(map(_same, a, b))
    return a == b


def _describe_meta(group: h5py.Group, meta: Mapping[str, Any]) -> None:
    """Show `meta` to HDF5 tools: scalars as attributes, the rest as JSON text. The manifest is what hybridmpi reads."""
    for key, value in meta.items():
        is_scalar = isinstance(value, (bool, float)) or (isinstance(value, int) and -(2**63) <= value < 2**63)
        if is_scalar or (isinstance(value, str) and value and "\0" not in value and len(value) < 1000):
            group.attrs[key] = value
        else:
            group.create_dataset(key, data=json.dumps(value, ensure_ascii=True), track_times=False)


def _shape(array: np.ndarray) -> dict[str, Any]:
    return {"shape": list(array.shape), "dtype": array.dtype.name}


def _check_dtypes(arrays: Arrays) -> None:
    for key, array in arrays.items():
        if array.dtype.kind not in "biuf":
            raise CheckpointError(f"{key}: dtype {array.dtype} cannot be stored; expected floats, integers or booleans")


def _check_open(directory: Path) -> None:
    """Raise CheckpointError if `directory` is absent or already whole: writing into a whole one would damage it."""
    if not Path(directory).is_dir():
        raise CheckpointError(
            f"{directory}: no such directory on this host; call begin(root, step) on one rank first, and put the "
            "checkpoints on a file system that all hosts share"
        )
    if (Path(directory) / MANIFEST_FILE).exists():
        raise CheckpointError(
            f"{directory} already holds a whole generation; call begin(root, step) before writing this step again"
        )
