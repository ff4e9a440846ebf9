"""Rates of this processor, measured in a fraction of a second: what `Machine.calibrated` takes. Local."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from hybridmpi import kernels
from hybridmpi.optim import Adagrad

# Larger than caches, so that memory is what is measured, as in a table.
COPIED_BYTES = 32 << 20
TABLE_ROWS, DIM = 1 << 17, 64

# Rows of a step; two widths tell what a row and what a byte takes.
ROWS, NARROW, WIDE = 20_000, 4, 128
REPEATS = 5


def measure_rates() -> dict[str, float]:
    """Return constants of `planning.Machine` by name, as measured on one core: rates of copies and gathers, seconds of
    aggregation and of updates. Local; takes a quarter of a second, plus compiling where a kernel has never run.

    Seconds are the processor's, so that ranks that share a core do not count each other's.
    """
    random = np.random.default_rng(1)
    copying = _copying()
    table, state = np.zeros((TABLE_ROWS, DIM), np.float32), np.ones((TABLE_ROWS, DIM), np.float32)
    ids = np.sort(random.choice(TABLE_ROWS, ROWS, replace=False))
    rows = np.ones((ROWS, DIM), np.float32)
    gathering = _fastest(lambda: kernels.gather(table, ids, out=rows))
    rule = Adagrad(0.1)
    updating = _fastest(lambda: rule.update_rows(table, {slot: state for slot in rule.slots}, ids, rows, 1))
    narrow, wide = (_aggregation(random, dim) for dim in (NARROW, WIDE))
    per_byte = max(wide - narrow, 1e-9) / (ROWS * (WIDE - NARROW) * 4)
    return {
        "memory_rate": COPIED_BYTES / copying,
        "gather_rate": rows.nbytes / gathering,
        "update_byte": updating / rows.nbytes / (1 + len(rule.slots)),
        "aggregate_byte": per_byte,
        "aggregate_row": max(narrow - ROWS * NARROW * 4 * per_byte, 1e-9) / ROWS,
    }


def _copying() -> float:
    source, target = np.zeros(COPIED_BYTES, np.uint8), np.ones(COPIED_BYTES, np.uint8)
    return _fastest(lambda: np.copyto(target, source))


def _aggregation(random: np.random.Generator, dim: int) -> float:
    ids, values = random.integers(0, ROWS, ROWS), np.ones((ROWS, dim), np.float32)
    return _fastest(lambda: kernels.aggregate(ids, values, TABLE_ROWS))


def _fastest(function: Callable[[], object]) -> float:
    function()  # compiles, and faults pages in
    times = []
    for _ in range(REPEATS):
        started = time.thread_time()
        function()
        times.append(time.thread_time() - started)
    return min(times)
