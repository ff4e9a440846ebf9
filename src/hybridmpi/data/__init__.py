"""Training data: corpora, click logs, streams of batches, sharding, prefetching, synthetic data. All of it is Local."""

from hybridmpi.data.bleu import bleu, bleu_counts
from hybridmpi.data.clicks import ClickBatch, Clicks, held_out_batches, training_batches
from hybridmpi.data.corpus import Corpus, load
from hybridmpi.data.generated_clicks import GeneratedClicks
from hybridmpi.data.open_bandit import OpenBandit
from hybridmpi.data.pair_batches import PairBatch, PairBatches, held_out_pair_batches
from hybridmpi.data.parallel import ParallelText, load_parallel
from hybridmpi.data.prefetch import Prefetch
from hybridmpi.data.sentences import Pairs, Sentences
from hybridmpi.data.sharding import block, shard
from hybridmpi.data.streams import Batch, Streams, held_out_streams
from hybridmpi.data.synthetic import ZipfStreams
from hybridmpi.data.vocabulary import Vocabulary

__all__ = [
    "Batch",
    "ClickBatch",
    "Clicks",
    "Corpus",
    "GeneratedClicks",
    "OpenBandit",
    "PairBatch",
    "PairBatches",
    "Pairs",
    "ParallelText",
    "Prefetch",
    "Sentences",
    "Streams",
    "Vocabulary",
    "ZipfStreams",
    "bleu",
    "bleu_counts",
    "block",
    "held_out_batches",
    "held_out_pair_batches",
    "held_out_streams",
    "load",
    "load_parallel",
    "shard",
    "training_batches",
]
