"""The task of a job: its data, its model, and what held-out data say of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from hybridmpi.nn import Module
from hybridmpi.world import World

if TYPE_CHECKING:
    from hybridmpi.training.job import Job

# What calls a function that reads data, given where from, and returns what it returns.
Reader = Callable[[str, Callable[[], Any]], Any]


@dataclass(frozen=True, slots=True)
class Evaluation:
    """What held-out data say of the model: `text` for the log, `values` for the metrics file."""

    text: str
    values: dict[str, Any]


def read_here(source: str, function: Callable[[], Any]) -> Any:
    """Return what `function` reads from `source`, in this process. Local."""
    return function()


class Task:
    """What a job trains, for a run and for a plan alike. A kind of job is a subclass, which fills in what is its own.

    about, tries: what its job files say of themselves: sentences, and what to add to the command that trains them.
    defaults: the whole job of that kind where its file says nothing. unit: what its examples are called. fixed: the
    keys of [data], or of another section as "section.key", that a resumed run must keep, since its data would be other
    ones. data, model: what `load` and `build` have returned. For plans the model has `flops` beside `rows_wanted`.
    """

    about: ClassVar[str]
    tries: ClassVar[tuple[str, ...]]
    defaults: ClassVar[Job]
    unit: ClassVar[str] = "examples"
    fixed: ClassVar[tuple[str, ...]] = ()

    def __init__(self, job: Job, read: Reader = read_here) -> None:
        """`read`: collective over the ranks of a run, of which one reads for all."""
        self.job = job
        self.data = read(job.data.source, self.load)
        self.model = self.build()

    def load(self) -> Any:
        """Read the data and return them; they say by `str` what they are. Local."""
        raise NotImplementedError

    def build(self) -> Module:
        """Return the model of the data. Local."""
        raise NotImplementedError

    def batches(self, first: int, rank: int, ranks: int) -> Iterator[Any]:
        """Yield the batches of one of so many ranks from step `first` (0: the first one) on; None in a step without
        any. Local."""
        raise NotImplementedError

    def evaluate(self, world: World) -> Evaluation | None:
        """Return what the held-out data say; None without any. Collective over compute; all ranks get the same.

        The model is in evaluation mode.
        """
        raise NotImplementedError

    def words(self) -> list[str] | None:
        """Return the words that the ids of a table stand for, to be kept in checkpoints; None without any. Local."""
        return None

    def words_begin(self) -> dict[str, int]:
        """Return which of `words` row 0 of a table stands for, by name, where tables share them out. Local."""
        return {}
