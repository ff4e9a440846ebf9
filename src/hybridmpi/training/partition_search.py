"""The search for the number of parts of each table, in the running job: rows move between steps, training goes on.

The rule is planning/search.py's. Tables are searched one after another, the largest first: each has a number of its
own. Every sample deals one table anew, lets some steps pass, and times some more.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hybridmpi.planning.search import WARM_UP_STEPS, PartitionSearch, typical
from hybridmpi.training.placement import at_owners
from hybridmpi.training.trainer import StepResult, Trainer

# Steps that are timed for a sample, after those that warm up; their median counts, on the slowest rank.
TIMED_STEPS = 10
# More parts than this for each owner balance nothing any better, and every one costs its place in each message's split.
MOST_PARTS_PER_OWNER = 64


class PartitionTuning:
    """Searches the number of parts of every table at owners, step by step. Collective over compute.

    Give `step` to Trainer.fit as `on_step`, or call it after every step on every rank. Losses are those of a run
    without a search. `state`: what `state()` returned in an earlier run, which goes on there: tables that were settled
    stay settled, and lie as the checkpoint found them.
    """

    def __init__(
        self,
        trainer: Trainer,
        state: Mapping[str, Any] | None = None,
        warm_up: int = WARM_UP_STEPS,
        timed: int = TIMED_STEPS,
    ) -> None:
        self.trainer, self.warm_up, self.timed = trainer, warm_up, timed
        owners = len(trainer.world.owners)
        specs = {name: trainer.exchange.specs[number] for name, number in at_owners(trainer).items()}
        names = sorted(specs, key=lambda name: (-specs[name].rows * specs[name].held_bytes, name))
        # One owner has all rows, however many parts they are in.
        self.waiting = [name for name in names if owners > 1 and specs[name].rows > 1]
        self.searches = {
            name: PartitionSearch(owners, most=max(1, min(specs[name].rows, owners * MOST_PARTS_PER_OWNER)))
            for name in self.waiting
        }
        self.found: dict[str, int] = {}
        if state is not None and state["owners"] == owners:
            self.found = {name: parts for name, parts in state["found"].items() if name in self.searches}
            self.waiting = [name for name in self.waiting if name not in self.found]
            for name, search in state["searches"].items():
                if name in self.searches:
                    self.searches[name] = PartitionSearch.restored(search)
        self._seconds: list[float] = []
        self._sampling: int | None = None

    @property
    def settled(self) -> bool:
        """Whether every table has its number of parts."""
        return not self.waiting

    def step(self, result: StepResult) -> str:
        """Take in a step; deal a table anew when a sample is complete. Return what was found, in words, when a table is
        settled, else nothing. Collective over compute."""
        if self.settled:
            return ""
        while self.waiting and self.waiting[0] not in at_owners(self.trainer):
            del self.waiting[0]  # it has become a replica meanwhile
            self._seconds, self._sampling = [], None
        if self.settled:
            return ""
        name = self.waiting[0]
        search = self.searches[name]
        if self._sampling is not None:
            self._seconds.append(result.total_seconds)
            if len(self._seconds) < self.warm_up + self.timed:
                return ""
            slowest = max(self.trainer.world.gather(typical(self._seconds, self.warm_up)))
            search.report(self._sampling, slowest)
            self._seconds, self._sampling = [], None
        self._sampling = search.next()
        if self._sampling is not None:
            self.trainer.repartition(name, self._sampling)
            return ""
        # By one rank: processors that differ may round differently.
        parts = self.trainer.world.from_root(search.result)
        self.trainer.repartition(name, parts)
        self.found[name] = parts
        del self.waiting[0]
        samples = ", ".join(f"{count}: {seconds * 1e3:.3g}" for count, seconds in sorted(search.samples.items()))
        return f"table '{name}': {parts} parts, of ms a step with parts {samples}"

    def state(self) -> dict[str, Any]:
        """Return all that a later run needs to go on, as JSON values for a checkpoint's meta. Local."""
        return {
            "owners": len(self.trainer.world.owners),
            "found": dict(self.found),
            "searches": {name: search.state() for name, search in self.searches.items()},
        }
