"""Optimisers with a dense and a row form."""

from hybridmpi.optim.description import OPTIMIZERS, by_name, from_description
from hybridmpi.optim.rules import SGD, Adagrad, Adam, Momentum, Optimizer

__all__ = ["OPTIMIZERS", "SGD", "Adagrad", "Adam", "Momentum", "Optimizer", "by_name", "from_description"]
