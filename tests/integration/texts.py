"""A text that a small model learns in seconds: every word has a few likely successors."""

from __future__ import annotations

from pathlib import Path

import numpy as np

WORDS = 60
SUCCESSORS = 3
SEED = 11


def markov_text(words: int) -> str:
    """Return so many words, a line for every ten: the first successor of a word follows it half the time, and the
    start words are Zipf distributed, so that knowing the last word is worth much more than knowing frequencies."""
    random = np.random.default_rng(SEED)
    zipf = np.arange(1, WORDS + 1) ** -0.3
    successors = np.array([random.choice(WORDS, SUCCESSORS, replace=False, p=zipf / zipf.sum()) for _ in range(WORDS)])
    choices = random.choice(SUCCESSORS, words, p=[0.7, 0.2, 0.1])
    jumps = random.random(words) < 0.05
    anywhere = random.integers(0, WORDS, words)
    word, lines, line = 0, [], []
    for choice, jump, other in zip(choices.tolist(), jumps.tolist(), anywhere.tolist(), strict=True):
        word = other if jump else int(successors[word, choice])
        line.append(f"w{word}")
        if len(line) == 10:
            lines.append(" ".join(line))
            line = []
    return "\n".join([*lines, " ".join(line)]) + "\n"


def write_text(path: Path, words: int = 60_000) -> Path:
    """Write the text and return its path."""
    path.write_text(markov_text(words), encoding="utf-8")
    return path
