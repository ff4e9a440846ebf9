"""Types of options, with their ranges, and the check of values against them.

A key of a job file, an option of the Python API and an argument of a command have such a type as their annotation:
`checked` is the one place that turns what was given into what is used, or refuses it. Numbers are checked in the
precision in which they are used: whole numbers fit in 64 bits, and all others are finite, and not lost, as float32.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import inspect
import math
import struct
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from numbers import Integral, Real
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from hybridmpi.errors import UsageError
from hybridmpi.paths import expanded

MOST_WHOLE = 1 << 63
"""Whole numbers are below this: they end in int64 arrays."""
LEAST_FRACTION = 2.0**-126
"""Of float32's normal numbers the least: a smaller one loses digits, or becomes 0."""
MOST_SHOWN = 80
"""Characters of a value in a message."""

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class Range:
    """The numbers from `low` up, without `low` itself where `above` is set, below `below`; of whole numbers math.inf
    too, where `unbounded` is set."""

    low: float = -math.inf
    below: float = math.inf
    above: bool = False
    unbounded: bool = False

    def __str__(self) -> str:
        """Return the range in words; "" where there is no bound."""
        parts = []
        if self.low > -math.inf:
            parts.append(f"{'above' if self.above else 'at least'} {self.low}")
        if self.below < math.inf:
            parts.append(f"below {self.below}")
        return " and ".join(parts) + (" or math.inf" if self.unbounded else "")

    def holds(self, value: float) -> bool:
        """Return whether `value` is within. Local."""
        return (value > self.low if self.above else value >= self.low) and value < self.below


@dataclass(frozen=True, slots=True)
class PathText:
    """Of a string: it is a path, whose ~ means the home. `empty`: whether it may be left empty."""

    empty: bool = False


Natural = Annotated[int, Range(0)]
Count = Annotated[int, Range(1)]
Counts = Annotated[tuple[int, ...], Range(1)]
Amount = Annotated[float, Range(0)]
Positive = Annotated[float, Range(0, above=True)]
Mebibytes = Annotated[float, Range(0.001)]
Share = Annotated[float, Range(0, 1)]
Wire = Literal["float32", "bfloat16", "float16"]
FilePath = Annotated[str, PathText()]
OptionalPath = Annotated[str, PathText(empty=True)]
Seed = Annotated[int, Range(0, 1 << 32)]
"""Every generator takes 32 bits of a seed as they are: no two seeds are the same."""


class Options:
    """Base of dataclasses of options: every field is checked against its type, and kept as that type."""

    __slots__ = ()

    def __post_init__(self) -> None:
        check_fields(self)


def check_fields(options: Any) -> None:
    """Check every field of a dataclass against its type, and put what is used in its place. Local.

    Raises UsageError, which names class and field, what came and what was expected.
    """
    hints = hints_of(type(options))
    for field in dataclasses.fields(options):
        value = checked(
            getattr(options, field.name), hints[field.name], f"{type(options).__name__}.{field.name}", python=True
        )
        object.__setattr__(options, field.name, value)


def checks_arguments(function: F) -> F:
    """Check those arguments of `function` whose annotation is a type of options; the others pass as they are.

    Raises UsageError, which names the function, or the class that it makes, and the argument.
    """
    signature = inspect.signature(function)

    @functools.wraps(function)
    def wrapper(*arguments: Any, **options: Any) -> Any:
        bound = signature.bind(*arguments, **options)
        hints = argument_types(function)
        for name in bound.arguments.keys() & hints.keys():
            bound.arguments[name] = checked(bound.arguments[name], hints[name], place_of(function, name), python=True)
        return function(*bound.args, **bound.kwargs)

    return wrapper  # type: ignore[return-value]


def place_of(function: Callable[..., Any], argument: str) -> str:
    """Return how messages name an argument: "Linear.inputs" of a class, "Trainer.fit: steps" else. Local."""
    name = function.__qualname__.rpartition("<locals>.")[2]
    return f"{name.removesuffix('.__init__')}.{argument}" if name.endswith(".__init__") else f"{name}: {argument}"


@functools.cache
def hints_of(cls: type) -> dict[str, Any]:
    """Return the types of a class' fields, with what stands beside them. Local."""
    return get_type_hints(cls, include_extras=True)


@functools.cache
def argument_types(function: Callable[..., Any]) -> dict[str, Any]:
    """Return the types of those arguments of `function` that are types of options, by name. Local."""
    function = inspect.unwrap(function)
    names, found = vars(sys.modules[function.__module__]), {}
    for name, parameter in inspect.signature(function).parameters.items():
        hint = parameter.annotation
        if isinstance(hint, str):
            try:
                hint = eval(hint, dict(names))
            except NameError:  # of what is imported for type checkers alone, which is no type of options
                continue
        plain = parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
        if plain and hint is not parameter.empty and is_option_type(hint):
            found[name] = hint
    return found


