"""What a batch's examples are: how many a batch has, which its mean loss is weighted by.

A batch says so itself by `weight`. Otherwise it goes by the kind of its container, never by what happens to lie in it:

| batch | examples |
|---|---|
| an array, a Tensor, a data set of h5py, a sparse matrix | its first axis |
| a tuple, named or not, a dict, a dataclass | a record of columns: the length of each, which must be equal |
| a list | the number of its items: pairs, graphs, nodes, texts, dicts |
| any other object with a length | that length |

In a record a column is an array or a list with an entry for each example, or a record again. What has no such length
(a number, a text, None, a set, a generator), columns of different lengths (ids of bags beside their starts), and a list
of arrays, which may be columns or examples, are refused: such a batch needs a `weight`, an attribute or, in a dict, a
number of that name.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Iterator, Mapping, Set
from numbers import Real
from typing import Any

import numpy as np

from hybridmpi.errors import UsageError

MOST_EXAMPLES = 2.0**53
"""Up to here float64 counts each one, and sums over ranks are far from infinite."""
REMEDY = (
    "say how many examples it has: give the batch an attribute `weight` (a dataclass with a field or property of that "
    "name), or a dict an entry"
)


def examples(batch: Any) -> float:
    """Return how many examples a batch has: its `weight`, or what its container says (see above). Local.

    Raises UsageError where that is not plain, and for a weight that is no number from 0 up to 2^53.
    """
    weight = _weight_of(batch)
    if weight is not None:
        return _checked(weight)
    shape = getattr(batch, "shape", None)
    if isinstance(shape, tuple):
        return float(_first_axis(batch, "the batch"))
    if _is_record(batch):
        return float(_common_length(batch))
    if isinstance(batch, list):
        if any(_is_array(item) for item in batch):
            raise UsageError(
                "a batch that is a list of arrays: these may be columns, with an entry for each example, or examples. "
                f"Give columns as a tuple, (x, y), and an example's arrays as a tuple in the list; or {REMEDY}"
            )
        return float(len(batch))
    try:
        if not isinstance(batch, (str, bytes, bytearray, Set)):
            return float(len(batch))
    except TypeError:
        pass
    raise UsageError(f"a batch that is {_kind(batch)} has no examples that can be counted: {REMEDY}")


def iterator_of(batches: Iterable[Any]) -> Iterator[Any]:
    """Return an iterator of what `fit` was given as batches. Local. Raises UsageError for what is none."""
    try:
        if not isinstance(batches, (str, bytes, Mapping)):
            return iter(batches)
    except TypeError:
        pass
    raise UsageError(f"fit of {_kind(batches)}: expected an iterable of batches, such as a list or a generator of them")


def _weight_of(batch: Any) -> Any:
    """Return the weight that a batch says it has, None if it says none."""
    if isinstance(batch, Mapping):
        found = batch.get("weight")
        return None if _is_array(found) or isinstance(found, (list, tuple)) else found
    # Where the class has it, whatever it raises is shown: a fault in a property must not become another count.
    return batch.weight if hasattr(type(batch), "weight") else getattr(batch, "weight", None)


def _checked(weight: Any) -> float:
    if isinstance(weight, np.ndarray) and weight.ndim == 0:
        weight = weight[()]
    if isinstance(weight, Real) and not isinstance(weight, (bool, np.bool_)):
        try:
            number = float(weight)
        except OverflowError:
            number = math.inf
        if 0 <= number < MOST_EXAMPLES:
            return number
    shown = repr(weight) if isinstance(weight, (Real, str, bytes)) else _kind(weight)
    raise UsageError(
        f"a batch whose weight is {shown}: expected the number of its examples, a number from 0 up to 2^53"
        + (": make the method a property" if callable(weight) else "")
    )


def _is_array(value: Any) -> bool:
    shape = getattr(value, "shape", None)
    return isinstance(shape, tuple) and len(shape) > 0


def _first_axis(array: Any, what: str) -> int:
    if not array.shape:
        raise UsageError(f"{what} is an array of no axis, a single number: {REMEDY}")
    return int(array.shape[0])


def _is_record(value: Any) -> bool:
    if isinstance(value, (tuple, Mapping)):
        return True
    return dataclasses.is_dataclass(value) and not isinstance(value, type) and not hasattr(type(value), "__len__")


def _entries(record: Any) -> Iterable[tuple[Any, Any]]:
    if isinstance(record, Mapping):
        return record.items()
    if isinstance(record, tuple):
        return zip(getattr(record, "_fields", range(len(record))), record, strict=True)
    return [(field.name, getattr(record, field.name)) for field in dataclasses.fields(record)]


def _columns(record: Any, within: str, above: tuple[Any, ...] = ()) -> Iterator[tuple[str, int]]:
    """Yield the place and the length of each column of a record."""
    for key, value in _entries(record):
        place = f"{within}[{key!r}]" if isinstance(record, Mapping) or isinstance(key, int) else f"{within}.{key}"
        if isinstance(getattr(value, "shape", None), tuple):
            yield place, _first_axis(value, place)
        elif isinstance(value, list):
            yield place, len(value)
        elif _is_record(value) and not any(value is one for one in (*above, record)):
            yield from _columns(value, place, (*above, record))
        else:
            raise UsageError(
                f"{place} is {_kind(value)}, which is no column with an entry for each example: keep it elsewhere, or "
                f"{REMEDY}"
            )


def _common_length(record: Any) -> int:
    lengths = dict(_columns(record, "batch"))
    if not lengths:
        raise UsageError(f"a batch that is {_kind(record)} without entries: {REMEDY}")
    if len(set(lengths.values())) > 1:
        shown = ", ".join(f"{place}: {length:,}" for place, length in lengths.items())
        raise UsageError(f"the columns of the batch differ in length ({shown}): {REMEDY}")
    return next(iter(lengths.values()))


def _kind(value: Any) -> str:
    if value is None:
        return "None"
    name = type(value).__name__
    return f"{'an' if name[0] in 'aeiouAEIOU' else 'a'} {name}"
