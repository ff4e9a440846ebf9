"""Layers. Dense parameters live in the layers, rows of tables in the stores that a Trainer attaches."""

from hybridmpi.autograd import cross_entropy
from hybridmpi.nn.clip import clip_global_norm
from hybridmpi.nn.dropout import Dropout
from hybridmpi.nn.embedding import Embedding, Store
from hybridmpi.nn.linear import Linear
from hybridmpi.nn.lstm import LSTM
from hybridmpi.nn.module import Module
from hybridmpi.nn.sampling import LogUniform, sampled_softmax

__all__ = [
    "LSTM",
    "Dropout",
    "Embedding",
    "Linear",
    "LogUniform",
    "Module",
    "Store",
    "clip_global_norm",
    "cross_entropy",
    "sampled_softmax",
]
