"""index.h5: the whole model as one HDF5 file, by reference: nothing is copied, any HDF5 tool sees every parameter."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import numpy as np

from hybridmpi.checkpoint.files import FileRecord, write_file
from hybridmpi.checkpoint.layout import DENSE_FILE, FORMAT, INDEX_FILE


def write_index(directory: Path, step: int, dense: dict[str, Any], tables: dict[str, Any]) -> FileRecord:
    """Write index.h5 for the table of contents of one generation. Local.

    Dense parameters, carried state, vocabulary and meta are external links into dense.h5; a table is a virtual dataset
    over the servers' shards, contiguous for blocks and strided for cyclic shards. File names are relative, so the
    directory can be moved as a whole. Optimiser slots lie under /optimizer/NAME/SLOT.
    """

    def describe(file: h5py.File) -> None:
        file.attrs.update(format=FORMAT, step=step)
        file.create_group("parameters")
        file.create_group("optimizer")
        for name, parameter in dense["parameters"].items():
            file[f"/parameters/{name}"] = h5py.ExternalLink(DENSE_FILE, f"/parameters/{name}")
            for slot in parameter["slots"]:
                file[f"/optimizer/{name}/{slot}"] = h5py.ExternalLink(DENSE_FILE, f"/optimizer/{name}/{slot}")
        for group in ("carried", "meta", *(["vocabulary"] if dense["words"] is not None else [])):
            file[f"/{group}"] = h5py.ExternalLink(DENSE_FILE, f"/{group}")
        for name, table in tables.items():
            _join(file, f"/parameters/{name}", "values", table, table["dtype"])
            for slot, dtype in table["slots"].items():
                _join(file, f"/optimizer/{name}/{slot}", f"state/{slot}", table, dtype)

    return write_file(directory, INDEX_FILE, {}, describe, {})


def _join(file: h5py.File, path: str, source: str, table: dict[str, Any], dtype: str) -> None:
    """Create at `path` the table whose shards are the datasets `source` at the shards' paths.

    Through h5py's low level: its `create_virtual_dataset` stamps the time, and equal models should give equal bytes.
    """
    shape = (table["rows"], table["dim"])
    space = h5py.h5s.create_simple(shape)
    creation = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    creation.set_obj_track_times(False)
    if np.dtype(dtype).kind == "f":
        creation.set_fill_value(np.full(1, np.nan, dtype))  # a lost shard shows as NaN, not as zeros
    for shard in table["shards"]:
        part = (shard["count"], table["dim"])
        if 0 not in part:
            space.select_hyperslab((shard["first"], 0), part, (shard["stride"], 1))
            # HDF5 reads '%' in the names of virtual sources as a block number, '%%' as itself.
            dataset = f"{shard['path']}/{source}".replace("%", "%%")
            creation.set_virtual(space, shard["file"].encode(), dataset.encode(), h5py.h5s.create_simple(part))
    joined = h5py.h5d.create(file.id, None, h5py.h5t.py_create(np.dtype(dtype)), space, dcpl=creation)
    file[path] = h5py.Dataset(joined)
    file[path].attrs.update(kind=table["kind"], partitions=len(table["shards"]))
