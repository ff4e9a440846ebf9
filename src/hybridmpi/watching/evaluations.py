"""What evaluations are about: a loss beside that of training, scores, numbers of others."""

from __future__ import annotations

import math
from collections.abc import Mapping

# What tables or constants tell without training, and the time it took, are not what the model is told by.
_OF_OTHERS = ("unigram_", "base_", "best_")
_SCORES = {
    "bleu": "BLEU",
    "auc": "AUC",
    "root_accuracy": "accuracy at roots",
    "accuracy": "accuracy",
}


def told(values: Mapping[str, float]) -> dict[str, float]:
    """Return what an evaluation says of the model, by its name in words: numbers that are no counts. Local."""
    return {
        _SCORES.get(name, name.replace("_", " ")): value
        for name, value in values.items()
        if isinstance(value, float) and name != "seconds" and not name.startswith(_OF_OTHERS)
    }


def held_out_loss(values: Mapping[str, float]) -> float:
    """Return the loss on held-out data in nats, as the loss of training is; NaN if it is not said. Local."""
    for name in ("loss", "log_loss"):
        if name in values:
            return float(values[name])
    perplexity = values.get("perplexity", math.nan)
    return math.log(perplexity) if perplexity > 0 else math.nan


def score(values: Mapping[str, float]) -> tuple[str, float] | None:
    """Return the name and the value of the score that people ask for first; None without any. Local."""
    return next(((name, float(values[key])) for key, name in _SCORES.items() if key in values), None)
