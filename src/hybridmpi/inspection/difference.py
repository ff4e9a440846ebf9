"""`--diff`: what changed between two checkpoints, whatever numbers of servers wrote them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from hybridmpi.checkpoint.layout import Progression
from hybridmpi.errors import UsageError
from hybridmpi.inspection.contents import Contents, nearest
from hybridmpi.inspection.stored import StoredArray
from hybridmpi.inspection.text import (
    LONGEST_WORD,
    clipped,
    columns,
    counted,
    number,
    printable,
    shape_text,
    shorten,
    when,
)

# What the meta of a job's checkpoint says of its progress, beside its settings: the header tells the step.
NO_SETTINGS = ("step", "updates", "alphas", "run_id")
# What is read of either side at once.
SLAB = 4 << 20


def compare(a: Contents, b: Contents, patterns: Sequence[str] | None) -> dict[str, Any]:
    """Return what differs from `a` to `b`: parameters, their optimiser state, and settings, as plain data. Local.

    Every value of either side is read once, in slabs. "relative" is the norm of the change over the norm in `a`;
    numbers leave out places where either side is not finite, whose number is told. Raises UsageError for a pattern
    that matches nothing on either side, CheckpointError for a damaged file.
    """
    names_a, names_b = _selected(a, b, patterns)
    both = [name for name in names_a if name in names_b]
    reshaped = [name for name in both if a.arrays[name].shape != b.arrays[name].shape]
    return {
        "a": _about(a),
        "b": _about(b),
        "parameters": [_compare_parameter(a, b, name) for name in both if name not in reshaped],
        "reshaped": [
            {"name": name, "a": list(a.arrays[name].shape), "b": list(b.arrays[name].shape)} for name in reshaped
        ],
        "only_in_a": [name for name in names_a if name not in names_b],
        "only_in_b": [name for name in names_b if name not in names_a],
        "settings": [
            {"name": key, "a": of_a, "b": of_b}
            for key, of_a, of_b in different_settings(a.checkpoint.meta, b.checkpoint.meta)
        ],
        "words": "same" if _words_agree(a, b) else "different",
    }


def _about(contents: Contents) -> dict[str, Any]:
    return {
        "path": str(contents.directory),
        "step": contents.checkpoint.step,
        "created": contents.checkpoint.created,
        "servers": contents.checkpoint.servers,
    }


def _selected(a: Contents, b: Contents, patterns: Sequence[str] | None) -> tuple[list[str], list[str]]:
    """Return the chosen names of both sides; a pattern need match on one of them."""
    if not patterns:
        return a.parameters, b.parameters
    chosen: tuple[set[str], set[str]] = (set(), set())
    for pattern in patterns:
        for side, names in zip((a, b), chosen, strict=True):
            names.update(side.matching(pattern))
        if not a.matching(pattern) and not b.matching(pattern):
            known = [*a.arrays, *(name for name in b.arrays if name not in a.arrays)]
            raise UsageError(f"neither checkpoint has a parameter '{pattern}': {nearest(pattern, known)}")
    return sorted(chosen[0]), sorted(chosen[1])


def _compare_parameter(a: Contents, b: Contents, name: str) -> dict[str, Any]:
    of_a, of_b = a.arrays[name], b.arrays[name]
    slots_a, slots_b = a.slots[name], b.slots[name]
    words = a.words_of(name)
    found = {"name": name, "kind": of_b.kind, "shape": list(of_b.shape), "dtype": of_b.dtype.name}
    if of_a.dtype != of_b.dtype:
        found["dtype_before"] = of_a.dtype.name
    if of_a.kind != of_b.kind:
        found["kind_before"] = of_a.kind
    found |= _compare_arrays(of_a, of_b)
    row = found["at"][0] if found["at"] else None
    found["word"] = words[row] if words and row is not None else None
    found["slots"] = {slot: _compare_arrays(slots_a[slot], slots_b[slot]) for slot in slots_a if slot in slots_b}
    found["slots_only_in_a"] = [slot for slot in slots_a if slot not in slots_b]
    found["slots_only_in_b"] = [slot for slot in slots_b if slot not in slots_a]
    return found


def _compare_arrays(a: StoredArray, b: StoredArray) -> dict[str, Any]:
    changes = Changes(a)
    for rows, of_a, of_b in _side_by_side(a, b):
        changes.add(rows, of_a, of_b)
    return changes.summary()


def _side_by_side(a: StoredArray, b: StoredArray) -> Iterator[tuple[Progression, np.ndarray, np.ndarray]]:
    """Yield (rows, their values in `a`, in `b`) over all rows.

    Where both sides dealt rows the same way these are as they lie on disk, otherwise in order.
    """
    at_once = min(a.rows_of(SLAB), b.rows_of(SLAB))
    if [piece.span for piece in a.pieces] == [piece.span for piece in b.pieces]:
        sides = zip(a.slabs(at_once), b.slabs(at_once), strict=True)
    else:
        sides = zip(a.in_order(at_once), b.in_order(at_once), strict=True)
    for (rows, of_a), (_, of_b) in sides:
        if a.width:
            yield rows, of_a, of_b


class Changes:
    """What changed between two arrays of one shape, of which `add` was given rows side by side."""

    def __init__(self, array: StoredArray) -> None:
        self._array = array
        self._count = array.rows * array.width
        self._changed = self._rows_changed = self._strange = 0
        self._largest, self._at = 0.0, None
        self._sum = self._squares = self._squares_before = 0.0

    def add(self, rows: Progression, a: np.ndarray, b: np.ndarray) -> None:
        """Take in the values of `rows`, [n, width] each."""
        block = max(1, (1 << 16) // a.shape[1])
        for begin in range(0, len(a), block):
            span = Progression(rows.first + begin * rows.stride, rows.stride, min(block, len(a) - begin))
            self._add_block(span, a[begin : begin + block], b[begin : begin + block])

    def _add_block(self, rows: Progression, a: np.ndarray, b: np.ndarray) -> None:
        wide = a.astype(np.float64)
        with np.errstate(over="ignore", invalid="ignore"):
            before = float(np.vdot(wide, wide))
            if math.isfinite(before):
                self._squares_before += before
            else:
                finite = wide[np.isfinite(wide)]
                self._squares_before += float(finite @ finite)
            differs = a != b
            if a.dtype.kind == "f" and not math.isfinite(before):
                differs &= ~(np.isnan(a) & np.isnan(b))  # NaN on both sides is no change
            if not differs.any():
                return
            change = np.abs(np.subtract(b, wide, out=wide), out=wide)
            total = float(change.sum())
            if not math.isfinite(total):
                strange = ~np.isfinite(change) & differs
                self._strange += int(np.count_nonzero(strange))
                change[~np.isfinite(change)] = 0
                total = float(change.sum())
        self._sum += total
        self._squares += float(np.vdot(change, change))
        self._changed += int(np.count_nonzero(differs))
        self._rows_changed += int(np.count_nonzero(differs.any(axis=1)))
        position = int(change.argmax())
        row, column = divmod(position, a.shape[1])
        if self._at is None or change[row, column] > self._largest:
            self._largest = float(change[row, column])
            self._at = [rows.first + row * rows.stride, column]

    def summary(self) -> dict[str, Any]:
        """Return all as plain data: "at" is [row, column] of the largest change, None where nothing changed."""
        before, after = math.sqrt(self._squares_before), math.sqrt(self._squares)
        return {
            "count": self._count,
            "changed": self._changed,
            "max": _known(self._largest),
            "at": self._at,
            "mean": _known(self._sum / self._count) if self._count else None,
            "relative": _known(after / before) if before and before < math.inf else (None if after else 0.0),
            "not_finite": self._strange,
            "rows": self._array.rows,
            "rows_changed": self._rows_changed,
        }


def different_settings(a: Any, b: Any, prefix: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Yield (dotted name, value in `a`, value in `b`) of what differs in two nested dicts; None for absent. Local."""
    for key in sorted(a.keys() | b.keys()):
        of_a, of_b = a.get(key), b.get(key)
        if isinstance(of_a, dict) and isinstance(of_b, dict):
            yield from different_settings(of_a, of_b, f"{prefix}{key}.")
        elif of_a != of_b:
            yield f"{prefix}{key}", of_a, of_b


