"""Describe a checkpoint: what is in it, how large, whether its numbers are sane. Needs no MPI and little memory."""

from __future__ import annotations

import math
import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from hybridmpi.checkpoint.generations import generations
from hybridmpi.checkpoint.layout import MANIFEST_FILE
from hybridmpi.checkpoint.read import Checkpoint
from hybridmpi.checkpoint.verify import verify

# What is widened to float64 at a time: small enough for the second-level cache.
SCAN_ELEMENTS = 1 << 16


def describe(path: str | os.PathLike, check_digests: bool = False) -> dict[str, Any]:
    """Return what the generation that `path` means holds, as plain data that JSON can hold. Local.

    `path` is a generation's directory, a root (its newest whole generation) or an index.h5. Every array is read once,
    in slabs, for its norm and its non-finite values; with `check_digests` every byte of the files is checked first, and
    "damage" lists what is wrong (None: not checked); a damaged checkpoint is described by its manifest alone. Sizes are
    in bytes. Raises CheckpointError when there is nothing to describe.
    """
    checkpoint = Checkpoint.open(path)
    damage = [asdict(found) for found in verify(checkpoint.directory)] if check_digests else None
    parameters = [
        {
            "name": name,
            "kind": "dense",
            "shape": list(array.shape),
            "dtype": array.dtype.name,
            "partitions": None,
            "slots": sorted(array.slots),
        }
        for name, array in checkpoint.parameters.items()
    ] + [
        {
            "name": name,
            "kind": "sparse",
            "shape": [table.rows, table.dim],
            "dtype": table.dtype.name,
            "partitions": f"{len(table.shards)} x {table.kind}",
            "slots": sorted(table.slots),
        }
        for name, table in checkpoint.tables.items()
    ]
    parameters.sort(key=lambda parameter: parameter["name"])
    for parameter in parameters:
        scanned = {"norm": None, "nonfinite": None} if damage else _scan(checkpoint, parameter["name"])
        parameter.update(scanned)
    return {
        "path": str(checkpoint.directory),
        "step": checkpoint.step,
        "created": checkpoint.created,
        "size": checkpoint.size,
        "servers": checkpoint.servers,
        "elements": sum(math.prod(parameter["shape"]) for parameter in parameters),
        "parameters": parameters,
        "carried": [
            {"name": name, "shape": list(array.shape), "dtype": array.dtype.name}
            for name, array in checkpoint.carried_arrays.items()
        ],
        "words": checkpoint.word_count,
        "meta": checkpoint.meta,
        "incomplete": [p.name for p in generations(checkpoint.directory.parent) if not (p / MANIFEST_FILE).exists()],
        "damage": damage,
    }


def render(description: dict[str, Any]) -> str:
    """Return `description` (of `describe`) as text for people: aligned columns, human sizes. Local."""
    path = Path(description["path"])
    servers = description["servers"]
    lines = [
        str(path),
        f"  step        {description['step']:,}",
        f"  written     {description['created'][:19].replace('T', ' ')} UTC",
        f"  size        {human_size(description['size'])} in dense.h5, index.h5 and {servers} server file"
        + ("" if servers == 1 else "s"),
        f"  elements    {description['elements']:,}",
    ]
    if description["words"] is not None:
        lines.append(f"  vocabulary  {description['words']:,} words")
    header = ("parameter", "kind", "shape", "dtype", "partitions", "slots", "norm", "finite")
    rows = [
        (
            parameter["name"],
            parameter["kind"],
            _shape(parameter["shape"]),
            parameter["dtype"],
            parameter["partitions"] or "-",
            ", ".join(parameter["slots"]) or "-",
            "?" if parameter["nonfinite"] is None else f"{_number(parameter['norm']):.6g}",
            _finite(parameter["nonfinite"]),
        )
        for parameter in description["parameters"]
    ]
    lines += ["", *_columns([header, *rows], right=(2, 6))]
    if description["carried"]:
        rows = [(array["name"], _shape(array["shape"]), array["dtype"]) for array in description["carried"]]
        lines += ["", *_columns([("carried", "shape", "dtype"), *rows], right=(1,))]
    if description["meta"]:
        rows = [(key, _shorten(value)) for key, value in sorted(description["meta"].items())]
        lines += ["", *_columns([("meta", "value"), *rows])]
    if description["incomplete"]:
        lines += ["", f"incomplete beside it (a write that did not finish): {', '.join(description['incomplete'])}"]
    if description["damage"] is not None:
        lines.append("")
        lines += [f"DAMAGED {found['file']}: {found['text']}" for found in description["damage"]] or [
            "verified: every byte is what was written"
        ]
    return "\n".join(lines)


def human_size(count: int) -> str:
    """Return a number of bytes in binary units: 1536 -> '1.5 KiB'. Local."""
    size = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.0f} B" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"


def _scan(checkpoint: Checkpoint, name: str) -> dict[str, Any]:
    """Return the norm of the values (None if not finite) and the number of non-finite values by array, where any."""
    squares = 0.0
    nonfinite: dict[str, int] = {}
    for key, slab in checkpoint.each_slab(name):
        flat = slab.reshape(-1)
        for begin in range(0, flat.size, SCAN_ELEMENTS):
            wide = flat[begin : begin + SCAN_ELEMENTS].astype(np.float64)
            with np.errstate(over="ignore", invalid="ignore"):
                square = float(wide @ wide)
            if not math.isfinite(square):  # else every element is finite: no second look
                bad = int(wide.size - np.isfinite(wide).sum())
                if bad:
                    nonfinite[key] = nonfinite.get(key, 0) + bad
            if key == "values":
                squares += square
    norm = math.sqrt(squares) if squares >= 0 else math.nan
    return {"norm": norm if math.isfinite(norm) else None, "nonfinite": nonfinite}


def _number(norm: float | None) -> float:
    return math.nan if norm is None else norm


def _finite(nonfinite: dict[str, int] | None) -> str:
    if nonfinite is None:
        return "?"
    return "NO: " + ", ".join(f"{count:,} of {key}" for key, count in nonfinite.items()) if nonfinite else "yes"


def _shape(shape: list[int]) -> str:
    return " x ".join(f"{length:,}" for length in shape) or "scalar"


def _shorten(value: Any, width: int = 80) -> str:
    text = value if isinstance(value, str) else repr(value)
    text = " ".join(text.split())
    return text if len(text) <= width else text[: width - 3] + "..."


def _columns(rows: list[tuple[str, ...]], right: tuple[int, ...] = ()) -> list[str]:
    """Align `rows` of cells; the columns in `right` to the right."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return [
        "  ".join(
            cell.rjust(width) if column in right else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
