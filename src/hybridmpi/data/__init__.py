"""Training data: corpora, streams of batches, sharding, prefetching, synthetic text. Everything here is Local."""

from hybridmpi.data.corpus import Corpus, load
from hybridmpi.data.prefetch import Prefetch
from hybridmpi.data.sharding import block, shard
from hybridmpi.data.streams import Batch, Streams, held_out_streams
from hybridmpi.data.synthetic import ZipfStreams
from hybridmpi.data.vocabulary import Vocabulary

__all__ = [
    "Batch",
    "Corpus",
    "Prefetch",
    "Streams",
    "Vocabulary",
    "ZipfStreams",
    "block",
    "held_out_streams",
    "load",
    "shard",
]
