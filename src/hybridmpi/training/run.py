"""A job from end to end, whatever its kind: data, model, training, evaluation, checkpoints, what is told and kept."""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
import platform
import shlex
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from hybridmpi.checkpoint.generations import generations, remove_all
from hybridmpi.checkpoint.layout import MANIFEST_FILE
from hybridmpi.errors import STOPPED, CheckpointError, UsageError
from hybridmpi.planning.modes import Mode
from hybridmpi.streams import say, write
from hybridmpi.training.asynchronous import describe_staleness
from hybridmpi.training.job import Job
from hybridmpi.training.kinds import task_of
from hybridmpi.training.loading import load
from hybridmpi.training.metrics import Metrics
from hybridmpi.training.options import dense_options, sparse_options
from hybridmpi.training.partition_search import PartitionTuning
from hybridmpi.training.progress import Progress
from hybridmpi.training.sparsity import as_json, as_table
from hybridmpi.training.trace import Trace
from hybridmpi.training.trainer import StepResult, Trainer
from hybridmpi.wording import plural
from hybridmpi.world import World


def run_job(
    world: World,
    job: Job,
    resume: str | None,
    trace: str | None = None,
    trace_steps: tuple[int, int] | None = None,
    fresh: bool = False,
) -> int:
    """Train as `job` says and return the exit code. Collective over compute.

    `resume`: a checkpoint, or a directory of them, to continue from; "": the newest in checkpoint.directory, if there
    is one. `trace`: the file for a timeline of some steps, `trace_steps` the first and the last of them; None: see
    Trace. `fresh`: remove what an earlier run left in checkpoint.directory; without that, and without `resume`, a
    directory with checkpoints is refused.
    """
    run = Run(world, job)
    try:
        run.begin(resume, fresh)
        if trace:
            run.record(trace, trace_steps)
        return run.train()
    finally:
        run.give_back()


