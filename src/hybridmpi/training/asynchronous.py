"""Asynchronous training: each rank pulls, computes and pushes in its own time; owners apply every push as it comes.

There is no collective in a step. A rank is held back only where it would be more than `staleness` steps ahead of the
slowest one (sparse/asynchronous.py). At a *boundary*, which all ranks reach together, everything is applied everywhere.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np

from hybridmpi import kernels
from hybridmpi.autograd import draws
from hybridmpi.errors import NonFiniteError, UsageError
from hybridmpi.field_types import Range
from hybridmpi.planning.modes import Way
from hybridmpi.sparse.asynchronous import AsyncClient
from hybridmpi.sparse.norms import norm_of
from hybridmpi.sparse.rows import SparseRows
from hybridmpi.training.agreement import Report, agree
from hybridmpi.training.batches import examples, iterator_of
from hybridmpi.training.endings import raise_alone
from hybridmpi.training.phases import Phases
from hybridmpi.training.results import StepResult, loss_of

if TYPE_CHECKING:
    from hybridmpi.training.trainer import Trainer

# A rank that holds rows keeps others waiting while it computes: between operations of backward, which may be short, it
# looks so often whether there is anything to do for them.
SERVE_SECONDS = 1e-3

Staleness = Annotated[int, Range(0, unbounded=True)]
"""Steps that a rank may be ahead of the slowest one: 0 is synchronous, math.inf asynchronous without a bound."""


def check_staleness(staleness: Staleness, ways: Mapping[str, Way]) -> None:
    """Raise UsageError unless `staleness` is 0, or every parameter's way is "ps". Local."""
    elsewhere = [f"'{name}' ({way})" for name, way in ways.items() if way != "ps"]
    if staleness and elsewhere:
        raise UsageError(
            f"staleness = {staleness}: {', '.join(elsewhere)}: these parameters need every rank in every step. Only "
            "what lies at owners can be trained without waiting for others: use mode = 'ps', without exceptions"
        )


