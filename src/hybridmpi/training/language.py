"""The language-model job from end to end: text, model, training, evaluation, checkpoint."""

from __future__ import annotations

import dataclasses
import json
import math
import platform
import shlex
import sys
import time
from pathlib import Path
from typing import Any

from hybridmpi import data
from hybridmpi.errors import CheckpointError, UsageError
from hybridmpi.models.lm import LanguageModel
from hybridmpi.training.dense import DenseOptions
from hybridmpi.training.job import Job
from hybridmpi.training.metrics import Metrics
from hybridmpi.training.progress import Progress
from hybridmpi.training.signals import StopRequest
from hybridmpi.training.tables import SparseOptions
from hybridmpi.training.trainer import StepResult, Trainer
from hybridmpi.world import World

# Held-out text is read in so many parallel streams, whatever the job's own batch: perplexities compare.
EVALUATION_STREAMS = 64

# Words of a stream that one call of the model evaluates: the whole output table is streamed once per call.
EVALUATION_STEPS = 4096

# Exit code of a run that a signal stopped after a checkpoint: the batch system is to start it again.
STOPPED = 75


def train_language_model(world: World, job: Job, resume: str | None, stop: StopRequest) -> int:
    """Train as `job` says and return the exit code. Collective over compute.

    `resume`: a checkpoint, or a directory of them, to continue from.
    """
    run = _Run(world, job, resume)
    run.trainer.stop_requested = stop
    try:
        return run.train()
    finally:
        run.metrics.close()


