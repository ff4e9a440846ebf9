"""Trainer: one synchronous step after another, each parameter's gradient on its own way."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from hybridmpi.autograd import draws
from hybridmpi.collectives import Bucket
from hybridmpi.errors import UsageError
from hybridmpi.nn import Module, clip_global_norm
from hybridmpi.optim import Optimizer
from hybridmpi.planning.modes import Mode, ways_of
from hybridmpi.planning.plan import Plan, make_plan
from hybridmpi.sparse.service import Service
from hybridmpi.training.agreement import Report, Verdict, agree
from hybridmpi.training.ahead import Batches, Failure, RowsAhead
from hybridmpi.training.dense import DenseExchange, DenseOptions
from hybridmpi.training.endings import raise_nonfinite, raise_together, refuse_to_part
from hybridmpi.training.guards import require_same_values
from hybridmpi.training.phases import Phases
from hybridmpi.training.tables import SparseOptions, Stores, TableExchange
from hybridmpi.world import World


@dataclass(frozen=True)
class StepResult:
    """What a step did, the same on every compute rank, but for the times and bytes, which are this rank's.

    `loss`: mean over all examples of all ranks; `examples`: how many; `skipped`: nothing was updated since something
    was not finite. `seconds` by phase and `bytes` by category are of this step; `hidden_seconds`: how long sums of
    dense gradients were under way while backward went on. `rows`: with prefetch or a cache, what became of the rows
    that the step wanted from other nodes (see sparse/reader.py).
    """

    step: int
    loss: float
    examples: int
    skipped: bool
    total_seconds: float
    hidden_seconds: float
    seconds: dict[str, float] = field(repr=False)
    bytes: dict[str, int] = field(repr=False)
    rows: dict[str, int] = field(repr=False, default_factory=dict)


class Trainer:
    """Trains a model on all compute ranks. Collective over compute; the servers come along.

    `model` is an nn.Module with a method `loss(batch)` that returns the mean loss over the batch's examples. In mode
    "hybrid" its dense parameters become views of flat buckets, summed over the ranks by all-reduce as `dense` says,
    while backward is still at work; every Embedding becomes a table on the owners of rows, as `sparse` says. The other
    modes send everything to owners ("ps"), sum everything whole ("allreduce"), or gather row gradients on every rank
    ("allgather"); `modes` makes exceptions by name pattern, {"embedding*": "allreduce"}. `seed` decides initial values
    and all random draws. `clip` > 0 limits the global norm of the dense gradient. `nonfinite`: "stop" raises
    NonFiniteError on all ranks when a loss or gradient is NaN or infinite, "skip" leaves that step out on all ranks.
    """

    def __init__(
        self,
        world: World,
        model: Module,
        optimizer: Optimizer,
        seed: int = 1,
        mode: Mode = "hybrid",
        modes: Mapping[str, Mode] | None = None,
        clip: float = 0.0,
        nonfinite: str = "stop",
        dense: DenseOptions = DenseOptions(),  # noqa: B008 - frozen
        sparse: SparseOptions = SparseOptions(),  # noqa: B008 - frozen
    ) -> None:
        if world.compute is None:
            raise UsageError(f"rank {world.rank} is {world.role}: a Trainer belongs on the compute ranks (see hm.run)")
        if nonfinite not in ("stop", "skip"):
            raise UsageError(f"nonfinite = {nonfinite!r}: expected 'stop' or 'skip'")
        if clip < 0:
            raise UsageError(f"clip = {clip}: expected 0 (off) or the largest norm of the dense gradient")
        self.world, self.model, self.optimizer = world, model, optimizer
        self.seed, self.clip, self.nonfinite = seed, clip, nonfinite
        self.step = 0
        self.skipped = 0
        self._stopped = False
        self.stop_requested: Callable[[], bool] = lambda: False

        model.initialise(seed)
        parameters, embeddings = model.parameters_in_order(), model.named_tables()
        ways, _ = ways_of(mode, modes or {}, [n for n, _ in parameters], [n for n, _ in embeddings])
        self._dense = DenseExchange(world, [(n, p) for n, p in parameters if ways[n] == "allreduce"], dense)
        self._state = [optimizer.new_state(bucket.values) for bucket in self.buckets]
        served = [p for n, p in model.named_parameters() if ways[n] == "ps"]
        self.exchange = TableExchange(
            world, embeddings, served, ways, optimizer, seed, sparse, lambda nbytes: dense.open(world, nbytes)
        )
        self.plan: Plan = make_plan(world, model.named_parameters(), self.exchange, self.buckets, self._dense.allreduce)
        self._rows = RowsAhead(model, self.exchange, sparse.prefetch)
        self._batches: Batches | None = None
        self._closed = False
        world.on_close(self.close)

    @property
    def buckets(self) -> list[Bucket]:
        """The buckets of dense parameters, in the order in which backward fills them."""
        return self._dense.buckets

    @property
    def tables(self) -> Stores:
        """The tables, in the order of their names: what holds their rows, or a whole replica."""
        return self.exchange.tables

    @property
    def service(self) -> Service:
        """What holds the rows of tables at owners."""
        return self.exchange.service

    # -- the loop --------------------------------------------------------------------------------------------------

    def fit(
        self, batches: Iterable[Any], steps: int, on_step: Callable[[StepResult], Any] | None = None
    ) -> StepResult | None:
        """Train until `steps` steps are done in all, every rank has run out of batches, or a stop is requested on any
        rank; return the last step's result. Collective over compute.

        A rank whose batches end before the others' takes part with weight 0. `on_step` is called after every step, on
        every rank; what it does collectively, all ranks do.

        With prefetch a batch is read before the step ahead of it. Where training ends between the two, by a failure or
        a request to stop, the next call with the same iterator begins with the batch that was read.
        """
        self._batches = source = Batches.of(batches, self._batches)
        result = None
        while self.step < steps:
            batch = source.take()
            outcome = self.train_step(batch, source.peek() if self._rows.at_work and self.step + 1 < steps else None)
            if outcome is None:
                break
            result = outcome
            if on_step is not None:
                on_step(result)
            if self.stopped:
                break
        return result

    @property
    def stopped(self) -> bool:
        """Whether the last step saw a request to stop on any rank; the same on all ranks."""
        return self._stopped

    def train_step(self, batch: Any, following: Any = None) -> StepResult | None:
        """Do one step with this rank's batch (None: it has none left); return its result, or None, with nothing done,
        when no rank has a batch. Collective over compute.

        `following`: the batch of the next step, where it is known: with prefetch its rows are asked for meanwhile.
        Nothing is changed anywhere until all ranks know that all are well: an exception on one rank is raised on all.
        """
        started = time.perf_counter()
        phases = Phases()
        before, rows = self.traffic(), self._rows.counts()
        waited = self.service.client.wait_seconds
        report, failure = self._compute(batch, following, phases)
        verdict = agree(self.world, report, len(self.tables))
        phases.lap("wait", elsewhere=self._dense.after)
        phases.add("allreduce", self._dense.after)
        self._stopped = verdict.stop > 0
        if verdict.leaving:
            refuse_to_part(self.world, self.step + 1, leaving=False)
        if verdict.failed:
            self._dense.finish()  # all ranks take part: nothing of this step may reach the next one
            raise_together(self.world, self.step + 1, failure)
        skip = verdict.nonfinite > 0
        if verdict.weight == 0 or skip or self._dense.may_overflow:
            self._dense.finish()
            phases.lap("allreduce")
        if verdict.weight == 0:
            return None
        if not skip and self._dense.may_overflow:
            self.exchange.start(report.weight, report.weight / verdict.weight)
            self.exchange.finish()
            phases.lap("tables")
            if self._dense.overflowed() or self.exchange.overflowed():
                skip = True
                if self.world.on_root():  # all see it alike
                    self._found.append("the sum of gradients exceeds float16's 65504 on the wire")
        if skip:
            self.skipped += 1
            if self.nonfinite == "stop":
                raise_nonfinite(self.world, self.step + 1, self._found)
        else:
            self._exchange_and_update(report, verdict, phases)
        phases.add("wait", waited_in_pull := self.service.client.wait_seconds - waited)
        phases.add("pull", -waited_in_pull)
        after = self.traffic()
        self.step += 1
        return StepResult(
            self.step,
            verdict.loss,
            int(verdict.weight),
            skip,
            time.perf_counter() - started,
            self._dense.hidden,
            phases.seconds,
            {category: after[category] - before[category] for category in after},
            {what: count - rows[what] for what, count in self._rows.counts().items()},
        )

    def _compute(self, batch: Any, following: Any, phases: Phases) -> tuple[Report, BaseException | None]:
        """Forward and backward on this rank; never raises, so that every rank reaches the agreement."""
        draws.begin_step(self.seed, self.step, self.world.compute.Get_rank())
        report, failure = Report(stop=bool(self.stop_requested())), None
        pulled = self.exchange.pull_seconds()
        try:
            if isinstance(batch, Failure):
                raise batch.error
            report.weight = 0.0 if batch is None else examples(batch)
        except (Exception, SystemExit) as error:
            failure, report.failed = error, True
        self._dense.begin_step(report.weight)
        self.exchange.begin_step()
        try:
            if report.weight and not report.failed:
                self._rows.begin(batch, following)
                loss = self.model.loss(batch)
                report.loss = float(loss.data)
                in_pull = self.exchange.pull_seconds() - pulled
                phases.add("pull", in_pull)
                phases.lap("forward", elsewhere=in_pull)
                loss.backward(between=self._dense.progress)
        except (Exception, SystemExit) as error:
            failure, report.failed = error, True
        self._rows.end()
        self._dense.end_backward()
        self.exchange.end_backward()
        self._found = []
        if report.weight and not report.failed:
            self._found = [*self._dense.found, *self.exchange.found]
            if not np.isfinite(report.loss):
                self._found.insert(0, f"the loss is {report.loss}")
            report.nonfinite = bool(self._found)
            report.rows = self.exchange.row_counts()
        phases.lap("backward", elsewhere=self._dense.during)
        phases.add("overlap", self._dense.during)
        return report, failure

    def _exchange_and_update(self, report: Report, verdict: Verdict, phases: Phases) -> None:
        """Send what the ranks agreed on: rows to their owners first, who work while the dense part is summed."""
        self.exchange.push(report.weight)
        phases.lap("push")
        if not self._dense.may_overflow:
            self.exchange.start(report.weight, report.weight / verdict.weight)
            phases.lap("tables")
        self._dense.finish()
        phases.lap("allreduce")
        if not self._dense.may_overflow:
            self.exchange.finish()
            phases.lap("tables")
        if self.clip:
            clip_global_norm([bucket.gradients for bucket in self.buckets], self.clip)
        self.exchange.update()
        for bucket, state in zip(self.buckets, self._state, strict=True):
            self.optimizer.update_dense(bucket.values, bucket.gradients, state, self.exchange.updates)
        phases.lap("update")
        before = self.exchange.pull_seconds()
        self.exchange.refresh()
        phases.add("pull", self.exchange.pull_seconds() - before)
        if self._dense.options.check:
            require_same_values(self.world, self.buckets, self.step + 1)

    def traffic(self) -> dict[str, int]:
        """Return the bytes this rank has moved so far, by category. Local."""
        counted = self.service.client.traffic.snapshot()
        counted["allreduce"] += sum(self._dense.allreduce.sent().values()) + self.exchange.sent()
        return counted

    # -- checkpoints -----------------------------------------------------------------------------------------------

    def save(self, root: str | Path, keep: int = 2, meta: dict[str, Any] | None = None, words: Any = None) -> Path:
        """Write a checkpoint below `root` and return its directory; keep the newest `keep`. Collective over compute.

        `meta`: JSON values of the caller's, such as the data position; `words`: the vocabulary. It is whole or absent.
        """
        from hybridmpi.training.saving import save

        return save(self, Path(root), keep, meta or {}, words)

    def load(self, path: str | Path) -> dict[str, Any]:
        """Continue from a checkpoint, or the newest below `path`, written by any number of ranks; return its meta.
        Collective over compute."""
        from hybridmpi.training.saving import load

        return load(self, Path(path))

    def dense_arrays(self) -> tuple[dict[str, np.ndarray], dict[str, dict[str, np.ndarray]]]:
        """Return (dense parameters by name, optimiser state by slot and name) as live views; of parameters that lie at
        owners the state is there, and what is here is a copy. Local."""
        parameters, state = {}, {slot: {} for slot in self.optimizer.slots}
        for bucket, slots in zip(self.buckets, self._state, strict=True):
            for part in bucket.slices:
                parameters[part.name] = bucket.view(bucket.values, part)
                for slot, flat in slots.items():
                    state[slot][part.name] = bucket.view(flat, part)
        parameters |= {parameter.name: parameter.data for parameter in self.exchange.served.parameters}
        return parameters, state

    def close(self) -> None:
        """Free the tables; the model has no rows after it. A second call does nothing. Collective over compute."""
        if self._closed:
            return
        self._closed = True
        self._dense.leave()
        if agree(self.world, Report(leaving=True), len(self.tables)).leaving < len(self.world.clients):
            refuse_to_part(self.world, self.step + 1, leaving=True)
        self.exchange.close()
        self._dense.close()


def examples(batch: Any) -> float:
    """Return how many examples a batch has, which its mean loss is weighted by: its `weight`, or the length of it or of
    its first array. Local."""
    weight = getattr(batch, "weight", None)
    if weight is None:
        first = batch[0] if isinstance(batch, (tuple, list)) else batch
        weight = len(first)
    weight = float(weight)
    if not (np.isfinite(weight) and weight >= 0):
        raise UsageError(f"a batch of {weight} examples: expected a finite number from 0 up")
    return weight
