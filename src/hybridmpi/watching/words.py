"""Numbers as people read them, and bars and curves made of characters."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np


class Glyphs(NamedTuple):
    """The characters that a curve and a bar are made of: `levels` from low to high."""

    levels: str
    full: str
    empty: str
    dash: str


BLOCKS = Glyphs("▁▂▃▄▅▆▇█", "█", "░", "·")
ASCII = Glyphs("_.-=+*%#", "#", ".", "|")


def glyphs(encoding: str | None) -> Glyphs:
    """Return the characters that an output of this encoding can show. Local."""
    try:
        "".join(BLOCKS).encode(encoding or "ascii")
    except (LookupError, UnicodeEncodeError):
        return ASCII
    return BLOCKS


def duration(seconds: float) -> str:
    """Return '480 us', '69 ms', '2.7 s', '45 s', '12 min', '3 h 20 min', '2 d 3 h'. Local."""
    if not math.isfinite(seconds):
        return "?"
    if seconds < 9.95:
        short = f"{seconds * 1e6:.0f} us" if seconds < 0.9995e-3 else f"{_digits(seconds * 1e3)} ms"
        return short if seconds < 0.9995 else f"{seconds:.1f} s"
    if seconds < 100:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    if minutes < 100:
        return f"{minutes} min"
    hours = round(seconds / 3600)
    return f"{minutes // 60} h {minutes % 60} min" if minutes < 24 * 60 else f"{hours // 24} d {hours % 24} h"


def size(count: float) -> str:
    """Return bytes as '512 B', '1.5 MB'. Local."""
    return f"{scaled(count)}B"


def scaled(value: float) -> str:
    """Return a number with the SI prefix of its size, as '18.4 k', which a unit follows. Local."""
    if not math.isfinite(value):
        return "? "
    for prefix in ("", "k", "M", "G", "T"):
        if abs(value) < 999.5 or prefix == "T":
            break
        value /= 1000
    return f"{value:.0f} " if prefix == "" and value == int(value) else f"{_digits(value)} {prefix}"


def number(value: float) -> str:
    """Return a loss or the like to four digits. Local."""
    return f"{value:.4g}" if math.isfinite(value) else str(value)


def _digits(value: float) -> str:
    """Return three digits of a number below 1000."""
    rounded = max(abs(float(f"{value:.3g}")), 0.01)
    return f"{value:.{max(0, 2 - math.floor(math.log10(rounded)))}f}"


def bar(share: float, width: int, of: Glyphs) -> str:
    """Return a bar of `width` characters, full up to a share from 0 to 1. Local."""
    full = round(width * min(1.0, max(0.0, share)))
    return of.full * full + of.empty * (width - full)


def sparkline(values: Sequence[float] | np.ndarray, width: int, of: Glyphs) -> str:
    """Return a curve of at most `width` characters: means of equal stretches, a blank where nothing is finite. Local.

    Positive values that differ much are shown by their logarithms, and the highest fiftieth as one: a loss often begins
    with a peak that would leave the rest of the curve flat.
    """
    values = np.asarray(values, np.float64)
    finite = np.isfinite(values)
    if not finite.any():
        return ""
    stretches = np.array_split(values, min(width, len(values)))
    means = np.array([part[np.isfinite(part)].mean() if np.isfinite(part).any() else np.nan for part in stretches])
    known = means[np.isfinite(means)]
    low, high = known.min(), np.quantile(known, 0.98)
    if high - low < 0.001 * abs(high):
        low = high  # what looks like a change would be rounding
    if low > 0 and high > 2 * low:
        means, low, high = np.log(means), math.log(low), math.log(high)
    share = np.clip((means - low) / (high - low), 0, 1) if high > low else np.where(np.isfinite(means), 0.5, np.nan)
    top = len(of.levels) - 1
    return "".join(" " if math.isnan(s) else of.levels[round(s * top)] for s in share)
