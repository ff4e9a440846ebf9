"""Trainer: one synchronous step after another, each parameter's gradient on its own way."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np

from hybridmpi.autograd import draws
from hybridmpi.collectives import Bucket
from hybridmpi.errors import OutOfStepError, UsageError
from hybridmpi.field_types import Amount, Count, Natural, Seed, checks_arguments
from hybridmpi.nn import Module
from hybridmpi.optim import Optimizer
from hybridmpi.planning.modes import Mode, ways_of
from hybridmpi.planning.plan import Plan, make_plan
from hybridmpi.sparse.partition import Homes, Kind, Parts
from hybridmpi.sparse.service import Service
from hybridmpi.training.adaptive import Adaptation, transport_of
from hybridmpi.training.agreement import Report, Verdict, agree
from hybridmpi.training.ahead import RowsAhead
from hybridmpi.training.asynchronous import Asynchronous, Staleness, check_staleness
from hybridmpi.training.batches import examples
from hybridmpi.training.clipping import clip_whole_norm
from hybridmpi.training.custody import Custody
from hybridmpi.training.dense import DenseExchange, DenseOptions, named_views
from hybridmpi.training.endings import Nonfinite, raise_nonfinite, raise_together
from hybridmpi.training.guards import (
    require_memory,
    require_same_kind,
    require_same_optimizer,
    require_same_parameters,
    require_same_values,
    require_trainable,
)
from hybridmpi.training.loading import load
from hybridmpi.training.phases import Phases
from hybridmpi.training.placement import balance, repartition
from hybridmpi.training.results import ReadFailure, StepResult, loss_of
from hybridmpi.training.saving import Saving
from hybridmpi.training.sparsity import Sparsity
from hybridmpi.training.tables import SparseOptions, Stores, TableExchange
from hybridmpi.world import World

# What steps go by on all ranks and owners.
FIXED = ("world", "model", "seed", "clip", "nonfinite")


class Trainer:
    """Trains a model on all compute ranks. Collective over compute; the servers come along.

    `model` is an nn.Module with a method `loss(batch)` that returns the mean loss over the batch's examples, a Tensor
    of one number. How many examples a batch has, by which ranks are weighted, is its `weight` or follows from its
    container (see training/batches.py). In mode
    "hybrid" its dense parameters become views of flat buckets, summed over the ranks by all-reduce as `dense` says,
    while backward is still at work; every Embedding becomes a table on the owners of rows, as `sparse` says. The other
    modes send everything to owners ("ps"), sum everything whole ("allreduce"), or gather row gradients on every rank
    ("allgather"); `modes` makes exceptions by name pattern, {"embedding*": "allreduce"}. `seed` decides initial values
    and all random draws. `clip` > 0 limits the global norm of the whole gradient. `nonfinite`: "stop" raises
    NonFiniteError on all ranks when a loss or gradient is NaN or infinite, "skip" leaves that step out on all ranks.

    `staleness`: how many steps a rank may be ahead of the slowest one: 0 trains synchronously, a number is stale
    synchronous parallel with that bound, math.inf is asynchronous. Other than 0, all parameters lie at owners (mode
    "ps"), every rank's push is a step of the optimiser, `clip` limits the norm of a rank's own gradient, and "skip"
    leaves out that rank's step alone.
    """

    @checks_arguments
    def __init__(
        self,
        world: World,
        model: Module,
        optimizer: Optimizer,
        seed: Seed = 1,
        mode: Mode = "hybrid",
        modes: Mapping[str, Mode] | None = None,
        clip: Amount = 0.0,
        nonfinite: Nonfinite = "stop",
        staleness: Staleness = 0,
        dense: DenseOptions = DenseOptions(),  # noqa: B008 - frozen
        sparse: SparseOptions = SparseOptions(),  # noqa: B008 - frozen
    ) -> None:
        require_trainable(world, model, optimizer)
        if world.compute is None:
            raise UsageError(f"rank {world.rank} is {world.role}: a Trainer belongs on the compute ranks (see hm.run)")
        self._custody = Custody(model)
        self.world, self.model, self._optimizer = world, model, optimizer
        self.seed, self.clip, self.nonfinite = seed, clip, nonfinite
        self.step = 0
        self.skipped = 0
        self._stopped = False
        self.stop_requested: Callable[[], bool] = world.stop_requested
        self._last: StepResult | None = None
        world.listen()

        with world.within("Trainer(...)"):
            require_memory(world, model, optimizer)
            model.initialise(seed)
            parameters, embeddings = model.parameters_in_order(), model.named_tables()
            said = repr((mode, modes, optimizer, seed, clip, nonfinite, staleness, dense, sparse))
            require_same_parameters(world, [*parameters, *embeddings], said)
            ways, movable = ways_of(mode, modes or {}, [n for n, _ in parameters], [n for n, _ in embeddings])
            check_staleness(staleness, ways)
            self._dense = DenseExchange(world, [(n, p) for n, p in parameters if ways[n] == "allreduce"], dense)
            self._state = [optimizer.new_state(bucket.values) for bucket in self.buckets]
            served = [p for n, p in model.named_parameters() if ways[n] == "ps"]
            self.exchange = TableExchange(
                world,
                embeddings,
                served,
                ways,
                optimizer,
                seed,
                sparse,
                lambda nbytes: dense.open(world, nbytes),
                norms=clip > 0 and not staleness,
                staleness=staleness,
            )
            self._rows = RowsAhead(model, self.exchange, sparse.prefetch)
            self.sparsity = Sparsity(self.exchange)
            self.adaptation = Adaptation(
                self.exchange,
                self.sparsity,
                movable,
                optimizer,
                transport_of(sparse, dense, self.exchange.aggregates, self._rows.together),
                sparse.adapt_every,
            )
            self._asynchronous = Asynchronous(self) if staleness else None
            self._saving = Saving(self)
        self._closed = False
        self._custody.take()
        world.on_close(self.close)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in FIXED and name in vars(self):
            raise UsageError(f"Trainer.{name} is fixed when the Trainer is made: make another one")
        super().__setattr__(name, value)

    @property
    def optimizer(self) -> Optimizer:
        """The optimiser. Another of the same kind can take its place, with another learning rate: from the next step on
        it updates everything, at owners too. To set it is collective over compute, as are steps."""
        return self._optimizer

    @optimizer.setter
    def optimizer(self, optimizer: Optimizer) -> None:
        require_same_kind(self._optimizer, optimizer)
        with self._within("optimizer"):
            require_same_optimizer(self.world, optimizer)
            self.settle()
            self.exchange.change_optimizer(optimizer)
            self._optimizer = optimizer

    @property
    def plan(self) -> Plan:
        """How each parameter's gradient travels, and where its values live at present."""
        return make_plan(self.world, self.model.named_parameters(), self.exchange, self.buckets, self._dense.allreduce)

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

    @checks_arguments
    def fit(
        self, batches: Iterable[Any], steps: Natural, on_step: Callable[[StepResult], Any] | None = None
    ) -> StepResult | None:
        """Train until `steps` steps are done in all, every rank has run out of batches, or a stop is requested on any
        rank; return the result of the last step of all, None if there was none. Collective over compute.

        A rank whose batches end before the others' takes part with weight 0; so does one that gets None in place of a
        batch, and where all do in one step, training ends. A batch without examples is one like any other: a step in
        which no rank has any counts, changes nothing, and has NaN as its loss. `on_step` is called after every step, on
        every rank; what it does collectively, all ranks do. With prefetch a batch is read one step ahead: if training
        stops between the two, the next call with the same iterator begins with it.

        With staleness a rank does `steps` of its own, or fewer if it runs out of batches or gets None, while the others
        go on; the end of `fit` is a boundary, see `settle`. `on_step` must do nothing collective then.
        """
        self._require_open("fit")
        self._custody.require_unchanged()
        if self.step >= steps and not self.world.stopped:
            self._warn(f"fit(steps={steps}): {self.step} steps are done already, and `steps` counts them all")
        before = self.step
        result = self._fit(batches, steps, on_step)
        if self.step == before < steps and not self.stopped and self.synchronous:
            self._warn("fit has done no step: no rank had a batch. An iterator is used up after its first pass")
        self._last = result or self._last
        return self._last

    def _fit(
        self, batches: Iterable[Any], steps: int, on_step: Callable[[StepResult], Any] | None
    ) -> StepResult | None:
        if self._asynchronous is not None:
            return self._asynchronous.fit(batches, steps, on_step)
        source = self._rows.batches(batches)
        result = None
        while self.step < steps and not self.world.stopped:
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

    def _warn(self, text: str) -> None:
        if self.world.on_root():
            warnings.warn(text, stacklevel=4)

    @property
    def stopped(self) -> bool:
        """Whether a request to stop was seen on any rank; the same on all ranks, with staleness at a boundary."""
        return self._stopped if self._asynchronous is None else self._asynchronous.stopped

    def train_step(self, batch: Any, following: Any = None) -> StepResult | None:
        """Do one step with this rank's batch (None: it has none left); return its result, or None, with nothing done,
        when no rank has a batch, be it one without examples. Collective over compute.

        `following`: the batch of the next step, where it is known: with prefetch its rows are asked for meanwhile.
        Nothing is changed anywhere until all ranks know that all are well: an exception on one rank is raised on all.
        With staleness a step is Local: an exception is raised on this rank, and the result is of its own examples.
        """
        self._require_open("train_step")
        if self._asynchronous is not None:
            return self._asynchronous.step(batch)
        started = time.perf_counter()
        phases = Phases(self.world.recording, self.step + 1, self.traffic)
        before = self.traffic()
        waited = self.service.client.wait_seconds
        report, failure = self._compute(batch, following, phases)
        verdict = agree(self.world, report, len(self.tables))
        phases.lap("wait", elsewhere=self._dense.after)
        phases.add("allreduce", self._dense.after)
        self._stopped = verdict.stop > 0
        self.world.stopped |= verdict.signal > 0
        if verdict.failed:
            self._dense.finish()  # all ranks take part: nothing of this step may reach the next one
            raise_together(self.world, self.step + 1, failure)
        skip, empty = verdict.nonfinite > 0, verdict.weight == 0
        if empty or skip or self._dense.may_overflow:
            self._dense.finish()
            phases.lap("allreduce")
        if not verdict.batch:
            return None
        if not (skip or empty) and self._dense.may_overflow:
            self.exchange.start(report.weight, report.weight / verdict.weight)
            self.exchange.finish()
            phases.lap("tables")
            if self._dense.overflowed() or self.exchange.overflowed():
                skip = True
                if self.world.on_root():  # all see it alike
                    self._found.append("the sum of gradients exceeds float16's 65504 on the wire")
        if not (skip or empty) and (refused := self._exchange_and_update(report, verdict, phases)):
            skip = True
            if self.world.on_root():
                self._found.append(refused)
        if skip:
            self.skipped += 1
            if self.nonfinite == "stop":
                raise_nonfinite(self.world, self.step + 1, self._found)
        phases.add("wait", waited_in_pull := self.service.client.wait_seconds - waited)
        phases.add("pull", -waited_in_pull)
        after = self.traffic()
        self.step += 1
        if not (skip or empty):
            self.sparsity.add(verdict.rows)
        notes = self.adaptation.look(self.step)
        phases.end()
        self._last = StepResult(
            self.step,
            verdict.loss,
            int(verdict.weight),
            skip,
            time.perf_counter() - started,
            self._dense.hidden,
            phases.seconds,
            {category: after[category] - before[category] for category in after},
            tuple(notes),
            self._rows.take_counts(),
        )
        return self._last

    def _compute(self, batch: Any, following: Any, phases: Phases) -> tuple[Report, BaseException | None]:
        """Forward and backward on this rank; never raises, so that every rank reaches the agreement."""
        draws.begin_step(self.seed, self.step, self.world.compute.Get_rank())
        report, failure = Report(stop=bool(self.stop_requested())), None
        report.signal = report.stop and self.world.stop_requested()
        pulled = self.exchange.pull_seconds()
        try:
            report.batch = batch is not None
            if isinstance(batch, ReadFailure):
                raise batch.error
            report.weight = 0.0 if batch is None else examples(batch)
            self._saving.check()
        except (Exception, SystemExit) as error:
            failure, report.failed = error, True
        self._dense.begin_step(report.weight, self.step + 1, self.service.number)
        self.exchange.begin_step()
        try:
            ready = report.weight and not report.failed
            self._rows.begin(batch if ready else None, following)
            if ready:
                loss, report.loss = loss_of(self.model, batch)
                phases.add("pull", in_pull := self.exchange.pull_seconds() - pulled)
                phases.lap("forward", elsewhere=in_pull)
                loss.backward(between=self._dense.progress)
        except OutOfStepError:
            raise  # on all ranks, which are elsewhere: there is nothing to agree on
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

    def _exchange_and_update(self, report: Report, verdict: Verdict, phases: Phases) -> str:
        """Send what the ranks agreed on: rows to their owners first, who work while the dense part is summed.

        Return "", or in words, the same on all ranks, why nothing was updated anywhere: the norm is not finite.
        """
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
        if self.clip and (refused := clip_whole_norm(self.exchange, self.buckets, self.clip, phases)):
            return refused
        self.exchange.update()
        for bucket, state in zip(self.buckets, self._state, strict=True):
            self._optimizer.update_dense(bucket.values, bucket.gradients, state, self.exchange.updates)
        phases.lap("update")
        before = self.exchange.pull_seconds()
        self.exchange.refresh()
        phases.add("pull", self.exchange.pull_seconds() - before)
        if self._dense.options.check:
            require_same_values(self.world, self.buckets, self.step + 1)
        return ""

    def _within(self, method: str) -> AbstractContextManager[None]:
        """Let every rank call a method together. Collective over compute."""
        self._require_open(method)
        if self._asynchronous is not None:
            self._asynchronous.leave()  # others may be held back for this one's clock, and must come here
        return self.world.within(f"Trainer.{method}")

    def _require_open(self, method: str) -> None:
        if self._closed:
            raise UsageError(
                f"Trainer.{method}: this Trainer is closed, and its tables are gone: make another one, and load what "
                "this one has saved"
            )

    @property
    def synchronous(self) -> bool:
        """Whether all ranks take every step together."""
        return self._asynchronous is None

    def settle(self) -> None:
        """Wait until all that any rank has pushed is applied everywhere. Collective over compute.

        Synchronous training is always settled. With staleness this is a boundary, as are `fit`, `save` and `load`:
        afterwards all ranks see the same parameters, `step` is the largest of the ranks' own.
        """
        with self._within("settle"):
            if self._asynchronous is not None:
                self._asynchronous.settle()

    def staleness(self) -> dict[int, int]:
        """Return {staleness: pushes}: how many pushes owners applied, so far, after so many updates of others since
        the rank had pulled. Each owner's pushes count; nothing where training is synchronous. Collective over compute;
        a boundary."""
        with self._within("staleness"):
            return {} if self._asynchronous is None else self._asynchronous.staleness()

    def traffic(self) -> dict[str, int]:
        """Return the bytes this rank has moved so far, by category. Local."""
        counted = self.service.client.traffic.snapshot()
        counted["allreduce"] += sum(self._dense.allreduce.sent().values()) + self.exchange.sent()
        return counted

    # -- where rows lie --------------------------------------------------------------------------------------------

    @checks_arguments
    def repartition(
        self, name: str, parts: Parts | None = None, homes: Homes | None = None, kind: Kind | None = None
    ) -> int:
        """Deal a table's rows to so many `parts`, at owners in turn or at `homes` (part i at owner homes[i]), block or
        cyclic (`kind`; None: as now); return the bytes that travelled. Collective over compute, between steps.

        Training goes on as if nothing had moved. Raises UsageError, before anything moves, for a name that is none of a
        table at owners and for what is no partition.
        """
        with self._within("repartition"):
            self.settle()
            return repartition(self, name, parts, homes, kind)

    def balance(self) -> str:
        """Move parts of tables between owners if the most loaded one then has clearly less to do, by what was pushed to
        each part since the last call; return why, or why not, in words. Collective over compute, between steps."""
        with self._within("balance"):
            self.settle()
            return balance(self)

    # -- checkpoints -----------------------------------------------------------------------------------------------

    @checks_arguments
    def save(
        self, root: str | Path, keep: Count = 2, meta: dict | None = None, words: Any = None, behind: bool = False
    ) -> Path:
        """Write a checkpoint below `root` and return its directory; keep the newest `keep`. Collective over compute.

        `meta`: JSON values of the caller's, such as the data position; `words`: the vocabulary. It is whole or absent.
        `behind`: only copy now, and write while training goes on; the next save, load, close or `saved` waits for it.
        """
        with self._within("save"):
            self._custody.require_unchanged()
            self.settle()
            return self._saving.save(Path(root), keep, meta or {}, words, behind)

    def own(self, root: str | Path) -> None:
        """Make sure that no other run saves below `root`, until `close`; the first `save` does otherwise. Raises
        UsageError naming the job and the host of a run that does. Collective over compute."""
        self._saving.own(Path(root))

    def saved(self) -> Path | None:
        """Wait for the checkpoint that is written behind; return its directory, or None. Collective over compute."""
        with self._within("saved"):
            return self._saving.finish()

    def load(self, path: str | Path) -> dict[str, Any]:
        """Continue from a checkpoint, or the newest whole one below `path`, written by any number of ranks; return its
        meta. Collective over compute. Raises DamageError, and trains no more before another load, where some byte of
        the one that was named, or of all below `path`, is not what was written."""
        with self._within("load"):
            self.settle()
            self.saved()
            return load(self, Path(path))

    def dense_arrays(self) -> tuple[dict[str, np.ndarray], dict[str, dict[str, np.ndarray]]]:
        """Return (dense parameters by name, optimiser state by slot and name) as live views; of parameters that lie at
        owners the state is there, and what is here is a copy. Local."""
        parameters, state = named_views(self.buckets, self._state, self.optimizer.slots)
        parameters |= {parameter.name: parameter.data for parameter in self.exchange.served.parameters}
        return parameters, state

    def close(self) -> None:
        """Free the tables; the model has no rows after it. A second call does nothing. Collective over compute."""
        if self._closed:
            return
        with self._within("close"):
            self._closed = True
            self._custody.leave(trained=self.step > 0)
            if self._asynchronous is not None:
                self._asynchronous.close()
            with self._saving.closing():
                self.exchange.close()
                self._dense.close()
                self.world.forget_close(self.close)
