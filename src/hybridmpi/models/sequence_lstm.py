"""An LSTM over sequences of their true lengths, as chains: no padding (Hochreiter and Schmidhuber 1997, with the forget
gate of Gers et al. 2000)."""

from __future__ import annotations

from typing import Any

import numpy as np

from hybridmpi.autograd import sigmoid, tanh
from hybridmpi.dynamic import Vertex, VertexFunction
from hybridmpi.field_types import Count, Share, checks_arguments
from hybridmpi.graphs import Graphs
from hybridmpi.models.vertex_classifier import VertexClassifier
from hybridmpi.nn import Linear


class Step(VertexFunction):
    """One step: its child is the step before, zeros at the first one. Gates in the order i, f, o, and the update u."""

    @checks_arguments
    def __init__(self, width: Count, hidden: Count, dtype: Any = np.float32) -> None:
        self.inputs = Linear(width, 4 * hidden, dtype=dtype)
        self.state = Linear(hidden, 4 * hidden, bias=False, dtype=dtype)
        self.hidden = hidden

    def vertex(self, v: Vertex) -> None:
        """Compute a step."""
        before, n = v.gather(0), self.hidden
        gates = self.inputs(v.pull("word")) + self.state(before.h)
        i, f, o, u = (gates[:, k * n : (k + 1) * n] for k in range(4))
        c = sigmoid(i) * tanh(u) + sigmoid(f) * before.c
        h = sigmoid(o) * tanh(c)
        v.scatter(h=h, c=c)
        v.push(h=h)


class SequenceLSTM(VertexClassifier):
    """Tells the label of steps of chains (type "step", see graphs.chains) from all steps up to it.

    Tables: `words` [words, width].
    """

    @checks_arguments
    def __init__(
        self,
        words: Count,
        labels: Count,
        width: Count = 100,
        hidden: Count = 100,
        dropout: Share = 0.0,
        dtype: Any = np.float32,
    ) -> None:
        self.step = Step(width, hidden, dtype)
        state = {"h": hidden, "c": hidden}
        super().__init__(words, labels, width, hidden, {"step": self.step}, state, dropout, dtype)

    def multiplications(self, graphs: Graphs, words: int) -> float:
        """Return the multiplications of the functions' products, forward, in graphs with so many different words.
        Local."""
        return words * self.step.inputs.weight.size + graphs.vertices * self.step.state.weight.size
