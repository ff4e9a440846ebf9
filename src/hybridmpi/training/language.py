"""Jobs of kind "lm": a language model of a text."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from hybridmpi import data
from hybridmpi.models.lm import LanguageModel
from hybridmpi.training.job import CheckpointSection, Job
from hybridmpi.training.run import Evaluation, Run
from hybridmpi.training.values import Count, Range

# Held-out text is read in so many parallel streams, whatever the job's own batch: perplexities compare.
EVALUATION_STREAMS = 64

# Words of a stream that one call of the model evaluates: the whole output table is streamed once per call.
EVALUATION_STEPS = 4096


@dataclass(frozen=True, slots=True)
class ModelSection:
    """[model]: the language model's sizes."""

    kind: Literal["lm"] = "lm"
    width: Count = 128
    hidden: Count = 256
    samples: Count = 1024
    dropout: Annotated[float, Range(0, 1)] = 0.0
    softmax: Literal["sampled", "full"] = "sampled"


@dataclass(frozen=True, slots=True)
class DataSection:
    """[data]: the text and how it is cut into batches; `streams` is the number over all ranks."""

    source: str = "stdlib"
    vocabulary: Annotated[int, Range(2)] = 50_000
    held_out: Annotated[float, Range(0, 1)] = 0.02
    streams: Count = 64
    steps: Count = 20
    cache: str = ""


class LanguageRun(Run):
    """One run of a language-model job on one compute rank."""

    defaults = Job(ModelSection(), DataSection(), checkpoint=CheckpointSection("runs/lm"))
    unit = "words"
    fixed = ("streams", "steps")

    def prepare(self) -> LanguageModel:
        """Read the text, cut it into streams, and return the model of its vocabulary."""
        section = self.job.data
        cache = Path(section.cache) if section.cache else None
        corpus = self.read(
            section.source, lambda: data.load(section.source, section.vocabulary, section.held_out, cache)
        )
        rank, ranks = self.world.compute.Get_rank(), self.world.compute.Get_size()
        self.corpus = corpus
        self.streams = data.Streams(corpus.train, section.streams, section.steps, rank, ranks)
        self.held_out, self.unigram = None, math.nan
        if len(corpus.held_out) > 1:
            self.held_out = data.held_out_streams(corpus.held_out, EVALUATION_STREAMS, EVALUATION_STEPS, rank, ranks)
            self.unigram = corpus.vocabulary.unigram_perplexity(corpus.held_out)
        vocabulary, model = len(corpus.vocabulary.words), self.job.model
        samples = min(model.samples, vocabulary)
        return LanguageModel(vocabulary, model.width, model.hidden, samples, model.dropout, model.softmax)

    def batches(self, first: int) -> Iterator[data.Batch | None]:
        """Yield this rank's windows of text."""
        self.streams.position = first
        return (batch if batch.inputs.size else None for batch in self.streams)

    def evaluate(self) -> Evaluation | None:
        """Return the held-out perplexity by the full softmax, beside the unigram model's."""
        if self.held_out is None:
            return None
        loss, words = 0.0, 0
        for batch in self.held_out.one_pass():
            batch_loss, batch_words = self.model.evaluate(batch)
            loss, words = loss + batch_loss, words + batch_words
        parts = self.world.gather((loss, words))
        loss, words = (sum(column) for column in zip(*parts, strict=True))
        perplexity = math.exp(min(loss / words, 700.0))
        return Evaluation(
            f"held-out perplexity {perplexity:.1f} on {words:,} words (unigram model: {self.unigram:.1f})",
            {"perplexity": perplexity, "unigram_perplexity": self.unigram, "words": words},
        )

    def words(self) -> list[str]:
        """Return the vocabulary."""
        return self.corpus.vocabulary.words
