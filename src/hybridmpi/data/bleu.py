"""BLEU of a whole set of translations (Papineni et al. 2002, ACL P02-1040), with one reference for each."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

import numpy as np

ORDERS = 4
"""Sequences of one to so many words are compared."""


def bleu_counts(translations: Sequence[Sequence[int]], references: Sequence[Sequence[int]]) -> np.ndarray:
    """Return what BLEU is computed from, int64 [2 + 2 * ORDERS]: sums over sentences, so those of ranks add up. Local.

    Words of the translations and of the references; then, for each order, the n-grams of the translations, and how many
    of them the reference has (each at most as often as it has it). Words are anything hashable.
    """
    counts = np.zeros(2 + 2 * ORDERS, np.int64)
    for translation, reference in zip(translations, references, strict=True):
        counts[:2] += len(translation), len(reference)
        for order in range(1, ORDERS + 1):
            found, wanted = _ngrams(translation, order), _ngrams(reference, order)
            counts[2 * order] += found.total()
            counts[2 * order + 1] += (found & wanted).total()
    return counts


def bleu(counts: np.ndarray) -> float:
    """Return BLEU in [0, 1] of (sums of) `bleu_counts`. Local.

    exp(min(0, 1 - r / c)) times the geometric mean of the shares of n-grams that the references have, c and r being the
    words of translations and references. 0 where an order has no match at all, as without smoothing.
    """
    translated, reference, *ngrams = (int(count) for count in counts)
    found, matched = ngrams[::2], ngrams[1::2]
    if not all(matched):
        return 0.0
    shares = sum(math.log(m / f) for m, f in zip(matched, found, strict=True)) / ORDERS
    return math.exp(min(0.0, 1 - reference / translated) + shares)


def _ngrams(words: Sequence[int], order: int) -> Counter[tuple[int, ...]]:
    words = tuple(words)
    return Counter(words[first : first + order] for first in range(len(words) - order + 1))