class _Run:
    """One run of the job on one compute rank: what its parts need of each other."""

    def __init__(self, world: World, job: Job, resume: str | None) -> None:
        self.world, self.job = world, job
        self.root = world.on_root()
        self.corpus = self._read_corpus()
        vocabulary = len(self.corpus.vocabulary.words)
        section = job.model
        self.model = LanguageModel(
            vocabulary,
            section.width,
            section.hidden,
            min(section.samples, vocabulary),
            section.dropout,
            section.softmax,
        )
        self.trainer = Trainer(
            world,
            self.model,
            job.optimizer,
            seed=job.training.seed,
            clip=job.training.clip,
            nonfinite=job.training.nonfinite,
            dense=dense_options(job),
            sparse=SparseOptions(partition=job.world.partition),
        )
        rank, ranks = world.compute.Get_rank(), world.compute.Get_size()
        self.streams = data.Streams(self.corpus.train, job.data.streams, job.data.steps, rank, ranks)
        self.held_out = data.held_out_streams(
            self.corpus.held_out, EVALUATION_STREAMS, EVALUATION_STEPS, rank, ranks
        ) if len(self.corpus.held_out) > 1 else None  # fmt: skip
        if resume is not None:
            self._resume(resume)
        self.metrics = self._open_metrics(append=resume is not None)
        self.progress = Progress(job.training.steps, job.training.progress) if self.root else None
        self.evaluated = -1

    def _open_metrics(self, append: bool) -> Metrics:
        """Open the metrics file on rank 0; every rank hears of a failure."""
        metrics = Metrics("", False)

        def open_file() -> None:
            nonlocal metrics
            metrics = Metrics(self.job.metrics.path, append)

        self.world.from_root(open_file)
        return metrics

    def _read_corpus(self) -> data.Corpus:
        """Let rank 0 read the text, and send it to the others."""
        section = self.job.data
        cache = Path(section.cache) if section.cache else None
        if self.root:
            print(f"reading {section.source} ...", flush=True)
        started = time.perf_counter()
        corpus = self.world.from_root(lambda: data.load(section.source, section.vocabulary, section.held_out, cache))
        if self.root:
            print(f"{corpus} ({time.perf_counter() - started:.1f} s)", flush=True)
        return corpus

    def _resume(self, path: str) -> None:
        def words() -> list[str] | None:
            from hybridmpi.checkpoint import Checkpoint

            return Checkpoint.open(path).words()

        if self.world.from_root(words) != self.corpus.vocabulary.words:
            raise CheckpointError(
                f"{path}: its vocabulary is not that of '{self.job.data.source}' as this job reads it: ids would mean "
                "other words. Resume with the text, the vocabulary size and the held-out share of the first run"
            )
        meta = self.trainer.load(path)
        if meta["streams"] != self.job.data.streams or meta["window"] != self.job.data.steps:
            raise UsageError(
                f"{path}: trained with data.streams = {meta['streams']} and data.steps = {meta['window']}, this job "
                f"has {self.job.data.streams} and {self.job.data.steps}: the text would be cut differently; keep them"
            )
        self.streams.position = meta["position"]
        if self.root:
            print(f"resumed from {path}: step {self.trainer.step:,}", flush=True)

    # -- training --------------------------------------------------------------------------------------------------

    def train(self) -> int:
        job, world, trainer = self.job, self.world, self.trainer
        if self.root:
            print(trainer.plan, flush=True)
            self.metrics.write("run", **self._description())
        self.unigram = self.corpus.vocabulary.unigram_perplexity(self.corpus.held_out) if self.held_out else math.nan
        first_step, started = trainer.step, time.perf_counter()
        for_training = (batch if batch.inputs.size else None for batch in self.streams)
        trainer.fit(for_training, job.training.steps, self._after_step)
        seconds = time.perf_counter() - started
        if trainer.stopped:
            directory = self._save()
            self._say(f"stopped by a signal after step {trainer.step:,}; checkpoint {directory}; --resume continues it")
            return STOPPED
        if job.training.evaluate != 0 and self.evaluated != trainer.step:
            self._evaluate()
        directory = self._save()
        if self.root:
            done = trainer.step - first_step
            words = done * job.data.streams * job.data.steps
            self._say(f"trained {done:,} steps, {words:,} words in {seconds:.1f} s, evaluations and all")
            if job.metrics.path:
                self._say(f"metrics: {job.metrics.path}")
            self._say(f"checkpoint: {directory}\nlook into it with:\n  {inspect_command(directory)}")
        world.barrier()
        return 0

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
        if self.root:
            self.metrics.step(result)
            self.progress.step(result)
        if self._evaluation_is_due(result.step):
            self._evaluate()
        every = self.job.checkpoint.every
        if every and result.step % every == 0 and result.step < self.job.training.steps:
            self._save()

    def _evaluation_is_due(self, step: int) -> bool:
        evaluate, steps = self.job.training.evaluate, self.job.training.steps
        if evaluate == "quarters":
            return step in {math.ceil(steps * quarter / 4) for quarter in (1, 2, 3, 4)}
        return evaluate > 0 and step % evaluate == 0

    def _evaluate(self) -> None:
        """Print and record the held-out perplexity by the full softmax, beside the unigram model's."""
        if self.held_out is None:
            return
        started = time.perf_counter()
        self.model.eval()
        loss, words = 0.0, 0
        for batch in self.held_out.one_pass():
            batch_loss, batch_words = self.model.evaluate(batch)
            loss, words = loss + batch_loss, words + batch_words
        self.model.train()
        parts = self.world.gather((loss, words))
        loss, words = (sum(column) for column in zip(*parts, strict=True))
        perplexity = math.exp(min(loss / words, 700.0))
        self.evaluated = self.trainer.step
        if self.root:
            seconds = time.perf_counter() - started
            self._say(
                f"step {self.trainer.step:,}: held-out perplexity {perplexity:.1f} on {words:,} words "
                f"(unigram model: {self.unigram:.1f})  [{seconds:.1f} s]"
            )
            self.metrics.write(
                "evaluation",
                step=self.trainer.step,
                perplexity=perplexity,
                unigram_perplexity=self.unigram,
                words=words,
                seconds=round(seconds, 3),
            )
            self.progress.resume_clock()

    def _save(self) -> Path:
        # Steps and windows count together: every rank reads a window in every step, and skipped steps count too.
        meta = {
            "position": self.trainer.step,
            "streams": self.job.data.streams,
            "window": self.job.data.steps,
            "source": self.job.data.source,
            "job": describe_job(self.job),
        }
        directory = self.trainer.save(
            self.job.checkpoint.directory, self.job.checkpoint.keep, meta, self.corpus.vocabulary.words
        )
        if self.root:
            self.progress.resume_clock()
        return directory

    def _say(self, text: str) -> None:
        if self.root:
            self.progress.message(text)


def dense_options(job: Job) -> DenseOptions:
    """Return how the job sums dense gradients: its [allreduce], and the supernodes of its [topology]. Local."""
    section = job.allreduce
    return DenseOptions(
        wire=section.wire,
        algorithm=section.algorithm,
        bucket_bytes=int(section.bucket_mb * (1 << 20)),
        first_bucket_bytes=int(section.first_bucket_mb * (1 << 20)),
        overlap=section.overlap,
        supernodes=job.topology.supernodes,
        check=section.check,
    )


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
    except ValueError:
        pass
    return f"{shown} inspect {shlex.quote(str(directory))}"
