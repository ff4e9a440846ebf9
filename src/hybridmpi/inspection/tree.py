"""Dotted names as a tree: lstm.weight_x and lstm.bias below lstm."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class Branch:
    """A line of the tree: its indented label, and the names at or below it."""

    label: str
    names: list[str]
    is_leaf: bool


def grown(names: Iterable[str]) -> Iterator[Branch]:
    """Yield the lines of the tree of `names`, from top to bottom. Local.

    What has but one thing below it makes no level of its own: encoder.cell.bias stays on one line if it is alone.
    """
    yield from _below({tuple(name.split(".")): name for name in sorted(names)}, 0, 0)


def _below(parts: dict[tuple[str, ...], str], depth: int, level: int) -> Iterator[Branch]:
    """Yield the lines for names that agree in their first `depth` parts, indented by `level`."""
    groups: dict[str | None, dict[tuple[str, ...], str]] = {}
    for path, name in parts.items():
        groups.setdefault(path[depth] if depth < len(path) else None, {})[path] = name
    indent = "  " * level
    for inside in groups.values():
        if len(inside) == 1:
            (path, name) = next(iter(inside.items()))
            yield Branch(indent + _join(path[depth:], level), [name], True)
            continue
        common = _agreeing(list(inside), depth)
        path = next(iter(inside))
        yield Branch(indent + _join(path[depth:common], level), list(inside.values()), False)
        yield from _below(inside, common, level + 1)


def _agreeing(paths: list[tuple[str, ...]], depth: int) -> int:
    """Return in how many parts, more than `depth`, all paths agree."""
    shortest = min(map(len, paths))
    common = depth + 1
    while common < shortest and len({path[common] for path in paths}) == 1:
        common += 1
    return common


def _join(parts: tuple[str, ...], level: int) -> str:
    text = ".".join(parts)
    return f".{text}" if level and parts else text or "(itself)"
