"""Training data: corpora, click logs, streams of batches, sharding, prefetching, synthetic data. All of it is Local."""

from hybridmpi.data.clicks import ClickBatch, Clicks, held_out_batches, training_batches
from hybridmpi.data.corpus import Corpus, load
from hybridmpi.data.generated_clicks import GeneratedClicks
from hybridmpi.data.open_bandit import OpenBandit
from hybridmpi.data.prefetch import Prefetch
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
    "Prefetch",
    "Streams",
    "Vocabulary",
    "ZipfStreams",
    "block",
    "held_out_batches",
    "held_out_streams",
    "load",
    "shard",
    "training_batches",
]
