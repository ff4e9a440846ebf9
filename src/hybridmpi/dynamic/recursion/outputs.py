"""What calls of a recursive function give to the outside."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hybridmpi.autograd import Tensor


class Pushed:
    """What calls have pushed: as attributes tensors [pushed, width] and data [pushed], by name, in the order of roots
    and, within one, of calls; `roots`, int64 [pushed] by name, which root each row belongs to; and `results`, what the
    roots return, with a row for each."""

    def __init__(
        self, tensors: Mapping[str, Tensor], data: Mapping[str, Any], roots: Mapping[str, Any], results: Any
    ) -> None:
        self.results, self.roots = results, dict(roots)
        self.__dict__.update(tensors)
        self.__dict__.update(data)

    def __getattr__(self, name: str) -> Any:
        known = ", ".join(sorted(set(vars(self)) - {"results", "roots"}))
        raise AttributeError(f"no call has pushed '{name}'; there is {known or 'nothing'}")
