"""Whose a model's parameters are: of the Trainer that is at work on them, or left behind by one that is closed.

A Trainer draws initial values, and keeps the rows of tables at their owners until it is closed. So a second one for the
same parameters would begin anew, with nobody noticing; and what is put into a model later is trained by nobody.
"""

from __future__ import annotations

from hybridmpi.autograd import Parameter
from hybridmpi.errors import UsageError
from hybridmpi.nn import Embedding, Module


class Custody:
    """The parameters and tables of `model`, from the making of its Trainer to its end. Local.

    Raises UsageError for a model whose parameters another Trainer has, or has trained.
    """

    def __init__(self, model: Module) -> None:
        self._model, self._parts = model, _parts_of(model)
        for state, why in (
            ("open", "belong to another Trainer, which is at work on them: close that one first"),
            (
                "trained",
                "were trained by a Trainer that is closed, which took the rows of tables along; another one would draw "
                "all values anew. Save before closing, and load in the new Trainer; to begin anew make a new model, or "
                "call model.initialise(seed)",
            ),
        ):
            if names := [f"'{name}'" for name, part in self._parts.items() if part.custody == state]:
                more = f" and {len(names) - 3} more" if len(names) > 3 else ""
                raise UsageError(f"model {type(model).__name__}: {', '.join(names[:3])}{more} {why}")

    def take(self) -> None:
        """Take the parameters over."""
        for part in self._parts.values():
            part.custody = "open"

    def leave(self, trained: bool) -> None:
        """Give them back; `trained`: whether they are no longer as they were drawn."""
        for part in self._parts.values():
            part.custody = "trained" if trained else ""

    def require_unchanged(self) -> None:
        """Raise UsageError unless the model has the same parameters and tables as when its Trainer was made."""
        now = _parts_of(self._model)
        changed = [name for name in {**self._parts, **now} if self._parts.get(name) is not now.get(name)]
        if changed:
            name = changed[0]
            what = "is new" if name not in self._parts else "is gone" if name not in now else "is another one"
            raise UsageError(
                f"model {type(self._model).__name__}: '{name}' {what} since its Trainer was made, which knows nothing "
                "of that: make all parameters and tables before, and change values by Parameter.assign"
            )


def _parts_of(model: Module) -> dict[str, Parameter | Embedding]:
    return dict([*model.named_parameters(), *model.named_tables()])
