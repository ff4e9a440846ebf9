"""How much of what is to be told about vertices a model tells right, at all of them and at roots."""

from __future__ import annotations

import math
from dataclasses import astuple, dataclass

import numpy as np

from hybridmpi.graphs import Graphs

# More than this, exp has no double for.
LARGEST_LOSS = 700.0


def perplexity(loss: float) -> float:
    """Return exp of a mean loss in nats, of LARGEST_LOSS at most: one that has diverged is told, too. Local."""
    return math.exp(min(loss, LARGEST_LOSS))


@dataclass(frozen=True, slots=True)
class Score:
    """Sums over labelled vertices, of which parts can be added.

    loss: of -log of the probability of the label. vertices, roots: how many there are; right, roots_right: of how many
    of them the label is the likeliest class. polar, polar_right: roots whose label is not the neutral class, and of how
    many of them the classes of its side are together likelier than those of the other (Socher et al. 2013, section 5).
    """

    loss: float = 0.0
    vertices: int = 0
    right: int = 0
    roots: int = 0
    roots_right: int = 0
    polar: int = 0
    polar_right: int = 0

    def __add__(self, other: Score) -> Score:
        return Score(*(one + two for one, two in zip(astuple(self), astuple(other), strict=True)))


def score(graphs: Graphs, logits: np.ndarray, neutral: int | None = None) -> Score:
    """Return the score of the logits of all vertices, float [V, classes]. Local.

    neutral: the class between the negative ones, below it, and the positive ones; None where classes have no order.
    """
    labelled = np.flatnonzero(graphs.data["label"] >= 0)
    label, logits = graphs.data["label"][labelled], logits[labelled]
    shifted = logits.astype(np.float64) - logits.max(axis=1, keepdims=True)
    chances = np.exp(shifted)
    totals = chances.sum(axis=1)
    loss = np.log(totals) - shifted[np.arange(len(label)), label]
    right = logits.argmax(axis=1) == label
    is_root = np.isin(labelled, graphs.roots(), assume_unique=True)
    polar, polar_right = 0, 0
    if neutral is not None:
        chosen = is_root & (label != neutral)
        positive = chances[chosen, neutral + 1 :].sum(axis=1) > chances[chosen, :neutral].sum(axis=1)
        polar, polar_right = len(positive), int(np.count_nonzero(positive == (label[chosen] > neutral)))
    counts = len(label), right.sum(), is_root.sum(), (right & is_root).sum()
    return Score(float(loss.sum()), *map(int, counts), polar, polar_right)
