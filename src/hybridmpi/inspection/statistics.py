"""`--statistics`: what the values of each array are like, and which rows of tables were trained at all."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from hybridmpi.errors import HybridMPIError
from hybridmpi.inspection.contents import Contents
from hybridmpi.inspection.moments import Moments, histogram
from hybridmpi.inspection.stored import StoredArray
from hybridmpi.inspection.text import bars, columns, counted, number
from hybridmpi.optim import from_description

# What is read at once, then worked on in blocks.
SLAB = 4 << 20
# Norms between these are right when their squares are summed in float32.
FLOAT32_NORMS = (1e-15, 1e18)


def measure(contents: Contents, patterns: Sequence[str] | None) -> dict[str, Any]:
    """Return statistics of the chosen parameters and their optimiser state, as plain data. Local.

    Every value is read once, in slabs; histograms and medians are those of an even sample. For tables "rows" tells of
    the norms of rows, and how many were never touched: their state is what the optimiser began with (None without
    state). Raises UsageError for a pattern that matches nothing, CheckpointError for a damaged file.
    """
    found = []
    for name in contents.select(patterns):
        values, *slots = contents.all_of(name)
        is_table = values.kind == "table"
        initial = _initial_state(contents) if is_table else None
        rows = RowNorms(values.rows) if is_table else None
        entry = {"name": name, "kind": values.kind, "shape": list(values.shape), "dtype": values.dtype.name}
        entry |= _measure_array(values, rows)
        untouched = Untouched(values) if is_table and slots and initial is not None else None
        entry["slots"] = {}
        for slot in slots:
            if untouched is not None:
                untouched.slot(initial.get(slot.slot, math.nan))
            entry["slots"][slot.slot] = _measure_array(slot, untouched)
        if rows is not None:
            entry["rows"] = rows.summary() | {"untouched": untouched.count() if untouched else None}
        found.append(entry)
    return {"path": str(contents.directory), "step": contents.checkpoint.step, "parameters": found}


def _measure_array(array: StoredArray, also: RowNorms | Untouched | None) -> dict[str, Any]:
    moments = Moments(array.rows * array.width, array.width)
    for rows, slab in array.slabs(array.rows_of(SLAB)):
        moments.add(slab)
        if also is not None:
            also.add(rows, slab)
    return moments.summary() | {"histogram": histogram(moments.sample())}


class RowNorms:
    """The norms of the rows of a table."""

    def __init__(self, rows: int) -> None:
        self._norms = Moments(rows)

    def add(self, _: Any, slab: np.ndarray) -> None:
        """Take in a slab [n, width]."""
        wide = slab if slab.dtype.kind == "f" else slab.astype(np.float64)
        with np.errstate(over="ignore", invalid="ignore"):
            norms = np.sqrt(np.einsum("ij,ij->i", wide, wide))
            hard = ~((norms > FLOAT32_NORMS[0]) & (norms < FLOAT32_NORMS[1]))
            if hard.any():
                norms = norms.astype(np.float64)
                norms[hard] = np.linalg.norm(wide[hard].astype(np.float64), axis=1)
        self._norms.add(norms)

    def summary(self) -> dict[str, Any]:
        """Return how many rows there are, the least, middle and greatest norm, and how many rows are zero."""
        found, sample = self._norms.summary(), self._norms.sample()
        return {
            "count": found["count"],
            "norm_min": found["min"],
            "norm_median": float(np.median(sample)) if sample.size else None,
            "norm_max": found["max"],
            "zero": found["zeros"],
        }


class Untouched:
    """Which rows have, in every slot of their state, the value that the optimiser began with."""

    def __init__(self, table: StoredArray) -> None:
        self._is_new = np.ones(table.rows, bool)
        self._initial: Any = 0.0

    def slot(self, initial: Any) -> None:
        """Say which value a row of the slot that comes next begins with."""
        self._initial = initial

    def add(self, rows: Any, slab: np.ndarray) -> None:
        """Take in the state of `rows` (a Progression), [n, width]."""
        new = self._is_new[rows.first : rows.last + 1 : rows.stride]
        if slab.shape[1]:
            new &= slab[:, 0] == self._initial  # most rows that were touched show it here
            some = np.flatnonzero(new)
            new[some] = (slab[some] == self._initial).all(axis=1)

    def count(self) -> int:
        """Return how many rows no slot knows of."""
        return int(np.count_nonzero(self._is_new))


def _initial_state(contents: Contents) -> dict[str, Any] | None:
    """Return the value that every slot begins with, None where the checkpoint does not tell its optimiser."""
    with suppress(HybridMPIError, KeyError, TypeError):  # TypeError: it describes no optimiser of ours
        optimizer = from_description(contents.checkpoint.meta["optimizer"])
        return {slot: state[0] for slot, state in optimizer.new_state(np.zeros(1, np.float32)).items()}
    return None


def render(found: dict[str, Any], plain: bool | None = None) -> str:
    """Return what `measure` found as text: a line for each array, then one for the rows of each table. Local."""
    lines = [f"{found['path']}, step {found['step']:,}", ""]
    head = ("values", "min", "max", "mean", "std", "norm", "zeros", "not finite", "from", "histogram", "to")
    rows = [head]
    for parameter in found["parameters"]:
        rows.append(_line(parameter["name"], parameter, plain))
        rows += [_line(f"  /{slot}", values, plain) for slot, values in parameter["slots"].items()]
    lines += columns(rows, right=(1, 2, 3, 4, 5, 6, 7, 8))
    tables = [parameter for parameter in found["parameters"] if "rows" in parameter]
    if tables:
        rows = [("rows of tables", "rows", "norm min", "median", "max", "zero", "never touched")]
        for table in tables:
            norms = table["rows"]
            rows.append((
                table["name"],
                f"{norms['count']:,}",
                *(number(norms[key]) for key in ("norm_min", "norm_median", "norm_max")),
                counted(norms["zero"], norms["count"]),
                "?" if norms["untouched"] is None else counted(norms["untouched"], norms["count"]),
            ))  # fmt: skip
        lines += ["", *columns(rows, right=(1, 2, 3, 4, 5, 6))]
        if any(table["rows"]["untouched"] is None for table in tables):
            lines.append("never touched: ? where there is no optimiser state to tell it by")
    lines += ["", "Histograms, of an even sample, leave out 0.1 % at each end."]
    return "\n".join(lines)


def _line(title: str, values: dict[str, Any], plain: bool | None) -> tuple[str, ...]:
    bad = [f"{values[kind]:,} {word}" for kind, word in (("nan", "NaN"), ("infinite", "inf")) if values[kind]]
    shape = values["histogram"]
    if shape is None:
        drawn = ("", "", "")
    elif len(shape["counts"]) == 1:
        drawn = (number(shape["from"]), "all the same", "")
    else:
        drawn = (number(shape["from"]), bars(shape["counts"], plain), number(shape["to"]))
    return (
        title,
        *(number(values[key]) for key in ("min", "max", "mean", "std", "norm")),
        counted(values["zeros"], values["count"]),
        ("NO: " if bad else "") + (", ".join(bad) or "-"),
        *drawn,
    )
