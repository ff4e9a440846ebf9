"""All random numbers of training, as a function of (seed, step, rank, purpose) and nothing else.

A generator is never carried from one step to the next: each use makes a new one whose key says what it is for. So a run
that resumes from a checkpoint needs no generator state, and what ranks must draw alike ("shared") they do draw alike,
whatever their number.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np

from hybridmpi.errors import UsageError
from hybridmpi.field_types import Natural, Seed, checks_arguments


@dataclass
class _Step:
    """Where training stands, and how often each purpose has drawn in this step."""

    seed: int
    step: int
    rank: int
    uses: dict[tuple[str, bool], int] = field(default_factory=dict)


_current: _Step | None = None


@checks_arguments
def begin_step(seed: Seed, step: Natural, rank: Natural) -> None:
    """Say which step's numbers `generator` gives from now on. Local; once a step, on every compute rank."""
    global _current
    _current = _Step(seed, step, rank)


def generator(purpose: str, shared: bool = False) -> np.random.Generator:
    """Return a fresh generator keyed by seed, step, rank, purpose and the number of this call within the step. Local.

    shared: leave the rank out, so that every rank that makes the same calls in this step draws the same numbers.
    Raises UsageError before the first begin_step.
    """
    if _current is None:
        raise UsageError(
            f"draws: random numbers for '{purpose}' outside a step: call draws.begin_step(seed, step, rank)"
        )
    use = _current.uses.get((purpose, shared), 0)
    _current.uses[purpose, shared] = use + 1
    who = 0 if shared else _current.rank + 1
    key = [_current.seed, _current.step, who, zlib.crc32(purpose.encode()), use]
    return np.random.Generator(np.random.Philox(np.random.SeedSequence(key)))


@contextmanager
def peek(steps: int = 0) -> Iterator[None]:
    """Let `generator` give, within, what it gives from the start of the step that comes so many after this one; this
    one then goes on as if nothing had been drawn. Local."""
    global _current
    here = _current
    if here is None:
        raise UsageError("draws: no step to look at from here: call draws.begin_step(seed, step, rank) first")
    begin_step(here.seed, here.step + steps, here.rank)
    try:
        yield
    finally:
        _current = here