def render(found: dict[str, Any]) -> str:
    """Return what `compare` found as text: a line for each array that changed, then the rest. Local."""
    a, b = found["a"], found["b"]
    lines = [
        f"{side}  {one['path']}  step {one['step']:,}, {when(one['created'])}" for side, one in (("A", a), ("B", b))
    ]
    rows = [("changed from A to B", "largest", "at", "mean", "relative", "values", "rows", "not finite")]
    same = []
    for parameter in found["parameters"]:
        arrays = {parameter["name"]: parameter} | {f"  /{slot}": s for slot, s in parameter["slots"].items()}
        if any(array["changed"] for array in arrays.values()):
            rows += [_line(title, array) for title, array in arrays.items()]
        else:
            same.append(parameter["name"])
    lines.append("")
    nothing = "no value differs" if same else "nothing to compare: no parameter of one name and shape on both sides"
    lines += columns(rows, right=(1, 3, 4, 5, 6, 7)) if len(rows) > 1 else [nothing]
    if same and len(rows) > 1:
        lines += ["", f"the same, state included: {_listed(same)}"]
    lines += ["", *notes] if (notes := _notes(found)) else []
    settings = [
        (one["name"], shorten(one["a"], 50), shorten(one["b"], 50))
        for one in found["settings"]
        if one["name"] not in NO_SETTINGS
    ]
    if settings:
        lines += ["", *columns([("settings", "A", "B"), *settings])]
    return "\n".join(lines)


