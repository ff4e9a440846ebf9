"""Trainer: one synchronous step after another, dense gradients by all-reduce, sparse ones to their owners."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from hybridmpi.autograd import draws
from hybridmpi.collectives import Bucket
from hybridmpi.errors import HybridMPIError, NonFiniteError, RemoteError, UsageError
from hybridmpi.failures import describe, raise_alike
from hybridmpi.nn import Module
from hybridmpi.optim import Optimizer
from hybridmpi.planning.plan import Plan, make_plan
from hybridmpi.sparse.client import Path as PullPath
from hybridmpi.sparse.partition import Kind
from hybridmpi.sparse.rows import SparseRows
from hybridmpi.sparse.service import Service
from hybridmpi.sparse.spec import TableSpec
from hybridmpi.sparse.table import Table
from hybridmpi.training.agreement import Report, agree
from hybridmpi.training.clipping import clip_whole_norm
from hybridmpi.training.dense import DenseExchange, DenseOptions
from hybridmpi.training.guards import require_same_values
from hybridmpi.training.phases import Phases
from hybridmpi.world import World


@dataclass(frozen=True)
class StepResult:
    """What a step did, the same on every compute rank, but for the times and bytes, which are this rank's.

    `loss`: mean over all examples of all ranks; `examples`: how many; `skipped`: nothing was updated since something
    was not finite. `seconds` by phase and `bytes` by category are of this step; `hidden_seconds`: how long sums of
    dense gradients were under way while backward went on.
    """

    step: int
    loss: float
    examples: int
    skipped: bool
    total_seconds: float
    hidden_seconds: float
    seconds: dict[str, float] = field(repr=False)
    bytes: dict[str, int] = field(repr=False)


class Trainer:
    """Trains a model on all compute ranks. Collective over compute; the servers come along.

    `model` is an nn.Module with a method `loss(batch)` that returns the mean loss over the batch's examples. Its dense
    parameters become views of flat buckets, summed over the ranks by all-reduce as `dense` says, while backward is
    still at work; every Embedding becomes a table on the owners of rows. `seed` decides initial values and all random
    draws. `partition`: how rows are dealt, "cyclic" or "block". `clip` > 0 limits the global norm of the
    gradient, dense and sparse. `nonfinite`: "stop" raises NonFiniteError on all ranks when a loss or gradient is NaN or
    infinite, "skip" leaves that step out on all ranks. `pull_path` forces one way of pulling rows, for measurements.
    """

    def __init__(
        self,
        world: World,
        model: Module,
        optimizer: Optimizer,
        seed: int = 1,
        partition: Kind = "cyclic",
        clip: float = 0.0,
        nonfinite: str = "stop",
        pull_path: PullPath = "auto",
        dense: DenseOptions = DenseOptions(),  # noqa: B008 - frozen
    ) -> None:
        if world.compute is None:
            raise UsageError(f"rank {world.rank} is {world.role}: a Trainer belongs on the compute ranks (see hm.run)")
        if nonfinite not in ("stop", "skip"):
            raise UsageError(f"nonfinite = {nonfinite!r}: expected 'stop' or 'skip'")
        if clip < 0:
            raise UsageError(f"clip = {clip}: expected 0 (off) or the largest norm of the gradient")
        self.world, self.model, self.optimizer = world, model, optimizer
        self.seed, self.clip, self.nonfinite = seed, clip, nonfinite
        self.step = 0
        self.skipped = 0
        self._stopped = False
        self.stop_requested: Callable[[], bool] = lambda: False

        model.initialise(seed)
        self._dense = DenseExchange(world, model.parameters_in_order(), dense)
        self._state = [optimizer.new_state(bucket.values) for bucket in self.buckets]

        self._embeddings = model.named_tables()
        specs = [
            TableSpec(name, e.rows, e.dim, e.dtype, tuple(e.init), e.reduction, partition, optimizer, seed)
            for name, e in self._embeddings
        ]
        self.service = Service.open(world, specs, pull_path, norms=clip > 0)
        self.tables = [Table(self.service.client, number, spec) for number, spec in enumerate(specs)]
        for (_, embedding), table in zip(self._embeddings, self.tables, strict=True):
            embedding.store = table
        self.plan: Plan = make_plan(
            world, model.named_parameters(), specs, self.buckets, self._dense.allreduce, self.service.client.paths
        )
        self._closed = False
        world.on_close(self.close)

    @property
    def buckets(self) -> list[Bucket]:
        """The buckets of dense parameters, in the order in which backward fills them."""
        return self._dense.buckets

    # -- the loop --------------------------------------------------------------------------------------------------

    def fit(
        self, batches: Iterable[Any], steps: int, on_step: Callable[[StepResult], Any] | None = None
    ) -> StepResult | None:
        """Train until `steps` steps are done in all, every rank has run out of batches, or a stop is requested on any
        rank; return the last step's result. Collective over compute.

        A rank whose batches end before the others' takes part with weight 0. `on_step` is called after every step, on
        every rank; what it does collectively, all ranks do.
        """
        iterator = iter(batches)
        result = None
        while self.step < steps:
            try:
                batch = next(iterator, None)
            except (Exception, SystemExit) as error:
                batch = _Failure(error)
            outcome = self.train_step(batch)
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

    def train_step(self, batch: Any) -> StepResult | None:
        """Do one step with this rank's batch (None: it has none left); return its result, or None, with nothing done,
        when no rank has a batch. Collective over compute.

        Nothing is changed anywhere until all ranks know that all are well: an exception on one rank is raised on all.
        """
        started = time.perf_counter()
        phases = Phases()
        before = self.traffic()
        waited = self.service.client.wait_seconds
        report, gradients, failure = self._compute(batch, phases)
        verdict = agree(self.world, report)
        phases.lap("wait", elsewhere=self._dense.after)
        phases.add("allreduce", self._dense.after)
        self._stopped = verdict.stop > 0
        if verdict.leaving:
            self._refuse_to_part(leaving=False)
        if verdict.failed:
            self._dense.finish()  # all ranks take part: nothing of this step may reach the next one
            self._raise_together(failure)
        skip = verdict.nonfinite > 0
        if verdict.weight == 0 or skip or self._dense.may_overflow:
            self._dense.finish()
            phases.lap("allreduce")
        if verdict.weight == 0:
            return None
        if skip:
            self._handle_nonfinite(report, gradients)
        elif self._dense.overflowed():
            skip = True
            if self.world.on_root():  # all see it alike
                self._dense.found.append("the sum of dense gradients exceeds float16's 65504 on the wire")
            self._handle_nonfinite(report, [])
        elif refused := self._exchange_and_update(report, gradients, phases):
            skip = True
            if self.world.on_root():
                self._dense.found.append(refused)
            self._handle_nonfinite(report, [])
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
        )

    def _compute(self, batch: Any, phases: Phases) -> tuple[Report, list[SparseRows], BaseException | None]:
        """Forward and backward on this rank; never raises, so that every rank reaches the agreement."""
        draws.begin_step(self.seed, self.step, self.world.compute.Get_rank())
        report, failure = Report(stop=bool(self.stop_requested())), None
        pulled = self._pull_seconds()
        try:
            if isinstance(batch, _Failure):
                raise batch.error
            report.weight = 0.0 if batch is None else examples(batch)
        except (Exception, SystemExit) as error:
            failure, report.failed = error, True
        self._dense.begin_step(report.weight)
        try:
            if report.weight and not report.failed:
                loss = self.model.loss(batch)
                report.loss = float(loss.data)
                in_pull = self._pull_seconds() - pulled
                phases.add("pull", in_pull)
                phases.lap("forward", elsewhere=in_pull)
                loss.backward(between=self._dense.progress)
        except (Exception, SystemExit) as error:
            failure, report.failed = error, True
        self._dense.end_backward()
        gradients = [embedding.take_gradient() for _, embedding in self._embeddings]
        if report.weight and not report.failed:
            report.nonfinite = not np.isfinite(report.loss) or bool(self._dense.found) or any(self._unfit(gradients))
        phases.lap("backward", elsewhere=self._dense.during)
        phases.add("overlap", self._dense.during)
        return report, gradients, failure

    def _exchange_and_update(self, report: Report, gradients: list[SparseRows], phases: Phases) -> str:
        """Send what the ranks agreed on: rows to their owners first, who work while the dense part is summed.

        Return "", or in words, the same on all ranks, why nothing was updated anywhere: the norm is not finite.
        """
        rows = [(t, g.indices, g.values) for t, g in enumerate(gradients)]
        self.service.client.push(rows, report.weight)
        phases.lap("push")
        self._dense.finish()
        phases.lap("allreduce")
        if self.clip:
            alike = [(", ".join(part.name for part in bucket.slices), bucket.gradients) for bucket in self.buckets]
            if refused := clip_whole_norm(self.service.client, alike, self.clip, phases):
                return refused
        for bucket, state in zip(self.buckets, self._state, strict=True):
            self.optimizer.update_dense(bucket.values, bucket.gradients, state, self.service.client.pushed)
        phases.lap("update")
        if self._dense.options.check:
            require_same_values(self.world, self.buckets, self.step + 1)
        return ""

    def _unfit(self, gradients: list[SparseRows]) -> Iterator[str]:
        """Say for each table what forbids to push its gradient."""
        return (self.service.client.unfit(t, g.indices, g.values) for t, g in enumerate(gradients))

    def _pull_seconds(self) -> float:
        return sum(table.pull_seconds for table in self.tables)

    def traffic(self) -> dict[str, int]:
        """Return the bytes this rank has moved so far, by category. Local."""
        counted = self.service.client.traffic.snapshot()
        counted["allreduce"] += sum(self._dense.allreduce.sent().values())
        return counted

    # -- what ends or skips a step ---------------------------------------------------------------------------------

    def _raise_together(self, failure: BaseException | None) -> None:
        """Raise the first failing rank's error on every rank, with the same text."""
        world = self.world
        mine = None if failure is None else (world.rank, describe(failure))
        rank, text = next(entry for entry in world.gather(mine) if entry is not None)
        message = f"rank {rank}, step {self.step + 1}: {text}"
        if rank != world.rank:
            raise RemoteError(message)
        if isinstance(failure, HybridMPIError):
            raise type(failure)(message) from failure
        # A fault in the user's own code: its traceback says most.
        failure.add_note(f"hybridmpi: this was rank {rank} in step {self.step + 1}")
        raise failure

    def _refuse_to_part(self, leaving: bool) -> None:
        """Raise on every rank, since some have ended training and the others would wait for them for ever."""
        everybody = self.world.gather((self.world.rank, leaving))
        gone = ", ".join(str(rank) for rank, left in everybody if left)
        error = HybridMPIError(
            f"step {self.step + 1}: rank {gone} has left the training (returned from main, or closed the Trainer) "
            "while others take another step. Every compute rank takes the same steps: use Trainer.fit, or "
            "train_step(None) on a rank without data"
        )
        raise_alike(self.world, error)

    def _handle_nonfinite(self, report: Report, gradients: list[SparseRows]) -> None:
        """Stop all ranks, or let all skip this step."""
        self.skipped += 1
        if self.nonfinite == "skip":
            return
        found = list(self._dense.found)
        if report.nonfinite:
            if not np.isfinite(report.loss):
                found.insert(0, f"the loss is {report.loss}")
            found += filter(None, self._unfit(gradients))
        everybody = self.world.gather((self.world.rank, found))
        text = "; ".join(f"rank {rank}: {', '.join(what)}" for rank, what in everybody if what)
        error = NonFiniteError(
            f"step {self.step + 1}: {text}. No rank has applied this step. Lower the learning rate, set clip, or let "
            "such steps be skipped (nonfinite = 'skip')"
        )
        raise_alike(self.world, error)

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
        """Return (parameters by name, optimiser state by slot and name) as live views. Local."""
        parameters, state = {}, {slot: {} for slot in self.optimizer.slots}
        for bucket, slots in zip(self.buckets, self._state, strict=True):
            for part in bucket.slices:
                parameters[part.name] = bucket.view(bucket.values, part)
                for slot, flat in slots.items():
                    state[slot][part.name] = bucket.view(flat, part)
        return parameters, state

    def close(self) -> None:
        """Free the tables; the model has no rows after it. A second call does nothing. Collective over compute."""
        if self._closed:
            return
        self._closed = True
        self._dense.leave()
        if agree(self.world, Report(leaving=True)).leaving < len(self.world.clients):
            self._refuse_to_part(leaving=True)
        for _, embedding in self._embeddings:
            embedding.store = None
        self.service.close()
        self._dense.close()


@dataclass(frozen=True)
class _Failure:
    """In place of a batch: the error that reading it raised, which all ranks must hear of."""

    error: BaseException


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
