"""Kinds of jobs: for each `kind` of a job file's [model], the class of its task.

To add one: a file with a subclass of `Task` whose `defaults` are the whole job with its own [model] and [data] (see
language.py), a line here, and the job file that `make jobs` makes of it.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hybridmpi.training.task import Task

KINDS = {
    "lm": "hybridmpi.training.language:LanguageTask",
    "ctr": "hybridmpi.training.clicks:ClickTask",
    "nmt": "hybridmpi.training.translation:TranslationTask",
    "trees": "hybridmpi.training.trees:TreeTask",
    "graphs": "hybridmpi.training.variables:VariableTask",
    "top-down": "hybridmpi.training.growing:GrowingTask",
}


def task_of(kind: str) -> type[Task]:
    """Return the class of the task of jobs of `kind`, which is one of KINDS. Local; loads its module."""
    module, name = KINDS[kind].split(":")
    return getattr(importlib.import_module(module), name)
