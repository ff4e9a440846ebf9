"""Optimisers by name, as job files and checkpoints record them."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, fields
from typing import Any

from hybridmpi.errors import UsageError
from hybridmpi.optim.rules import SGD, Adagrad, Adam, Momentum, Optimizer

OPTIMIZERS: dict[str, type[Optimizer]] = {rule.name: rule for rule in (SGD, Momentum, Adagrad, Adam)}


def by_name(name: str, **options: Any) -> Optimizer:
    """Return the optimiser `name` ("sgd", "momentum", "adagrad", "adam") with its settings. Local.

    Raises UsageError for an unknown name or option, naming the nearest known one, and for a setting that is missing
    or out of range.
    """
    rule = OPTIMIZERS.get(name) if isinstance(name, str) else None
    if rule is None:
        raise UsageError(f"unknown optimiser {name!r}{_nearest(name, OPTIMIZERS)}")
    known = {field.name: field for field in fields(rule)}
    for option in options:
        if option not in known:
            raise UsageError(f"optimiser {name}: unknown option {option!r}{_nearest(option, known)}")
    missing = [key for key, field in known.items() if field.default is MISSING and key not in options]
    if missing:
        raise UsageError(f"optimiser {name}: option {missing[0]!r} is missing and has no default; give it a value")
    return rule(**options)


def from_description(description: Mapping[str, Any]) -> Optimizer:
    """Return the optimiser that `Optimizer.describe` described. Local.

    Raises UsageError as `by_name` does, and for a description without a name.
    """
    if "name" not in description:
        raise UsageError(
            f"this optimiser description has no 'name': {dict(description)}; expected one of {', '.join(OPTIMIZERS)}"
        )
    return by_name(**description)


def _nearest(given: Any, known: Iterable[str]) -> str:
    """Return the end of an error message: the nearest known name, if one is near, and all of them."""
    known = list(known)
    near = difflib.get_close_matches(str(given).lower(), known, n=1)
    return f"{f'; did you mean {near[0]!r}?' if near else ';'} Known: {', '.join(known)}"
