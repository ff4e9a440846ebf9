"""Jobs of kind "nmt": the translation of sentences."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import numpy as np

from hybridmpi import data
from hybridmpi.data.bleu import ORDERS as BLEU_ORDERS
from hybridmpi.data.parallel import END
from hybridmpi.field_types import Count, FilePath, OptionalPath, Range, Share
from hybridmpi.models.nmt import TranslationModel
from hybridmpi.models.prediction import Softmax
from hybridmpi.models.score import perplexity
from hybridmpi.optim import Adagrad
from hybridmpi.training.job import CheckpointSection, Job, TrainingSection
from hybridmpi.training.task import Evaluation, Task
from hybridmpi.world import World

# Held-out sentences that one call of the model evaluates on all ranks together, and how many are translated.
EVALUATION_SENTENCES = 256
TRANSLATED_SENTENCES = 512


@dataclass(frozen=True, slots=True)
class ModelSection:
    """[model]: the translation model's sizes."""

    kind: Annotated[
        Literal["nmt"],
        "bidirectional LSTM encoder, LSTM decoder with attention, softmax over the target's vocabulary",
    ] = "nmt"
    width: Annotated[Count, "of the embedding rows of both languages and of the output rows"] = 128
    hidden: Annotated[Count, "LSTM units of the encoder in each direction; the decoder has twice as many"] = 128
    samples: Annotated[Count, "candidate words of the sampled softmax, drawn anew in every step"] = 512
    dropout: Annotated[Share, "share dropped of the encoder's memory and of what words are predicted from"] = 0.0
    softmax: Annotated[Softmax, '"sampled", or "full": over the whole vocabulary, for small ones'] = "sampled"


@dataclass(frozen=True, slots=True)
class DataSection:
    """[data]: the parallel text; `vocabulary` of each side, `sentences` is the number over all ranks."""

    source: Annotated[
        FilePath, '"stdlib": statements of Python\'s standard library; or the path of a UTF-8 file, a sentence a line'
    ] = "stdlib"
    target: Annotated[
        OptionalPath, 'the file with the translation of each line; "" for "stdlib": the statements\' syntax trees'
    ] = ""
    vocabulary: Annotated[
        int, Range(3), "most frequent words kept on each side, <unk> and <end> among them: the rows of the tables"
    ] = 8_000
    longest: Annotated[Count, "words that a sentence may have on either side; longer pairs are left out"] = 30
    most: Annotated[Count, "pairs read at most"] = 100_000
    held_out: Annotated[Share, "share of the pairs that is only evaluated on"] = 0.05
    sentences: Annotated[Count, "pairs in one step over all ranks: the global batch, whatever the number of ranks"] = 64
    cache: Annotated[
        OptionalPath, 'folder for the text as ids; "": $XDG_CACHE_HOME/hybridmpi or ~/.cache/hybridmpi'
    ] = ""


class TranslationTask(Task):
    """The translation of sentences."""

    about = "Translation of statements of Python into their syntax trees: nothing to download."
    tries = ("--set training.steps=500", "--set data.source=text.en --set data.target=text.de")
    defaults = Job(
        ModelSection(),
        DataSection(),
        Adagrad(rate=0.05, initial=1e-4),
        training=TrainingSection(steps=3000),
        checkpoint=CheckpointSection("runs/nmt"),
    )
    unit = "words"
    fixed = ("source", "target", "longest", "most", "held_out", "sentences", "training.seed")

    def load(self) -> data.ParallelText:
        """Read the parallel text."""
        section = self.job.data
        cache = Path(section.cache) if section.cache else None
        return data.load_parallel(
            section.source, section.target, section.vocabulary, section.longest, section.most, section.held_out, cache
        )

    def build(self) -> TranslationModel:
        """Return the model of the text's vocabularies."""
        model = self.job.model
        vocabularies = len(self.data.source_vocabulary), len(self.data.target_vocabulary)
        samples = min(model.samples, vocabularies[1])
        return TranslationModel(*vocabularies, model.width, model.hidden, samples, model.dropout, model.softmax)

    def batches(self, first: int, rank: int, ranks: int) -> Iterator[data.PairBatch | None]:
        """Yield a rank's share of the batches of sentence pairs."""
        batches = data.PairBatches(self.data.train, self.job.data.sentences, self.job.training.seed, rank, ranks)
        batches.position = first
        return (batch if batch.weight else None for batch in batches)

    def evaluate(self, world: World) -> Evaluation | None:
        """Return the held-out perplexity by the full softmax beside the unigram model's, and for a sample of greedy
        translations BLEU and the share of exact ones. A word that is not in the vocabulary counts as `<unk>`."""
        held_out, vocabulary = self.data.held_out, self.data.target_vocabulary
        if not len(held_out):
            return None
        place = world.compute.Get_rank(), world.compute.Get_size()
        mine = np.zeros(4 + 2 + 2 * BLEU_ORDERS)  # loss, words, sentences, exact ones, and what BLEU is made of
        for batch in data.held_out_pair_batches(held_out, EVALUATION_SENTENCES, *place).one_pass():
            mine[:2] += self.model.evaluate(batch)
        end = int(vocabulary.encode([END])[0])
        sample = held_out.sample(TRANSLATED_SENTENCES)
        for batch in data.held_out_pair_batches(sample, EVALUATION_SENTENCES, *place).one_pass():
            found = self.model.translate(batch, end, self.job.data.longest)
            wanted = [words[: n - 1] for words, n in zip(batch.target, batch.target_lengths, strict=True)]
            mine[2] += len(wanted)
            mine[3] += sum(map(np.array_equal, found, wanted))
            mine[4:] += data.bleu_counts(found, wanted)
        loss, words, translated, exact, *counts = sum(world.gather(mine))
        reached, unigram = perplexity(loss / words), vocabulary.unigram_perplexity(held_out.target.words)
        score, exact = data.bleu(counts), float(exact / translated)
        return Evaluation(
            f"held-out perplexity {reached:.2f} on {words:,.0f} words (unigram model: {unigram:.1f}), "
            f"BLEU {100 * score:.1f} and {exact:.1%} exact on {translated:,.0f} sentences",
            {
                "perplexity": reached,
                "unigram_perplexity": unigram,
                "words": int(words),
                "bleu": score,
                "exact": exact,
                "sentences": int(translated),
            },
        )

    def words(self) -> list[str]:
        """Return both vocabularies, the source's first."""
        return [*self.data.source_vocabulary.words, *self.data.target_vocabulary.words]

    def words_begin(self) -> dict[str, int]:
        """Return where the words of each table begin."""
        begin = len(self.data.source_vocabulary.words)
        return {"source": 0, "target": begin, "output": begin, "bias": begin}
