"""Values of a job file: the types that its dataclasses name, and the check of what TOML gives against them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from hybridmpi.errors import UsageError


@dataclass(frozen=True, slots=True)
class Range:
    """The numbers from `low` up, below `below` where that is given."""

    low: float
    below: float = math.inf

    def __str__(self) -> str:
        return f"at least {self.low}" + (f" and below {self.below}" if self.below < math.inf else "")


Count = Annotated[int, Range(1)]
Counts = Annotated[tuple[int, ...], Range(1)]
Amount = Annotated[float, Range(0)]
Mebibytes = Annotated[float, Range(0.001)]
Share = Annotated[float, Range(0, 1)]
Wire = Literal["float32", "bfloat16", "float16"]


def checked(value: Any, hint: Any, place: str) -> Any:
    """Return `value` as a field of type `hint` holds it. Local.

    Raises UsageError, which names `place` and what was expected, for a value of another type or outside its range.
    """
    limits, choices = _parts(hint)
    for choice in choices:
        if get_origin(choice) is Literal:
            if isinstance(value, str) and value in get_args(choice):
                return value
        elif choice in (int, float):
            if _is_number(value, choice, limits):
                return choice(value)
        elif get_origin(choice) is tuple:
            of = get_args(choice)[0]
            if isinstance(value, list) and all(
                isinstance(item, str) if of is str else _is_number(item, of, limits) for item in value
            ):
                return tuple(value)
        elif isinstance(value, choice):
            return value
    raise UsageError(f"{place} = {show(value)}; expected {described(hint)}")


def _is_number(value: Any, kind: type, limits: Range) -> bool:
    """Return whether `value` is a number of type `kind` within `limits`; a whole number is a fraction too."""
    number = isinstance(value, int) and not isinstance(value, bool)
    return (number or (kind is float and isinstance(value, float))) and limits.low <= value < limits.below


def described(hint: Any) -> str:
    """Return what a value of a field of type `hint` is, in words. Local."""
    limits, choices = _parts(hint)
    return " or ".join(_describe(choice, limits) for choice in choices)


def meaning_of(hint: Any) -> str:
    """Return the text that stands beside the type of a field, which says what it means; "" without any. Local."""
    return next((extra for extra in getattr(hint, "__metadata__", ()) if isinstance(extra, str)), "")


def _parts(hint: Any) -> tuple[Range | None, tuple[Any, ...]]:
    """Return the range that a field's type names, and the types that it may be."""
    limits = next((extra for extra in getattr(hint, "__metadata__", ()) if isinstance(extra, Range)), None)
    base = get_args(hint)[0] if get_origin(hint) is Annotated else hint
    return limits, get_args(base) if get_origin(base) in (Union, UnionType) else (base,)


def _describe(choice: Any, limits: Range | None) -> str:
    """Return what a value of type `choice` is, in words."""
    if get_origin(choice) is Literal:
        return " or ".join(f'"{name}"' for name in get_args(choice))
    if get_origin(choice) is tuple:
        if get_args(choice)[0] is str:
            return 'a list of strings in quotes, such as ["one", "two"]'
        return f"a list of whole numbers, each {limits}, such as [2, 1]"
    if choice in (int, float):
        return f"a {'whole ' * (choice is int)}number, {limits}"
    return {bool: "true or false", str: "a string in quotes"}[choice]


def show(value: Any) -> str:
    """Return `value` and its kind, as TOML names it. Local."""
    kinds = {bool: "a truth value", int: "a whole number", float: "a fraction", str: "a string", list: "a list"}
    shown = f'"{value}"' if isinstance(value, str) else str(value).lower() if isinstance(value, bool) else str(value)
    return f"{shown} ({kinds.get(type(value), type(value).__name__)})"