def _line(title: str, array: dict[str, Any]) -> tuple[str, ...]:
    if not array["changed"]:
        return (title, "-", "", "-", "-", "-", "-", "-")
    return (
        title,
        number(array["max"]),
        _place(array),
        number(array["mean"]),
        number(array["relative"]),
        counted(array["changed"], array["count"]),
        counted(array["rows_changed"], array["rows"]) if array["rows"] > 1 else "-",
        f"{array['not_finite']:,}" if array["not_finite"] else "-",
    )


def _place(array: dict[str, Any]) -> str:
    """Return where the largest change is, as far as there is more than one row, or column."""
    row, column = array["at"]
    if array.get("word") is not None:
        return f"row {row}, {clipped(printable(array['word']), LONGEST_WORD)}"
    place = [f"row {row}"] if array["rows"] > 1 else []
    place += [f"column {column}"] if array["count"] > array["rows"] else []
    return ", ".join(place)


def _notes(found: dict[str, Any]) -> list[str]:
    """Return what cannot be compared, or changed in another way than by its values."""
    notes = [
        f"only in {side.upper()}: {_listed(found[f'only_in_{side}'])}" for side in "ab" if found[f"only_in_{side}"]
    ]
    for one in found["reshaped"]:
        notes.append(f"another shape: {one['name']}: {shape_text(one['a'])} in A, {shape_text(one['b'])} in B")
    for parameter in found["parameters"]:
        for key in ("kind", "dtype"):
            if f"{key}_before" in parameter:
                before, after = parameter[f"{key}_before"], parameter[key]
                notes.append(f"another {key}: {parameter['name']}: {before} in A, {after} in B")
        for side in "ab":
            if slots := parameter[f"slots_only_in_{side}"]:
                notes.append(f"optimiser state only in {side.upper()}: {parameter['name']}: {_listed(slots)}")
    if found["words"] != "same":
        notes.append("the vocabularies differ: a row need not mean the same word on both sides")
    return notes


def _listed(names: list[str], most: int = 12) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most:,} more" if len(names) > most else "")


def _words_agree(a: Contents, b: Contents) -> bool:
    return a.checkpoint.word_count == b.checkpoint.word_count and a.words == b.words


def _known(value: float) -> float | None:
    return value if math.isfinite(value) else None