def is_option_type(hint: Any) -> bool:
    """Return whether `checked` knows values of type `hint`. Local."""
    _, choices = _parts(hint)
    return all(_is_known(choice) for choice in choices) and set(choices) != {NoneType}


def _is_known(choice: Any) -> bool:
    if get_origin(choice) is tuple:
        return get_args(choice)[1:] == (...,) and get_args(choice)[0] in (int, float, str)
    if get_origin(choice) is Mapping:
        return get_args(choice)[0] is str and is_option_type(get_args(choice)[1])
    return (
        get_origin(choice) is Literal
        or choice in (int, float, bool, str, None, NoneType)
        or (isinstance(choice, type) and issubclass(choice, Options))
    )


def checked(value: Any, hint: Any, place: str, python: bool = False) -> Any:
    """Return `value` as a field of type `hint` holds it: plain Python, also where it came as a number of numpy. Local.

    `python`: the value comes from a program, whose lists may be tuples, and the message names it as Python does.
    Raises UsageError, which names `place` and what was expected, for a value of another type or outside its range.
    """
    path = _beside(hint, PathText)
    if path is not None and isinstance(value, str):
        return _path(value, path, place)
    limits, choices = _parts(hint)
    for choice in choices:
        fits, found = _as(value, choice, limits, python)
        if fits:
            return found
    raise UsageError(f"{place} = {show(value, python)}; expected {described(hint, python)}{_why(value, choices)}")


def _path(value: str, path: PathText, place: str) -> str:
    """Return a path, its ~ expanded."""
    if not value.strip() and not (path.empty and not value):
        raise UsageError(f'{place} = "{value}" names nothing; expected a path ("." is the current folder)')
    return expanded(value, place)


def _as(value: Any, choice: Any, limits: Range, python: bool) -> tuple[bool, Any]:
    """Return whether `value` is of type `choice`, and as what."""
    origin = get_origin(choice)
    if origin is Literal:
        found = next((one for one in get_args(choice) if isinstance(value, str) and value == one), None)
        return found is not None, found
    if choice in (int, float):
        return _as_number(value, choice, limits)
    if origin is tuple:
        if not isinstance(value, (list, tuple) if python else list):
            return False, None
        items = [_as(item, get_args(choice)[0], limits, python) for item in value]
        return all(fits for fits, _ in items), tuple(item for _, item in items)
    if origin is Mapping:
        of_limits, of = _parts(get_args(choice)[1])
        if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
            return False, None
        found = {key: [_as(item, one, of_limits, python) for one in of] for key, item in value.items()}
        fitting = {key: one for key, tried in found.items() for fits, one in tried if fits}
        return fitting.keys() == value.keys(), fitting
    if choice is bool and python and getattr(getattr(value, "dtype", None), "kind", "") == "b" and value.shape == ():
        return True, bool(value)  # numpy's
    if choice in (None, NoneType):
        return value is None, None
    if choice is str:
        return isinstance(value, str) and _is_text(value), str(value) if isinstance(value, str) else None
    return isinstance(value, choice), value


def _as_number(value: Any, kind: type, limits: Range) -> tuple[bool, Any]:
    """Return whether `value` is a number of type `kind` within `limits`, and that number; a whole number is a fraction
    too, a truth value is none."""
    if isinstance(value, bool) or not isinstance(value, Real):
        return False, None
    if kind is int:
        if limits.unbounded and value == math.inf:
            return True, math.inf
        if limits.unbounded and isinstance(value, float) and value.is_integer():
            value = int(value)  # who writes math.inf for one number writes 2.0 for another
        fits = isinstance(value, Integral) and limits.holds(int(value)) and -MOST_WHOLE <= int(value) < MOST_WHOLE
        return fits, int(value) if fits else None
    try:
        number = float(value) + 0.0  # no negative zero
        used = struct.unpack("<f", struct.pack("<f", number))[0]
    except OverflowError:  # beyond float64, or float32
        return False, None
    fits = math.isfinite(used) and limits.holds(number) and (limits.holds(used) or number == limits.low)
    return fits and (number == 0 or abs(used) >= LEAST_FRACTION), number


def _is_text(value: str) -> bool:
    """Return whether a string can be stored: bytes that were no UTF-8 are not."""
    return not any("\ud800" <= character <= "\udfff" for character in value)


