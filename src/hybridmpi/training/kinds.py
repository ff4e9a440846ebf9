"""Kinds of jobs: for each `kind` of a job file's [model], the class that runs it.

To add one: a file with a subclass of `Run` whose `defaults` are the whole job with its own [model] and [data] (see
language.py), a line here, and an example in jobs/.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hybridmpi.training.run import Run

KINDS = {
    "lm": "hybridmpi.training.language:LanguageRun",
    "ctr": "hybridmpi.training.clicks:ClickRun",
    "nmt": "hybridmpi.training.translation:TranslationRun",
}


def run_of(kind: str) -> type[Run]:
    """Return the class that runs jobs of `kind`, which is one of KINDS. Local; loads its module."""
    module, name = KINDS[kind].split(":")
    return getattr(importlib.import_module(module), name)
