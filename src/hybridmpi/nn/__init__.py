"""Layers. Dense parameters live in the layers, rows of tables in the stores that a Trainer attaches."""

from hybridmpi.autograd import binary_cross_entropy, cross_entropy, pairwise_dots
from hybridmpi.nn.clip import clip_global_norm
from hybridmpi.nn.dropout import Dropout
from hybridmpi.nn.embedding import Embedding, Store
from hybridmpi.nn.embedding_bag import EmbeddingBag
from hybridmpi.nn.linear import Linear
from hybridmpi.nn.lstm import LSTM
from hybridmpi.nn.module import Module
from hybridmpi.nn.sampling import LogUniform, sampled_softmax

__all__ = [
    "LSTM",
    "Dropout",
    "Embedding",
    "EmbeddingBag",
    "Linear",
    "LogUniform",
    "Module",
    "Store",
    "binary_cross_entropy",
    "clip_global_norm",
    "cross_entropy",
    "pairwise_dots",
    "sampled_softmax",
]