class Asynchronous:
    """The steps and boundaries of a Trainer whose ranks do not wait for each other. `settle` and `fit` are Collective
    over compute; a step is Local, but waits for owners."""

    def __init__(self, trainer: Trainer) -> None:
        self.trainer, self.world = trainer, trainer.world
        self.stopped = False
        self._client: AsyncClient = trainer.service.client
        self._asked_to_stop = False
        self._served = 0.0  # when, by this rank, in the middle of a computation
        self._skipped = 0  # by this rank, since the last boundary
        self.world.add_progress(self._pass_on_stop)

    # -- the loop --------------------------------------------------------------------------------------------------

    def fit(self, batches: Iterable[Any], steps: int, on_step: Callable[[StepResult], Any] | None) -> StepResult | None:
        """Train until this rank has done `steps` steps, has no batch left, or a stop is requested on any rank; then
        meet the others at a boundary. See Trainer.fit."""
        iterator, result = iterator_of(batches), None
        while self.trainer.step < steps:
            try:
                batch = next(iterator, None)
            except (Exception, SystemExit) as error:
                raise_alone(self.world, self.trainer.step + 1, error)
            outcome = self.step(batch)
            if outcome is None:
                break
            result = outcome
            if on_step is not None:
                on_step(result)
            if self.stopped:
                break
        self.settle()
        return result

    def step(self, batch: Any) -> StepResult | None:
        """Do one step of this rank's own; without a batch, let no other rank wait for this one. See
        Trainer.train_step."""
        if batch is None:
            self._client.leave()
            return None
        trainer, exchange, client = self.trainer, self.trainer.exchange, self._client
        started, before = time.perf_counter(), trainer.traffic()
        phases = Phases(self.world.recording, trainer.step + 1, trainer.traffic)
        self._pass_on_stop()
        client.wait_for_turn()
        phases.lap("wait")
        exchange.refresh()
        phases.lap("pull")
        try:
            weight, loss = self._compute(batch, phases)
        except (Exception, SystemExit) as error:
            raise_alone(self.world, trainer.step + 1, error)
        found = [] if np.isfinite(loss) or not weight else [f"the loss is {loss}"]
        found += exchange.found if weight else []
        if trainer.clip and weight and not found:
            found = self._clip(trainer.clip)
        if found and trainer.nonfinite == "stop":
            raise NonFiniteError(
                f"step {trainer.step + 1}: rank {self.world.rank}: {', '.join(found)}. This step of this rank has not "
                "been applied. Lower the learning rate, set clip, or let such steps be skipped (nonfinite = 'skip')"
            )
        if found or not weight:
            # Others may be waiting for this rank's clock, so an owner hears of a step that changes nothing too.
            trainer.skipped += bool(found)
            self._skipped += bool(found)
            client.push([], 0.0)
        else:
            exchange.push(weight)
        phases.lap("push")
        # What comes next, reading a batch, may take long, and an owner on another node would wait with its answer to
        # this push until this rank calls MPI again.
        client.wait_for_version()
        phases.lap("wait")
        trainer.step += 1
        self.stopped = self._asked_to_stop or client.stop_seen
        phases.end()
        seconds, after = time.perf_counter() - started, trainer.traffic()
        sent = {category: after[category] - before[category] for category in after}
        return StepResult(trainer.step, loss, int(weight), bool(found), seconds, 0.0, phases.seconds, sent)

    def _compute(self, batch: Any, phases: Phases) -> tuple[float, float]:
        """Forward and backward; return how many examples there are, and their mean loss."""
        trainer, exchange = self.trainer, self.trainer.exchange
        draws.begin_step(trainer.seed, trainer.step, self.world.compute.Get_rank())
        pulled = exchange.pull_seconds()
        exchange.begin_step()
        try:
            weight = examples(batch)
            if not weight:
                return 0.0, math.nan
            loss, value = loss_of(trainer.model, batch)
            in_pull = exchange.pull_seconds() - pulled
            phases.add("pull", in_pull)
            phases.lap("forward", elsewhere=in_pull)
            loss.backward(between=self._serve if self.world.embedded else None)
            return weight, value
        finally:
            exchange.end_backward()  # also after a failure: nothing of this step may reach the next one
            phases.lap("backward")

    def _serve(self) -> None:
        """Do for others what a rank that holds rows owes them, in the middle of its own computation."""
        now = time.perf_counter()
        if now - self._served > SERVE_SECONDS:
            self.world.progress()
            self._served = now

    def _clip(self, limit: float) -> list[str]:
        """Limit the norm of this rank's own gradient, dense and sparse; say if it is not finite."""
        exchange = self.trainer.exchange
        dense = [parameter.grad for parameter in exchange.served.parameters]
        arrays = [*dense, *(rows.values for rows in exchange.gradients)]
        norm = norm_of([kernels.square_sum(array) for array in arrays], limit)
        if np.isnan(norm.scale):
            return [f"the norm of the gradient is {norm.value}"]
        if norm.scale == 1.0:
            return []
        for gradient in dense:
            gradient *= gradient.dtype.type(norm.scale)
        # Values of rows may be memory that a tensor shares.
        exchange.gradients = [
            SparseRows(rows.indices, rows.values * rows.values.dtype.type(norm.scale), rows.num_rows)
            for rows in exchange.gradients
        ]
        return []

    def _pass_on_stop(self) -> None:
        """Tell the others of a request to stop that has come to this rank, in a step or in any wait."""
        if not self._asked_to_stop and self.trainer.stop_requested():
            self._asked_to_stop = True
            self._client.ask_to_stop()

    # -- boundaries ------------------------------------------------------------------------------------------------

    def leave(self) -> None:
        """Let no rank wait for this one any more, and wait until its pushes are applied. Local."""
        self._client.leave()
        self._client.wait_for_version()

    def settle(self) -> None:
        """Wait for all ranks, until all pushes of all are applied everywhere; then all train on side by side.
        Collective over compute.

        The step is then the largest of the ranks' own, the skipped steps are those of all together, and dense
        parameters are what their owners hold.
        """
        trainer, world = self.trainer, self.world
        self.leave()
        stop = self._asked_to_stop or self._client.stop_seen
        verdict = agree(world, Report(stop=stop, signal=stop and world.stop_requested()), what="Trainer.settle")
        self.stopped = verdict.stop > 0
        world.stopped |= verdict.signal > 0
        (updates, *_) = trainer.service.call("settle")
        self._client.begin_anew()
        # A request that has come since then is told anew.
        self._asked_to_stop = False
        trainer.exchange.continue_from(updates)
        everybody = world.gather((trainer.step, self._skipped))
        trainer.step = max(step for step, _ in everybody)
        trainer.skipped += sum(skipped for _, skipped in everybody) - self._skipped
        self._skipped = 0

    def staleness(self) -> dict[int, int]:
        """Return how many pushes were applied at each staleness; see Trainer.staleness. Collective over compute."""
        self.settle()
        total: Counter[int] = Counter()
        for found in self.trainer.service.call("staleness"):
            total.update(found)
        return dict(sorted(total.items()))

    def close(self) -> None:
        """Let the others train on. Local; waits until this rank's pushes are applied."""
        self.leave()
        self.world.remove_progress(self._pass_on_stop)


def describe_staleness(counts: Mapping[int, int]) -> str:
    """Return in words how stale gradients were: {updates of others in between: pushes}, at least one push. Local."""
    pushes = sum(counts.values())
    mean = sum(staleness * count for staleness, count in counts.items()) / pushes
    fresh = counts.get(0, 0) / pushes
    return f"staleness of {pushes:,} pushes: mean {mean:.2f}, none for {fresh:.0%}, at most {max(counts)} updates"