def _why(value: Any, choices: Iterable[Any]) -> str:
    """Return what a number that looks right is refused for: its size in the precision in which it is used."""
    if isinstance(value, bool) or not isinstance(value, Real) or value != value:
        return ""
    if int in choices and isinstance(value, Integral):
        return " in 64 bits" if not -MOST_WHOLE <= int(value) < MOST_WHOLE else ""
    if float not in choices:
        return ""
    try:
        number = float(value)
        used = struct.unpack("<f", struct.pack("<f", number))[0]
    except OverflowError:
        return "; it is too large for float32, in which it is used"
    if math.isinf(used):
        return ""
    if number and abs(used) < LEAST_FRACTION:
        return f"; it is too small for float32, in which it is used, whose least number is {LEAST_FRACTION:.3g}"
    return f"; as float32, in which it is used, it is {used:g}" if used != number and used == int(used) else ""


def described(hint: Any, python: bool = False) -> str:
    """Return what a value of a field of type `hint` is, in words. Local."""
    limits, choices = _parts(hint)
    return " or ".join(_describe(choice, limits, python) for choice in choices)


def meaning_of(hint: Any) -> str:
    """Return the text that stands beside the type of a field, which says what it means; "" without any. Local."""
    return _beside(hint, str) or ""


def _beside(hint: Any, kind: type) -> Any:
    return next((extra for extra in getattr(hint, "__metadata__", ()) if isinstance(extra, kind)), None)


def _parts(hint: Any) -> tuple[Range, tuple[Any, ...]]:
    """Return the range that a field's type names, and the types that it may be."""
    limits = _beside(hint, Range) or Range()
    base = get_args(hint)[0] if get_origin(hint) is Annotated else hint
    if get_origin(base) not in (Union, UnionType):
        return limits, (base,)
    choices: list[Any] = []
    for choice in get_args(base):
        of_choice, inner = _parts(choice)
        limits = of_choice if limits == Range() else limits
        choices += inner
    return limits, tuple(choices)


def _describe(choice: Any, limits: Range, python: bool) -> str:
    """Return what a value of type `choice` is, in words."""
    within = f", {limits}" if str(limits) else ""
    origin = get_origin(choice)
    if origin is Literal:
        return " or ".join(f'"{name}"' for name in get_args(choice))
    if origin is Mapping:
        return f"a dict from names to {described(get_args(choice)[1], python)}"
    if origin is tuple:
        of, one = get_args(choice)[0], "a tuple or a list" if python else "a list"
        if of is str:
            return f'{one} of strings{"" if python else " in quotes"}, such as ["one", "two"]'
        return f"{one} of {'whole ' * (of is int)}numbers, each {limits or 'finite'}, such as [2, 1]"
    if choice in (int, float):
        return f"a {'whole ' * (choice is int)}number{within}"
    if isinstance(choice, type) and issubclass(choice, Options):
        return f"{choice.__name__}(...)"
    words = {bool: "True or False", str: "a string"} if python else {bool: "true or false", str: "a string in quotes"}
    return {**words, None: "None", NoneType: "None"}[choice]


def show(value: Any, python: bool = False) -> str:
    """Return `value` and its kind, as a program (`python`) or TOML names it, on one line of some length. Local."""
    kinds = {bool: "a truth value", int: "a whole number", float: "a fraction", str: "a string", list: "a list"}
    kinds |= {dict: "a dict" if python else "a table"}
    kind = kinds.get(type(value), type(value).__name__)
    if value is None:
        return "None"
    if isinstance(value, str):
        shown = f'"{value}"'
    elif isinstance(value, bool) and not python:
        shown = str(value).lower()
    else:
        try:
            shown = str(value)
        except (ValueError, RecursionError):  # more digits than Python writes, lists in lists without end
            shown = "..."
    return f"{printable(shown)} ({kind})"


def printable(text: str) -> str:
    """Return `text` on one line without control characters, cut where it is long. Local."""
    text = text if len(text) <= MOST_SHOWN else f"{text[:MOST_SHOWN]}..."
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def argument(hint: Any) -> Callable[[str], Any]:
    """Return the argparse type of an option that is a number of type `hint`. Local."""
    kind = next(choice for choice in _parts(hint)[1] if choice in (int, float))

    def convert(text: str) -> Any:
        try:
            fits, number = _as_number(kind(text), kind, _parts(hint)[0])
        except ValueError:
            fits, number = False, None
        if not fits:
            raise argparse.ArgumentTypeError(f"{printable(text)!r}: expected {described(hint)}")
        return number

    return convert
