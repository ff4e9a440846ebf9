"""Training data: corpora, click logs, graphs, streams of batches, sharding, prefetching. All of it is Local."""

from hybridmpi.data.bleu import bleu, bleu_counts
from hybridmpi.data.clicks import ClickBatch, Clicks, held_out_batches, training_batches
from hybridmpi.data.corpus import Corpus, load
from hybridmpi.data.generated_clicks import GeneratedClicks
from hybridmpi.data.graph_batches import GraphBatch, GraphBatches, deal, held_out_graph_batches
from hybridmpi.data.labelled_graphs import LabelledGraphs
from hybridmpi.data.leaf_chains import as_sequences, leaf_chains
from hybridmpi.data.open_bandit import OpenBandit
from hybridmpi.data.pair_batches import PairBatch, PairBatches, held_out_pair_batches
from hybridmpi.data.parallel import ParallelText, load_parallel
from hybridmpi.data.prefetch import Prefetch
from hybridmpi.data.sentences import Pairs, Sentences
from hybridmpi.data.sharding import block, shard
from hybridmpi.data.streams import Batch, Streams, held_out_streams
from hybridmpi.data.syntax_trees import load_syntax_trees
from hybridmpi.data.synthetic import ZipfStreams
from hybridmpi.data.treebank import load_treebank
from hybridmpi.data.variable_graphs import load_variable_graphs
from hybridmpi.data.vocabulary import Vocabulary

__all__ = [
    "Batch",
    "ClickBatch",
    "Clicks",
    "Corpus",
    "GeneratedClicks",
    "GraphBatch",
    "GraphBatches",
    "LabelledGraphs",
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
    "as_sequences",
    "bleu",
    "bleu_counts",
    "block",
    "deal",
    "held_out_batches",
    "held_out_graph_batches",
    "held_out_pair_batches",
    "held_out_streams",
    "leaf_chains",
    "load",
    "load_parallel",
    "load_syntax_trees",
    "load_treebank",
    "load_variable_graphs",
    "shard",
    "training_batches",
]
