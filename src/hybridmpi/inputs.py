"""The border for arrays: what a user gives as an array is turned once into what the code uses, or refused.

Taken are arrays of numpy or cupy, lists, tuples and numbers, Tensors, data sets of h5py, memory maps, and whatever else
numpy makes an array of (torch's tensors, pandas' columns), of any strides and byte order. Refused, by a UsageError that
says what it is of: entries that are masked, since nothing below knows of masks, and what is no array of real numbers.

Integers that others index by (ids, classes, positions, starts) are copied, and what is checked is the copy: nobody can
change it between the check and its use, which may be as late as backward.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set
from typing import Any

import numpy as np

from hybridmpi.arrays import namespace
from hybridmpi.errors import HybridMPIError, UsageError
from hybridmpi.kernels.cpu import cpu_kernel

INT64 = np.iinfo(np.int64)


class HoldsArray:
    """What holds an array as `data`: a Tensor."""

    __slots__ = ()

    data: Any


def plain_array(value: Any, what: str) -> Any:
    """Return `value` as a numpy or cupy array of any dtype, without a mask; itself if it is one. Local.

    Raises UsageError, which begins with `what`, for masked entries and for what is no array.
    """
    if type(value) is np.ndarray:
        return value
    if isinstance(value, HoldsArray):
        return plain_array(value.data, what)
    if namespace(value) is not np:
        return value
    if isinstance(value, np.ma.MaskedArray):
        return _unmasked(value, what)
    if value is None or isinstance(value, (str, bytes, Mapping, Set, Iterator)):
        raise UsageError(f"{what}: {_kind(value)} is no array: expected an array, or a list of numbers")
    if isinstance(value, (list, tuple)):
        value = _without_masks(value, what)
    try:
        return np.asarray(value)
    except HybridMPIError as error:
        raise UsageError(f"{what}: {error}") from error
    except Exception as error:
        raise UsageError(
            f"{what}: {_kind(value)} of which numpy makes no array: {' '.join(str(error).split())}"
        ) from error


def real_array(value: Any, what: str) -> Any:
    """Return `value` as an array of real numbers (or truth values), of its own dtype; see `plain_array`. Local."""
    array = plain_array(value, what)
    if array.dtype.kind not in "fiub":
        raise UsageError(f"{what} of dtype {array.dtype}: expected real numbers{_remedy(array)}")
    return array


def floats(value: Any, dtype: Any, what: str, shape: tuple[int, ...] | None = None) -> Any:
    """Return real numbers as an array of `dtype`, the same array if it is of that. Local; nobody writes to it.

    NaN and infinities are passed on: the guards of a step find them. Raises UsageError for other kinds, for a number
    that only becomes infinite in `dtype`, and for another shape than `shape`.
    """
    given = real_array(value, what)
    if shape is not None and given.shape != shape:
        raise UsageError(f"{what} of shape {given.shape}: expected {shape}")
    if given.dtype == dtype:
        return given
    xp = namespace(given)
    with np.errstate(over="ignore"):
        array = given.astype(dtype)
    narrowed = given.dtype.kind == "f" and given.dtype.itemsize > array.itemsize
    if narrowed and (beyond := int((xp.isinf(array) & ~xp.isinf(given)).sum())):
        raise UsageError(
            f"{what}: {beyond} of {given.size} numbers are too large for {array.dtype}, which ends at "
            f"{np.finfo(array.dtype).max:.3g}: scale them"
        )
    return array


def integers(
    value: Any,
    what: str,
    low: int = INT64.min,
    high: int = INT64.max,
    error: type[HybridMPIError] = UsageError,
    remedy: str = "",
) -> Any:
    """Return integers in [low, high) as an int64 array of its own, C-contiguous, of the shape given. Local.

    Raises UsageError for what is no array of integers; `error` for one outside, which begins with `what`, says where,
    and ends with `remedy`.
    """
    given = plain_array(value, what)
    xp = namespace(given)
    if not given.size and given.dtype.kind in "fiub":
        return xp.empty(given.shape, np.int64)  # whatever dtype an empty list has
    if given.dtype.kind not in "iu":
        raise UsageError(f"{what} of dtype {given.dtype}: expected integers{_remedy(given)}")
    own = xp.array(given, np.int64, order="C", copy=True)
    flat = own.reshape(-1)
    if xp is not np:
        inside = bool((flat >= low).all()) and bool((flat < high).all())
    elif low == INT64.min and high == INT64.max:
        inside = given.dtype != np.uint64 or flat.min() >= 0  # what does not fit wraps round
    else:
        inside = not _count_outside(flat, low, high)
    if not inside:
        raise error(_outside(given, what, low, high, remedy))
    return own


def ascending(value: Any, what: str, high: int, error: type[HybridMPIError] = UsageError) -> Any:
    """Return integers [n] in [0, high), each larger than the one before, as int64; the same array if it is that. Local.

    Raises UsageError for other kinds and shapes; `error`, which begins with `what`, for another order or range.
    """
    if type(value) is not np.ndarray or value.dtype != np.int64 or value.ndim != 1 or not value.flags.c_contiguous:
        if namespace(value) is not np:
            return value  # memory of a device: made by our own kernels
        value = integers(value, what)
        if value.ndim != 1:
            raise UsageError(f"{what} of shape {value.shape}: expected one row of distinct numbers, ascending")
    if len(value) and (value[0] < 0 or value[-1] >= high or _count_falls(value, True)):
        wrong = (value < 0) | (value >= high)
        wrong[1:] |= value[1:] <= value[:-1]
        place = int(wrong.argmax())
        raise error(
            f"{what} {value[place]} at position {place} of {len(value)}: expected numbers in [0, {high}), each larger "
            "than the one before: sort them and name each once (numpy.unique)"
        )
    return value


def starts(value: Any, count: int, what: str) -> Any:
    """Return where parts of `count` entries begin and the last one ends, int64 [parts + 1], which rises from 0 to
    `count`. Local. Raises UsageError for what does not."""
    found = integers(value, what)
    if found.ndim != 1 or not len(found):
        raise UsageError(f"{what} of shape {found.shape}: expected one row, 0 and where each part ends")
    if found[0] != 0 or found[-1] != count:
        raise UsageError(f"{what} run from {found[0]} to {found[-1]}: expected 0 to {count}, the number of entries")
    if _count_falls(found, False):
        place = int((found[1:] < found[:-1]).argmax())
        raise UsageError(f"{what} fall from {found[place]} to {found[place + 1]} at position {place}: expected a rise")
    return found


@cpu_kernel
def _count_outside(flat, low, high):
    count = 0
    for i in range(len(flat)):
        count += (flat[i] < low) | (flat[i] >= high)
    return count


@cpu_kernel
def _count_falls(flat, strictly):
    """How often an element is below the one before, or, to rise `strictly`, equals it. Without an exit, so that it
    vectorises; compared, not subtracted, which could wrap round."""
    count = 0
    for i in range(1, len(flat)):
        count += (flat[i] < flat[i - 1]) | (strictly & (flat[i] == flat[i - 1]))
    return count


def _outside(given: Any, what: str, low: int, high: int, remedy: str) -> str:
    """Say which of the integers is the first outside [low, high), as they were given."""
    flat = given.reshape(-1)
    place = int(((flat < low) | (flat >= high)).argmax())
    within = tuple(int(i) for i in np.unravel_index(place, given.shape)) if given.ndim else ()
    where = f" at position {within[0] if len(within) == 1 else within}" if within else ""
    return (
        f"{what} {int(flat[place])}{where} of {flat.size} (shape {given.shape}) is outside [{low}, {high}); they span "
        f"{int(flat.min())} to {int(flat.max())}" + (f". {remedy}" if remedy else "")
    )


def _unmasked(value: np.ma.MaskedArray, what: str) -> np.ndarray:
    masked = int(np.ma.count_masked(value))
    if masked:
        raise UsageError(
            f"{what}: {masked} of {value.size} entries are masked, and masks mean nothing here: leave them out "
            "(array.compressed()) or fill them (array.filled(number))"
        )
    return np.asarray(value.data)


def _without_masks(value: Any, what: str) -> Any:
    """Return a list in which no masked array is left; numpy would take what is under the masks."""
    for item in value:
        if isinstance(item, np.ma.MaskedArray):
            _unmasked(item, what)
        elif isinstance(item, (list, tuple)):
            _without_masks(item, what)
    return value


def _remedy(array: Any) -> str:
    return {
        "f": "; if they are whole, convert them with .astype(numpy.int64)",
        "b": ", not truth values; convert them with .astype(numpy.int64), or name the true ones by numpy.flatnonzero",
        "c": "; give real and imaginary parts as two arrays",
        "O": ", all of one kind and, in rows, equally many; or convert them with .astype",
    }.get(array.dtype.kind, "")


def _kind(value: Any) -> str:
    name = type(value).__name__
    return "None" if value is None else f"{'an' if name[0] in 'aeiouAEIOU' else 'a'} {name}"
