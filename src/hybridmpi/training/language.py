"""Jobs of kind "lm": a language model of a text."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from hybridmpi import data
from hybridmpi.field_types import Count, FilePath, OptionalPath, Range, Share
from hybridmpi.models.lm import LanguageModel
from hybridmpi.models.prediction import Softmax
from hybridmpi.models.score import perplexity
from hybridmpi.training.job import CheckpointSection, Job
from hybridmpi.training.task import Evaluation, Task
from hybridmpi.world import World

# Held-out text is read in so many parallel streams, whatever the job's own batch: perplexities compare.
EVALUATION_STREAMS = 64

# Words of a stream that one call of the model evaluates: the whole output table is streamed once per call.
EVALUATION_STEPS = 4096


@dataclass(frozen=True, slots=True)
class ModelSection:
    """[model]: the language model's sizes."""

    kind: Annotated[Literal["lm"], "embedding, LSTM with projection, softmax over the vocabulary"] = "lm"
    width: Annotated[Count, "of the embedding rows, the LSTM's output and the output rows"] = 128
    hidden: Annotated[Count, "LSTM units, projected to width"] = 256
    samples: Annotated[Count, "candidate words of the sampled softmax, drawn anew in every step"] = 1024
    dropout: Annotated[Share, "share of the values dropped before and after the LSTM"] = 0.0
    softmax: Annotated[Softmax, '"sampled", or "full": over the whole vocabulary, for small ones'] = "sampled"


@dataclass(frozen=True, slots=True)
class DataSection:
    """[data]: the text and how it is cut into batches; `streams` is the number over all ranks."""

    source: Annotated[FilePath, '"stdlib": Python\'s standard library; or the path of a UTF-8 text file'] = "stdlib"
    vocabulary: Annotated[int, Range(2), "most frequent words kept, <unk> among them: the rows of both tables"] = 50_000
    held_out: Annotated[Share, "share of the text that is only evaluated on"] = 0.02
    streams: Annotated[Count, "parallel streams over all ranks: the global batch, whatever the number of ranks"] = 64
    steps: Annotated[Count, "words of each stream in one training step: the length of back-propagation"] = 20
    cache: Annotated[OptionalPath, 'folder for tokenised text; "": $XDG_CACHE_HOME/hybridmpi or ~/.cache/hybridmpi'] = (
        ""
    )


class LanguageTask(Task):
    """A language model of a text."""

    about = "A language model of the source code of Python's standard library: nothing to download."
    tries = ("--set training.steps=500",)
    defaults = Job(ModelSection(), DataSection(), checkpoint=CheckpointSection("runs/lm"))
    unit = "words"
    fixed = ("streams", "steps")

    def load(self) -> data.Corpus:
        """Read the text."""
        section = self.job.data
        cache = Path(section.cache) if section.cache else None
        return data.load(section.source, section.vocabulary, section.held_out, cache)

    def build(self) -> LanguageModel:
        """Return the model of the text's vocabulary."""
        vocabulary, model = len(self.data.vocabulary), self.job.model
        samples = min(model.samples, vocabulary)
        return LanguageModel(vocabulary, model.width, model.hidden, samples, model.dropout, model.softmax)

    def batches(self, first: int, rank: int, ranks: int) -> Iterator[data.Batch | None]:
        """Yield a rank's windows of the text, cut into streams."""
        streams = data.Streams(self.data.train, self.job.data.streams, self.job.data.steps, rank, ranks)
        streams.position = first
        return (batch if batch.inputs.size else None for batch in streams)

    def evaluate(self, world: World) -> Evaluation | None:
        """Return the held-out perplexity by the full softmax, beside the unigram model's."""
        held_out = self.data.held_out
        if len(held_out) < 2:
            return None
        place = world.compute.Get_rank(), world.compute.Get_size()
        loss, words = 0.0, 0
        for batch in data.held_out_streams(held_out, EVALUATION_STREAMS, EVALUATION_STEPS, *place).one_pass():
            batch_loss, batch_words = self.model.evaluate(batch)
            loss, words = loss + batch_loss, words + batch_words
        parts = world.gather((loss, words))
        loss, words = (sum(column) for column in zip(*parts, strict=True))
        reached = perplexity(loss / words)
        unigram = self.data.vocabulary.unigram_perplexity(held_out)
        return Evaluation(
            f"held-out perplexity {reached:.1f} on {words:,} words (unigram model: {unigram:.1f})",
            {"perplexity": reached, "unigram_perplexity": unigram, "words": words},
        )

    def words(self) -> list[str]:
        """Return the vocabulary."""
        return self.data.vocabulary.words
