"""How calls are divided over vertices.

A call is one vertex if it only combines what it is given. If a callee uses what the call computes, and the call then
uses what the callee returns, it is two: *stage* 0 is what waits for no callee, stage 1 what waits for one that waits
for stage 0, and so on. A call that waits for values is divided there as well: what it does from one wait to the next
is a *stretch*.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from hybridmpi.dynamic.recursion.entries import CONSTANT, REFERENCE, ROW, Entry
from hybridmpi.dynamic.recursion.types import PieceType, PieceTypes, Sinks

_SOURCES = frozenset((REFERENCE, ROW, CONSTANT))


class Call(NamedTuple):
    """A call that was made: the values it was given, and the widths of what it returns."""

    given: tuple[Entry, ...]
    widths: tuple[int, ...]


class Stretch(NamedTuple):
    """What a call has done from one wait to the next: calls, and then what it waits for, or what it returns and pushes;
    labels: names of the data that it pushes."""

    calls: tuple[Call, ...]
    awaited: Entry | None = None
    returned: tuple[Entry, ...] = ()
    pushed: tuple[tuple[str, Entry], ...] = ()
    labels: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Piece:
    """A vertex of a call. sources: for each slot the number of a reference of the call, or (piece of the call, number
    of the output among those of its width). rows: numbers of the call's rows of tables."""

    type: PieceType
    sources: tuple[int | tuple[int, int], ...]
    rows: tuple[int, ...]


@dataclass(eq=False)
class Recipe:
    """How a call becomes vertices, up to the end of a stretch.

    pieces: of this stretch; `first`: the number of the first among those of the call. outputs: where values are that
    pieces of the call put out: (piece, number among those of its width). results: likewise, what is returned. awaited:
    likewise, or the number of a reference. pushing: the piece that pushes. stages: of the call's references.
    """

    first: int = 0
    pieces: list[Piece] = field(default_factory=list)
    outputs: dict[Entry, tuple[int, int]] = field(default_factory=dict)
    results: list[tuple[int, int]] = field(default_factory=list)
    awaited: tuple[int, int] | int | None = None
    pushing: int | None = None
    stages: list[int] = field(default_factory=list)
    _computed: dict[Entry, tuple[_Kept, int]] = field(default_factory=dict)
    _after: dict[Stretch, Recipe] = field(default_factory=dict)
    _kept: dict[Stretch, _Kept] = field(default_factory=dict)

    def next(self, stretch: Stretch, function: Any, types: PieceTypes) -> Recipe:
        """Return the recipe for the stretch that follows, of calls of a function. Local."""
        recipe = self._after.get(stretch)
        if recipe is None:
            kept = self._kept.setdefault(stretch, _Kept(self, stretch))
            recipe = self._after[stretch] = _divide(self, stretch, kept, function.name, types)
        return recipe


class _Kept:
    """What the pieces of a stretch put out, by stage, because a later one was found to use it. What those do is only
    known when it happens: the first calls compute it twice."""

    def __init__(self, before: Recipe, stretch: Stretch) -> None:
        self._before, self._stretch = before, stretch
        self.entries: dict[int, dict[Entry, None]] = {}

    def keep(self, stage: int, entry: Entry) -> None:
        """Let the calls to come put out an entry."""
        self.entries.setdefault(stage, {})[entry] = None
        self._before._after.pop(self._stretch, None)


def _divide(before: Recipe, stretch: Stretch, kept: _Kept, name: str, types: PieceTypes) -> Recipe:
    stages = list(before.stages)
    sinks: dict[int, dict[Entry, None]] = {}

    def stage_of(entry: Entry) -> int:
        return max((stages[number] for number in entry.references), default=0)

    def want(entry: Entry) -> None:
        if entry.operation != REFERENCE:
            sinks.setdefault(stage_of(entry), {})[entry] = None

    for call in stretch.calls:
        for entry in call.given:
            want(entry)
        stage = 1 + max((stage_of(entry) for entry in call.given), default=0)
        stages += [stage] * len(call.widths)
    if stretch.awaited is not None:
        want(stretch.awaited)
    ends = (*stretch.returned, *(entry for _, entry in stretch.pushed))
    last = max((stage_of(entry) for entry in ends), default=-1)
    if ends:
        sinks.setdefault(last, {}).update(dict.fromkeys(stretch.returned))

    for stage, entries in kept.entries.items():
        sinks.setdefault(stage, {}).update(entries)

    # What each stage computes, and what of it later stages use.
    recipe = Recipe(before.first + len(before.pieces), outputs=dict(before.outputs), stages=stages)
    recipe._computed = dict(before._computed)
    orders: dict[int, list[Entry]] = {}
    here: dict[Entry, int] = {}
    for stage in sorted(sinks):
        roots = [*sinks[stage], *(entry for _, entry in stretch.pushed if stage == last)]
        order = orders[stage] = _order(roots, here, recipe)
        for entry in order:
            if entry in here:
                sinks[here[entry]][entry] = None
        for entry in order:
            if entry.operation not in _SOURCES and entry not in recipe.outputs:
                here.setdefault(entry, stage)
    for entry, stage in here.items():
        recipe._computed.setdefault(entry, (kept, stage))

    numbers: dict[int, int] = {}
    for stage, order in orders.items():
        number = numbers[stage] = recipe.first + len(recipe.pieces)
        cut = frozenset(entry for entry in order if entry in recipe.outputs and entry.operation not in _SOURCES)
        pushes, labels = (stretch.pushed, stretch.labels) if stage == last else ((), ())
        kind = types.find(name, Sinks(tuple(sinks[stage]), pushes, labels), order, cut)
        sources = tuple(
            entry.arguments[0] if entry.operation == REFERENCE else recipe.outputs[entry] for entry in kind.references
        )
        recipe.pieces.append(Piece(kind, sources, tuple(entry.arguments[0] for _, _, entry in kind.rows)))
        places = {entry: (number, place[1]) for entry, place in zip(kind.outputs, kind.places, strict=True)}
        if stage == last:
            recipe.results = [places[entry] for entry in stretch.returned]
            recipe.pushing = number
        for entry, place in places.items():
            recipe.outputs.setdefault(entry, place)
    if stretch.awaited is not None:
        entry = stretch.awaited
        recipe.awaited = entry.arguments[0] if entry.operation == REFERENCE else recipe.outputs[entry]
    return recipe


def _order(roots: list[Entry], here: dict[Entry, int], recipe: Recipe) -> list[Entry]:
    """Return what a piece computes or gathers, in order; and let what earlier stretches compute again be kept."""
    found, stack = set(roots), list(roots)
    for entry in roots:
        _keep(entry, recipe)
    while stack:
        entry = stack.pop()
        if entry in recipe.outputs or entry in here:
            continue
        for operand in entry.operands():
            if operand not in found:
                found.add(operand)
                stack.append(operand)
                if entry not in recipe._computed:
                    _keep(operand, recipe)
    return sorted(found, key=lambda entry: entry.number)


def _keep(entry: Entry, recipe: Recipe) -> None:
    if entry not in recipe.outputs and entry in recipe._computed:
        kept, stage = recipe._computed[entry]
        kept.keep(stage, entry)
