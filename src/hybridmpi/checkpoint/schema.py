"""What a manifest must say: every entry there, of its type, and all of them fit together."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from datetime import datetime
from typing import Any

import numpy as np

from hybridmpi.checkpoint.layout import DENSE_FILE, INDEX_FILE, KINDS, Progression, check_name, covered, server_file

FORMATS = (2, 3)
"""Those that can be read; the marks of 2 have no digests of their own parts."""
# numpy has arrays of so many axes, in all versions.
MOST_AXES = 32
_SHA256 = re.compile(r"[0-9a-f]{64}")
_TABLE_PATH = re.compile(r"/tables/([^/]+)(/part-\d{3,})?", re.DOTALL)


def check_content(content: dict[str, Any]) -> None:
    """Raise ValueError naming the first entry of a manifest's content that cannot be. Local.

    CheckpointError for names that could not have been stored. What this lets pass has every key that readers use.
    """
    _number(content["step"], "step")
    _want(datetime.fromisoformat(_text(content["created"], "created")).tzinfo is not None, "created without a zone")
    servers = _number(content["servers"], "servers")
    _dict(content["meta"], "meta")
    sizes = _check_files(content["files"], servers, content["format"])
    total = sum(sizes.values())
    for group in ("parameters", "carried"):
        for name, entry in _dict(content[group], group).items():
            where = f"{group}, '{name}'"
            check_name(name, where)
            _check_array(_dict(entry, where), where, total)
            if group == "parameters":
                _check_slots(entry["slots"], where)
    for name, table in _dict(content["tables"], "tables").items():
        _want(name not in content["parameters"], f"'{name}' is both a table and a dense parameter")
        _check_table(name, _dict(table, f"table '{name}'"), sizes, total)
    if content["words"] is not None:
        _want(_number(content["words"], "words") <= total, "more words than bytes")


def _check_files(files: Any, servers: int, version: int) -> dict[str, int]:
    """Return the size of each file; they must be those that so many servers write."""
    sizes: dict[str, int] = {}
    for entry in _list(files, "files"):
        name = _text(_dict(entry, "files")["name"], "files, name")
        _want(name not in sizes, f"{name} is listed twice")
        sizes[name] = _number(entry["size"], name)
        _want(_SHA256.fullmatch(_text(entry["sha256"], name)) is not None, f"{name}: no sha256")
        _text(entry["host"], name)
        end = 0
        for mark in _list(entry["marks"], name):
            _want(len(_list(mark, name)) == (3 if version == 2 else 4), f"{name}: a mark of {len(mark)} entries")
            _want(_number(mark[0], name) > end, f"{name}: marks that do not rise")
            end = mark[0]
            _text(mark[1], name), _text(mark[2], name)
            _want(version == 2 or _number(mark[3], name) < 2**32, f"{name}: a CRC-32 of more than 32 bits")
        _want(end == sizes[name], f"{name}: marks end at {end} of {sizes[name]} bytes")
    expected = {DENSE_FILE, INDEX_FILE, *(server_file(server) for server in range(min(servers, len(sizes))))}
    _want(servers == len(sizes) - 2 and sizes.keys() == expected, f"files {sorted(sizes)} of {servers} servers")
    return sizes


def _check_array(entry: dict[str, Any], where: str, total: int) -> None:
    shape = [_number(length, where) for length in _list(entry["shape"], where)]
    _want(len(shape) <= MOST_AXES, f"{where}: {len(shape)} axes")
    _check_size(shape, _dtype(entry["dtype"], where), where, total)


def _check_size(shape: Sequence[int], dtype: np.dtype, where: str, total: int) -> None:
    """Declared sizes are bounded by the bytes on disk, also along the axes of arrays without values."""
    bound = total if math.prod(shape) == 0 else total // dtype.itemsize
    _want(all(length <= bound for length in shape), f"{where}: shape {tuple(shape)} in files of {total:,} bytes")
    _want(math.prod(shape) <= bound, f"{where}: shape {tuple(shape)} in files of {total:,} bytes")


def _check_slots(slots: Any, where: str) -> None:
    names = [_text(slot, where) for slot in _list(slots, where)]
    _want(len(set(names)) == len(names), f"{where}: a slot twice")
    for slot in names:
        check_name(slot, f"{where}, slot")


def _check_table(name: str, table: dict[str, Any], sizes: dict[str, int], total: int) -> None:
    where = f"table '{name}'"
    check_name(name, "table")
    rows, dim = _number(table["rows"], where), _number(table["dim"], where)
    _check_size((rows, dim), _dtype(table["dtype"], where), where, total)
    _want(table["kind"] in KINDS, f"{where}: kind {table['kind']!r}")
    for slot, dtype in _dict(table["slots"], where).items():
        check_name(slot, f"{where}, slot")
        _dtype(dtype, where)
    spans, places = [], set()
    for shard in _list(table["shards"], where):
        file, path = _text(_dict(shard, where)["file"], where), _text(shard["path"], where)
        match = _TABLE_PATH.fullmatch(path)
        _want(file in sizes and file not in (DENSE_FILE, INDEX_FILE), f"{where}: rows in {file}")
        _want(match is not None and match[1] == name, f"{where}: rows at {path}")
        _want((file, path) not in places, f"{where}: {file} {path} twice")
        places.add((file, path))
        first, stride, count = (_number(shard[key], where) for key in ("first", "stride", "count"))
        _want(stride >= 1 and (not count or first + (count - 1) * stride < rows), f"{where}: rows that it has not")
        spans.append(Progression(first, stride, count))
    _want(covered(spans, rows), f"{where}: its shards do not hold each of {rows} rows once")


def _want(condition: bool, text: str) -> None:
    if not condition:
        raise ValueError(text)


def _number(value: Any, where: str) -> int:
    _want(type(value) is int and 0 <= value < 2**63, f"{where}: {_shown(value)} is no number from 0 on")
    return value


def _text(value: Any, where: str) -> str:
    _want(type(value) is str, f"{where}: {_shown(value)} is no text")
    return value


def _list(value: Any, where: str) -> list[Any]:
    _want(type(value) is list, f"{where}: {_shown(value)} is no list")
    return value


def _dict(value: Any, where: str) -> dict[str, Any]:
    _want(type(value) is dict, f"{where}: {_shown(value)} is no object")
    return value


def _dtype(name: Any, where: str) -> np.dtype:
    try:
        dtype = np.dtype(_text(name, where))
    except TypeError:
        dtype = np.dtype("O")
    _want(dtype.kind in "biuf" and dtype.name == name, f"{where}: {_shown(name)} is no dtype of numbers")
    return dtype


def _shown(value: Any) -> str:
    """Return a value, the end of a long one left out."""
    return text if len(text := repr(value)) <= 60 else text[:57] + "..."