class Run:
    """One run of a job, whatever its kind, on one compute rank: its task, trained."""

    def __init__(self, world: World, job: Job) -> None:
        """Read the data and build the model. Collective over compute."""
        self.world, self.job = world, job
        # As it is now: the current folder may be gone when it is time to save.
        self.directory = Path(job.checkpoint.directory).absolute()
        self.root = world.on_root()
        self.task = task_of(job.model.kind)(job, self.read)
        self.model = self.task.model
        self.trainer: Trainer | None = None
        self.metrics: Metrics | None = None

    def give_back(self) -> None:
        """Close the metrics, and leave the directory of checkpoints to others, however the run has ended. Local."""
        if self.metrics is not None:
            self.metrics.close()
        if self.trainer is not None:
            self.trainer._saving.leave()

    def batches(self, first: int) -> Iterator[Any]:
        """Yield this rank's batches from step `first` (0: the first one) on; None in a step without any. Local."""
        return self.task.batches(first, self.world.compute.Get_rank(), self.world.compute.Get_size())

    def open_trainer(
        self,
        mode: Mode | None = None,
        modes: Mapping[str, Mode] | None = None,
        staleness: float | None = None,
        **sparse: Any,
    ) -> Trainer:
        """Return a trainer of the model as the job says. Collective over compute.

        `mode`, `modes`, `staleness` (see Trainer) and `sparse`, fields of SparseOptions, take the place of what the job
        says.
        """
        job = self.job
        if staleness is None:
            staleness = math.inf if job.training.staleness == "unbounded" else job.training.staleness
        return Trainer(
            self.world,
            self.model,
            job.optimizer,
            seed=job.training.seed,
            mode=mode or job.sparse.mode,
            modes=job.modes if modes is None else modes,
            clip=job.training.clip,
            nonfinite=job.training.nonfinite,
            staleness=staleness,
            dense=dense_options(job),
            sparse=dataclasses.replace(sparse_options(job), **sparse),
        )

    def begin(self, resume: str | None, fresh: bool = False) -> None:
        """Make ready to train, from `resume` (see run_job) where it is given. Collective over compute."""
        job = self.job
        if not fresh:
            self.world.from_root(lambda: refuse_old_run(job, resume))
        if resume == "":
            resume = self.world.from_root(self._newest)
        if job.sparse.search and job.training.staleness:
            raise UsageError(
                "sparse.search = true times steps that all ranks take together: set training.staleness = 0, or give "
                "sparse.parts and no search"
            )
        self.trainer = self.open_trainer()
        if self.world.from_root(lambda: Path(job.checkpoint.directory).is_dir()):
            self.trainer.own(job.checkpoint.directory)  # before reading: another run prunes there
        found = self._resume(resume) if resume is not None else {}
        self.tuning = self._search(found.get("search")) if job.sparse.search else None
        self.trainer.own(job.checkpoint.directory)
        if fresh:
            self.world.from_root(lambda: remove_all(job.checkpoint.directory))
        self.metrics = self._open_metrics(None if resume is None else self.trainer.step)
        self.progress = Progress(job.training.steps, job.training.progress, self.task.unit) if self.root else None
        self.trace: Trace | None = None
        self.evaluated = -1
        self.examples = 0

    def _search(self, state: Any) -> PartitionTuning:
        """Return the search for numbers of parts, as an earlier run left it; a checkpoint may say anything of it."""
        try:
            return PartitionTuning(self.trainer, state)
        except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
            raise CheckpointError(
                f"meta['search'] of the checkpoint is not what a search for parts left ({error!r}): set "
                "sparse.search = false, or resume from another checkpoint"
            ) from error

    def record(self, path: str, steps: tuple[int, int] | None) -> None:
        """Let a timeline of some steps be written to `path`. Collective over compute."""
        if steps is not None and steps[0] > self.job.training.steps:
            raise UsageError(
                f"--trace-steps {steps[0]}:{steps[1]}: the job ends with step {self.job.training.steps} "
                "(training.steps): record earlier ones"
            )
        self.trace = Trace(self.trainer, path, *(steps or ()))

    def read(self, name: str, function: Callable[[], Any]) -> Any:
        """Let rank 0 read data from `name`, tell of it, and send them to the others. Collective over compute."""
        if self.root:
            say(f"reading {name} ...")
        started = time.perf_counter()
        found = self.world.from_root(function)
        if self.root:
            say(f"{found} ({time.perf_counter() - started:.1f} s)")
        return found

    def _newest(self) -> str | None:
        """Return where the newest checkpoint of this job is to be found, None if there is none yet."""
        root = self.job.checkpoint.directory
        if any((directory / MANIFEST_FILE).exists() for directory in generations(root)):
            return root
        say(f"no checkpoint in {root} yet: from the start")
        return None

    def _open_metrics(self, after: int | None) -> Metrics:
        """Open the metrics file on rank 0, to go on `after` that step; every rank hears of a failure."""
        metrics = Metrics("", None, self.task.unit)

        def open_file() -> None:
            nonlocal metrics
            metrics = Metrics(self.job.metrics_path, after, self.task.unit)

        self.world.from_root(open_file)
        return metrics

    def _resume(self, path: str) -> dict[str, Any]:
        """Go on from a checkpoint and return its meta."""
        meta = load(self.trainer, Path(path), self._accept)
        if self.root:
            say(f"resumed from {path}: step {self.trainer.step:,}")
        return meta

    def _accept(self, path: Path, meta: Mapping[str, Any], words: list[str] | None) -> None:
        """Raise unless a checkpoint was written by a job like this one, of the same data cut in the same way."""
        wrote = meta.get("job")
        if not isinstance(wrote, dict) or not isinstance(wrote.get("model"), dict):
            raise CheckpointError(
                f"{path}: was not written by 'hybridmpi train': Trainer.load reads it. To train here, set another "
                "checkpoint.directory"
            )
        kind = wrote["model"].get("kind")
        if kind != self.job.model.kind:
            raise CheckpointError(
                f"{path}: written by a job of kind {kind!r}, this one is of kind '{self.job.model.kind}': resume it "
                "with the job file of the first run, or set another checkpoint.directory for this one"
            )
        if words != self.task.words():
            raise CheckpointError(
                f"{path}: its vocabulary is not that of '{self.job.data.source}' as this job reads it: ids would mean "
                "other words. Resume with the text, the vocabulary size and the held-out share of the first run"
            )
        now = describe_job(self.job)
        names = [key.split(".") if "." in key else ("data", key) for key in self.task.fixed]
        before = {(section, key): _setting(path, wrote, section, key) for section, key in names}
        if moved := [name for name in before if before[name] != now[name[0]][name[1]]]:
            was = " and ".join(f"{section}.{key} = {before[section, key]}" for section, key in moved)
            has = " and ".join(f"{section}.{key} = {now[section][key]}" for section, key in moved)
            raise UsageError(
                f"{path}: trained with {was}, this job has {has}: the data would be cut differently; keep them"
            )

    def train(self) -> int:
        """Train to the end, evaluate and save; return the exit code. Collective over compute."""
        job, world, trainer = self.job, self.world, self.trainer
        if self.root:
            say(str(trainer.plan))
            self.metrics.write("run", **self._description())
        first_step, skipped_before, started = trainer.step, trainer.skipped, time.perf_counter()
        # Steps and batches count together: every rank takes part in every step, and skipped steps count too.
        batches = self.batches(first_step)
        while trainer.step < job.training.steps:
            boundary = next(step for step in itertools.count(trainer.step + 1) if self._is_boundary(step))
            trainer.fit(batches, boundary, self._after_step)
            if trainer.stopped or trainer.step < boundary:
                break
            self._at_boundary(boundary)
            if trainer.stopped:
                break
        seconds = time.perf_counter() - started
        if self.trace is not None:
            self.trace.finish()
            self._say(self.trace.said)
        if trainer.stopped:
            directory = self._save()
            self._end(seconds, trainer.skipped - skipped_before)
            self._warn_of_skipped(trainer.step - first_step, trainer.skipped - skipped_before)
            self._say(f"stopped by a signal after step {trainer.step:,}; checkpoint {directory}; --resume continues it")
            return STOPPED
        if job.training.evaluate != 0 and self.evaluated != trainer.step:
            self._evaluate()
        directory = self._save()
        done, skipped = trainer.step - first_step, trainer.skipped - skipped_before
        self._end(seconds, skipped)
        examples = self.examples if trainer.synchronous else sum(world.gather(self.examples))
        left_out = f", {skipped:,} of them skipped" if skipped else ""
        self._say(
            f"trained {plural(done, 'step')}{left_out}, {examples:,} {self.task.unit} in {seconds:.1f} s, evaluations "
            "and all"
        )
        self._warn_of_skipped(done, skipped)
        if counts := self._record_staleness():
            self._say(describe_staleness(counts))
        if job.metrics_path:
            self._say(f"metrics: {job.metrics_path}")
        self._say(f"checkpoint: {directory}\nlook into it with:\n  {inspect_command(directory)}")
        world.barrier()
        return 0

    def _warn_of_skipped(self, done: int, skipped: int) -> None:
        """Say on stderr that steps, or all of them, have changed nothing."""
        if self.root and skipped:
            # With staleness, ranks skip steps of their own.
            of = f"{skipped:,} of {plural(done, 'step')}" if skipped < done else f"all of {plural(done, 'step')}"
            if not self.trainer.synchronous:
                of = f"{plural(skipped, 'step')} of single ranks"
            warning = f"hybridmpi: warning: {of} skipped, since something was not finite: the model has learned nothing"
            write(sys.stderr, f"{warning} from them; lower the learning rate, or set training.clip\n")

    def _end(self, seconds: float, skipped: int) -> None:
        """Record and say what the run was like; `skipped` steps have changed nothing."""
        alphas = self.trainer.sparsity.so_far()
        if self.root:
            about = {"step": self.trainer.step, "seconds": round(seconds, 3), "stopped": self.trainer.stopped}
            self.metrics.write("end", **about, skipped=skipped, sparsity=as_json(alphas))
            if alphas:
                self._say(as_table(alphas, self.trainer.exchange))

    def _description(self) -> dict[str, Any]:
        return {
            "job": describe_job(self.job),
            "compute_ranks": len(self.world.clients),
            "servers": len(self.world.servers),
            "nodes": self.world.nodes,
            "host": platform.node(),
            "step": self.trainer.step,
        }

    def _after_step(self, result: StepResult) -> None:
        self.examples += result.examples
        if self.root:
            self.metrics.step(result)
            self.progress.step(result)
        if self.trace is not None:
            self.trace.step(result)
        for text in result.notes:
            self._say(f"step {result.step:,}: {text}")
        if self.searching and (text := self.tuning.step(result)):
            self._note(text)

    @property
    def searching(self) -> bool:
        """Whether the number of parts of some table is still searched for."""
        return self.tuning is not None and not self.tuning.settled

    def _is_boundary(self, step: int) -> bool:
        """Return whether all ranks meet after `step`, those that train asynchronously too."""
        due = step == self.job.training.steps or self._evaluation_is_due(step)
        return due or self._is_due(step, self.job.checkpoint.every) or self._is_due(step, self.job.sparse.balance_every)

    def _at_boundary(self, step: int) -> None:
        """Move parts that are used much, evaluate, save: what is due after `step`. Collective over compute."""
        if self._is_due(step, self.job.sparse.balance_every) and not self.searching:
            self._note(self.trainer.balance())
        if self._evaluation_is_due(step):
            self._evaluate()
            self._record_staleness()
        if self._is_due(step, self.job.checkpoint.every) and step < self.job.training.steps:
            self._save(self.job.checkpoint.behind)

    def _is_due(self, step: int, every: int) -> bool:
        return every > 0 and step % every == 0

    def _record_staleness(self) -> dict[int, int]:
        """Return how stale gradients were so far (see Trainer.staleness), and write it to the metrics file."""
        counts = self.trainer.staleness()
        if counts:
            self.metrics.write("staleness", step=self.trainer.step, pushes={str(n): c for n, c in counts.items()})
        return counts

    def _evaluation_is_due(self, step: int) -> bool:
        evaluate, steps = self.job.training.evaluate, self.job.training.steps
        if evaluate == "quarters":
            return step in {math.ceil(steps * quarter / 4) for quarter in (1, 2, 3, 4)}
        return evaluate > 0 and step % evaluate == 0

    def _evaluate(self) -> None:
        """Print and record what the held-out data say."""
        started = time.perf_counter()
        self.model.eval()
        found = self.task.evaluate(self.world)
        self.model.train()
        if found is None:
            return
        self.evaluated = self.trainer.step
        alphas = self.trainer.sparsity.lately()
        if self.root:
            seconds = time.perf_counter() - started
            self._say(f"step {self.trainer.step:,}: {found.text}  [{seconds:.1f} s]")
            about = {**found.values, "seconds": round(seconds, 3), "sparsity": as_json(alphas)}
            self.metrics.write("evaluation", step=self.trainer.step, **about)
            self.progress.resume_clock()

    def _save(self, behind: bool = False) -> Path:
        """Save, `behind` the back of training or at once; record for how long training stood still."""
        started, section, meta = time.perf_counter(), self.job.checkpoint, {"job": describe_job(self.job)}
        if begin := self.task.words_begin():
            meta["words_begin"] = begin
        if self.tuning is not None:
            meta["search"] = self.tuning.state()
        directory = self.trainer.save(self.directory, section.keep, meta, self.task.words(), behind)
        if self.root:
            seconds = round(time.perf_counter() - started, 3)
            self.metrics.write("checkpoint", step=self.trainer.step, seconds=seconds, behind=behind)
            self.progress.resume_clock()
        return directory

    def _note(self, text: str) -> None:
        """Say and record what was done between steps."""
        self.metrics.write("note", step=self.trainer.step, text=text)
        self._say(f"step {self.trainer.step:,}: {text}")

    def _say(self, text: str) -> None:
        if self.root:
            self.progress.message(text)


