"""All keys of job files, read off the dataclasses: job files that show each with its meaning, as those in jobs/ do."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any, get_type_hints

from hybridmpi.field_types import described, meaning_of
from hybridmpi.optim import Optimizer
from hybridmpi.training.job import Job, default_job
from hybridmpi.training.kinds import task_of

WIDTH = 120
COLUMN = 25
"""Width of a job file, and the column at which its explanations begin."""

OPTIMIZER_KIND = '"sgd", "momentum", "adagrad" or "adam"'
MODES = 'exceptions by name: "output*" = "allreduce"'


@dataclass(frozen=True, slots=True)
class Key:
    """One key of a section: its default, what values it takes in words, and what it means."""

    name: str
    default: Any
    expected: str
    meaning: str


def keys_of(section: Any) -> Iterator[Key]:
    """Yield the keys of a section of a job, of which its values are the defaults. Local.

    section: any section but modes, which has no keys of its own; an optimiser is one, without its `kind`.
    """
    hints = get_type_hints(type(section), include_extras=True)
    for field in fields(section):
        hint = hints[field.name]
        yield Key(field.name, getattr(section, field.name), described(hint), meaning_of(hint))


def sections_of(job: Job) -> Iterator[tuple[str, list[Key]]]:
    """Yield (name, keys) of every section of `job`, in the order of job files. Local."""
    for field in fields(Job):
        section = getattr(job, field.name)
        keys = [] if field.name == "modes" else list(keys_of(section))
        if isinstance(section, Optimizer):
            keys.insert(0, Key("kind", section.name, OPTIMIZER_KIND, OPTIMIZER_KIND))
        yield field.name, keys


def job_file(kind: str, path: str) -> str:
    """Return a job file of `kind`, to be written to `path`: every key with its default and its meaning. Local."""
    task = task_of(kind)
    lines = textwrap.wrap(task.about, WIDTH - 2)
    lines += ["", *(f"  hybridmpi launch -n 3 -- train {path} {options}".rstrip() for options in task.tries), ""]
    lines += ["Every key may be left out; the values here are the defaults."]
    lines = [f"# {line}".rstrip() for line in lines]
    for name, keys in sections_of(default_job(kind)):
        lines += ["", *(_explained(f"[{name}]", MODES) if name == "modes" else [f"[{name}]"])]
        for key in keys:
            lines += _explained(f"{key.name} = {toml(key.default)}", key.meaning)
    return "\n".join(lines) + "\n"


def toml(value: Any) -> str:
    """Return `value` as TOML writes it: a string, a number, a truth value, or a tuple of such. Local."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return f"[{', '.join(map(toml, value))}]"
    return f'"{value}"' if isinstance(value, str) else repr(value).replace("e-0", "e-")


def _explained(text: str, meaning: str) -> list[str]:
    """Return the lines of `text` with its meaning as a comment beside it."""
    column = max(COLUMN, len(text) + 1)
    first, *more = textwrap.wrap(meaning, WIDTH - 2 - column)
    return [f"{text:<{column}}# {first}", *(f"{'':<{column}}# {line}" for line in more)]
