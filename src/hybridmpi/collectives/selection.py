"""Selection: which algorithm sums a buffer of which size, and why; kept from run to run.

A choice holds for sizes around a power of two. It comes from the cost formulas, checked by timing the best few at the
sizes that a job has, as far as the time for it goes. The file that keeps choices is named after everything that they
depend on, so that runs on the same hosts start at once, and sum in the same order.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from hashlib import blake2b
from pathlib import Path

from hybridmpi.folders import read_json, write_json

# The format of the file, and the algorithms it speaks of: another one makes older files unread.
VERSION = 2

# How many of the predicted best are timed, and how much slower than the best one may be predicted to be timed.
TIMED = 3
WORTH_TIMING = 3.0

# MPI's own algorithm is taken only if it is faster by more than this: it cannot go on beside backward, where at least
# half of any other sum hides; it counts nothing, spins while it waits, and promises nothing about bits.
MARGIN = 1.5
MPI = "mpi"


@dataclass(frozen=True)
class Choice:
    """The algorithm for buffers of about `nbytes`; seconds predicted and measured, by name."""

    nbytes: int
    algorithm: str
    predicted: dict[str, float] = field(default_factory=dict)
    measured: dict[str, float] = field(default_factory=dict)


def size_class(nbytes: int) -> int:
    """Return the power of two that stands for buffers of `nbytes`, the nearest by ratio. Local."""
    power = 1 << (max(1, nbytes).bit_length() - 1)
    return power * 2 if nbytes * nbytes >= 2 * power * power else power


def worth_timing(predicted: Mapping[str, float]) -> list[str]:
    """Return the algorithms to time: the best few as predicted, and MPI's own. Local."""
    own = sorted((name for name in predicted if name != MPI), key=predicted.__getitem__)
    best = [name for name in own[:TIMED] if predicted[name] <= WORTH_TIMING * predicted[own[0]]]
    return best + [MPI] * (MPI in predicted)


def decide(
    nbytes: int, predicted: Mapping[str, float], measured: Mapping[str, float], earlier: Sequence[Choice] = ()
) -> Choice:
    """Return the choice for a size. Local.

    Where something was measured, nothing else is chosen. Where there was no time for that, an algorithm counts as
    predicted, times what it was measured to be off by at the largest of the `earlier` sizes at which it was; one that
    never was, times the least that another one was off by: formulas that promise too much do so for all.
    """
    off = {name: choice.measured[name] / choice.predicted[name] for choice in earlier for name in choice.measured}
    usual = min((off[name] for name in off if name != MPI), default=1.0)
    seconds = measured or {name: predicted[name] * off.get(name, usual) for name in predicted}
    own = min((name for name in seconds if name != MPI), key=seconds.__getitem__)
    best = MPI if MPI in measured and seconds[MPI] * MARGIN < seconds[own] else own
    return Choice(nbytes, best, dict(predicted), dict(measured))


def cache_file(folder: Path, identity: object) -> Path:
    """Return the file in `folder` for choices that depend on the JSON-able `identity`. Local."""
    text = json.dumps([VERSION, identity], sort_keys=True)
    return folder / f"allreduce-{blake2b(text.encode(), digest_size=12).hexdigest()}.json"


def read(file: Path) -> dict[int, Choice]:
    """Return the choices kept in `file` by size; none where it is absent or damaged. Local."""
    try:
        choices = [Choice(**entry) for entry in read_json(file) or []]
        return {int(choice.nbytes): choice for choice in choices}
    except (ValueError, TypeError):
        return {}


def write(file: Path, choices: Mapping[int, Choice]) -> None:
    """Keep `choices` in `file`, if its folder can be written. Local."""
    write_json(file, [asdict(choices[size]) for size in sorted(choices)])


def choose(
    sizes: Sequence[int],
    predict: Callable[[int], dict[str, float]],
    time_it: Callable[[int, Sequence[str]], dict[str, float]],
    seconds_left: Callable[[], float],
    repeats: int,
) -> list[Choice]:
    """Return a choice for each of `sizes`, smallest first. Collective if the callables are.

    `predict(size)` and `time_it(size, names)`: seconds by name; `seconds_left()`: what may still be spent, the same on
    every rank. Those candidates are timed whose `repeats` calls are predicted to fit: MPI's own is left out first, then
    the worst of the others.
    """
    choices: list[Choice] = []
    for size in sorted(sizes):
        predicted = predict(size)
        names, left = worth_timing(predicted), seconds_left()
        while names and sum(predicted[name] for name in names) * repeats > left:
            names.pop()
        choices.append(decide(size, predicted, time_it(size, names) if names else {}, choices))
    return choices
