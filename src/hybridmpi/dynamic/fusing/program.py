"""What a kernel computes: values in order, and where they are stored."""

from __future__ import annotations

from dataclasses import dataclass

from hybridmpi.dynamic.fusing.functions import FUNCTIONS


@dataclass(frozen=True)
class Operand:
    """Where a row of an operand lies, in elements of the kernel's dtype.

    buffer: number of its base address in the table of addresses.
    stride: elements from one row to the next; 0: one row for all, as of a bias.
    column: its first element within the row.
    index: None: row r lies at r; else the number, in the table, of an int64 array: row r lies at index[r].
    """

    buffer: int
    stride: int
    column: int
    index: int | None = None


@dataclass(frozen=True)
class Load:
    """A value that is read."""

    operand: Operand


@dataclass(frozen=True)
class Number:
    """A constant, rounded to the kernel's dtype."""

    value: float


@dataclass(frozen=True)
class Apply:
    """A function of FUNCTIONS of earlier values, given by their numbers; of "power" the second is a Number."""

    name: str
    arguments: tuple[int, ...]


@dataclass(frozen=True)
class Store:
    """Write a value, given by its number; add: add it to what is there."""

    value: int
    operand: Operand
    add: bool = False


Value = Load | Number | Apply


def check(width: int, values: tuple[Value, ...], stores: tuple[Store, ...]) -> None:
    """Raise ValueError for a program that cannot be compiled. Local."""
    if width < 1:
        raise ValueError(f"a kernel of width {width}: at least 1 column is needed")
    for number, value in enumerate(values):
        if isinstance(value, Apply):
            _check_apply(number, value, values)
        operand = value.operand if isinstance(value, Load) else None
        _check_operand(f"value {number}", operand)
    for number, store in enumerate(stores):
        if not 0 <= store.value < len(values):
            raise ValueError(f"store {number} writes value {store.value}: there are {len(values)} values")
        _check_operand(f"store {number}", store.operand)


def _check_apply(number: int, value: Apply, values: tuple[Value, ...]) -> None:
    if value.name not in FUNCTIONS:
        raise ValueError(f"value {number}: unknown function {value.name!r}, known are {', '.join(sorted(FUNCTIONS))}")
    wanted = FUNCTIONS[value.name].arguments
    if len(value.arguments) != wanted:
        raise ValueError(f"value {number}: {value.name} takes {wanted} arguments, not {len(value.arguments)}")
    for argument in value.arguments:
        if not 0 <= argument < number:
            raise ValueError(f"value {number} takes value {argument}: only earlier ones can be taken")
    if value.name == "power" and not isinstance(values[value.arguments[1]], Number):
        raise ValueError(f"value {number}: the exponent of power has to be a Number")


def _check_operand(what: str, operand: Operand | None) -> None:
    if operand is not None and (operand.buffer < 0 or operand.column < 0 or (operand.index or 0) < 0):
        raise ValueError(f"{what}: {operand} has a negative place")
