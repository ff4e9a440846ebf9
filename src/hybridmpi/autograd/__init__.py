"""A small automatic differentiation over numpy or cupy arrays: `tensor.py` is the idea, the others operations."""

from hybridmpi.autograd import draws, operators  # operators: gives Tensor its operators
from hybridmpi.autograd.attention import attention
from hybridmpi.autograd.elementwise import (
    add,
    divide,
    dropout,
    exp,
    log,
    multiply,
    negative,
    power,
    relu,
    sigmoid,
    subtract,
    tanh,
)
from hybridmpi.autograd.embedding import gather_rows, pulled_rows, sum_bags
from hybridmpi.autograd.interaction import pairwise_dots
from hybridmpi.autograd.linear import linear, matmul
from hybridmpi.autograd.logistic import binary_cross_entropy, logistic_loss
from hybridmpi.autograd.lstm import LSTMWeights, lstm
from hybridmpi.autograd.parameter import Parameter
from hybridmpi.autograd.reduction import mean, sum
from hybridmpi.autograd.sampled_softmax import sampled_softmax
from hybridmpi.autograd.shape import concatenate, index, reshape, transpose
from hybridmpi.autograd.softmax import cross_entropy
from hybridmpi.autograd.tensor import Tensor, is_recording, needs_gradient, no_grad, record

__all__ = [
    "LSTMWeights",
    "Parameter",
    "Tensor",
    "add",
    "attention",
    "binary_cross_entropy",
    "concatenate",
    "cross_entropy",
    "divide",
    "draws",
    "dropout",
    "exp",
    "gather_rows",
    "index",
    "is_recording",
    "linear",
    "log",
    "logistic_loss",
    "lstm",
    "matmul",
    "mean",
    "multiply",
    "needs_gradient",
    "negative",
    "no_grad",
    "operators",
    "pairwise_dots",
    "power",
    "pulled_rows",
    "record",
    "relu",
    "reshape",
    "sampled_softmax",
    "sigmoid",
    "subtract",
    "sum",
    "sum_bags",
    "tanh",
    "transpose",
]
