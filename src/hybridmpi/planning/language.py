"""What a step of the language model (models/lm.py) touches and computes, as a workload's numbers."""

from __future__ import annotations

import numpy as np

from hybridmpi.planning.sparsity import Counted, Draws, EveryRow, LogUniform


def language_model_draws(counts: np.ndarray, words: float, samples: int | None) -> dict[str, list[Draws]]:
    """Return what a rank draws from each table in a step of `words` words. Local.

    `counts` [vocabulary]: of the words in the training text. Inputs and targets follow them, as if words came
    independently of each other: those of one stream repeat more often than that, those of many streams hardly.
    `samples`: candidates of the sampled softmax, drawn once for all ranks; None: the full softmax, all rows.
    """
    text = Draws(Counted(counts), words)
    rows = len(counts)
    candidates = Draws(EveryRow(rows), 1, True) if samples is None else Draws(LogUniform(rows), samples, True)
    return {"embedding": [text], "output": [text, candidates], "bias": [text, candidates]}


def language_model_flops(words: float, inputs: float, classes: float, width: int, hidden: int) -> float:
    """Return the additions and multiplications of the matrix products of one rank's forward and backward. Local.

    `inputs`: distinct words of the step, which the input products run over; `classes`: rows of the output table in the
    softmax. Backward costs twice forward: a product for the input's gradient, one for the weights'.
    """
    gates = inputs * width + words * width  # of the input row, of the projected output before
    return 3 * 2 * (gates * 4 * hidden + words * hidden * width + words * classes * width)