def refuse_old_run(job: Job, resume: str | None) -> None:
    """Raise UsageError where an earlier run has left what this one would take the place of. Local.

    Without `resume` that is checkpoints and the metrics of steps; with a checkpoint from elsewhere, checkpoints. A run
    that ended before its first step is in nobody's way.
    """
    root = Path(job.checkpoint.directory)
    saved = [path for path in generations(root) if (path / MANIFEST_FILE).exists()]
    if resume is None:
        metrics = Path(job.metrics_path) if job.metrics_path else None
        recorded = metrics is not None and metrics.is_file() and _records_steps(metrics)
        if saved or recorded:
            what = f"{root} holds checkpoints ({saved[0].name})" if saved else f"{metrics} holds the metrics"
            raise UsageError(
                f"{what} of an earlier run: --resume goes on from there, --set checkpoint.directory=... trains "
                "elsewhere, --fresh removes its checkpoints and metrics and starts over"
            )
    elif resume and saved and not Path(resume).resolve().is_relative_to(root.resolve()):
        raise UsageError(
            f"{root} holds checkpoints ({saved[0].name}) of an earlier run, and --resume {resume} is none of them: "
            "--resume without a path goes on from the newest there, --set checkpoint.directory=... trains elsewhere"
        )


def _records_steps(metrics: Path) -> bool:
    """Return whether a file of metrics holds a step, or a line that is none of metrics."""
    with open(metrics, "rb") as file:
        return any(not line.startswith(b'{"kind": ') or line.startswith(b'{"kind": "step"') for line in file)


def _setting(path: Path, job: Mapping[str, Any], section: str, key: str) -> Any:
    """Return a setting of the job that wrote a checkpoint. Local. Raises CheckpointError where it says none."""
    settings = job.get(section)
    if not isinstance(settings, dict) or key not in settings:
        raise CheckpointError(f"{path}: its job says nothing of {section}.{key}: another version wrote it")
    return settings[key]


def describe_job(job: Job) -> dict[str, Any]:
    """Return the job as JSON values, for metrics and checkpoints. Local."""
    described = {**dataclasses.asdict(job), "optimizer": job.optimizer.describe()}
    return json.loads(json.dumps(described))  # tuples are lists there


def inspect_command(directory: Path) -> str:
    """Return the command that shows a checkpoint, as this environment runs it. Local."""
    program = Path(sys.executable).with_name("hybridmpi")
    shown = str(program) if program.exists() else f"{sys.executable} -m hybridmpi"
    try:
        directory = directory.relative_to(Path.cwd())
        shown = str(Path(shown).relative_to(Path.cwd()))
    except (ValueError, OSError):  # elsewhere, or the current folder is gone
        pass
    return f"{shown} inspect {shlex.quote(str(directory))}"
