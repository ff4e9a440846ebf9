"""The sort of the CUDA forms against numpy's stable sort, in numba's simulator. Run by test_simulator.py.

Usage: NUMBA_ENABLE_CUDASIM=1 python simulated_sort.py

With four threads a block a tile is 60 words; with two blocks at most each sorts several tiles.
"""

import importlib

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from numba import config, cuda

from hybridmpi.kernels import device

device.THREADS, device.MAX_BLOCKS = 4, 2  # set before the modules below read them
order_cuda = importlib.import_module("hybridmpi.kernels.order_cuda")
radix_cuda = importlib.import_module("hybridmpi.kernels.radix_cuda")

TILE, LONGEST = radix_cuda.TILE, np.iinfo(np.int64).max
RANDOM = np.random.default_rng(11)


def check_ids(ids, rows):
    keys, order = (array.copy_to_host() for array in order_cuda.sort_ids(cuda.to_device(ids), rows))
    expected = np.argsort(ids, kind="stable")
    assert keys.dtype == order.dtype == np.int64
    np.testing.assert_array_equal(order, expected, err_msg=f"{rows} rows: {ids.tolist()}")
    np.testing.assert_array_equal(keys, ids[expected])


def check_words(words, low, high):
    """Sort by some bits only: what is not compared keeps its order, also under words whose other bits are set."""
    found = cuda.to_device(words)
    radix_cuda.sort_words(found, low, high)
    digits = (words >> low) & ((1 << (high - low)) - 1)
    np.testing.assert_array_equal(found.copy_to_host(), words[np.argsort(digits, kind="stable")])


def check_sizes():
    for n in (0, 1, TILE - 1, TILE, TILE + 1, 5 * TILE + 7):
        check_ids(RANDOM.integers(0, 300, n), 300)
    check_ids(np.full(2 * TILE + 1, 6), 7)
    check_ids(np.arange(TILE + 1)[::-1].copy(), TILE + 1)
    check_ids(RANDOM.integers(0, 2**31, 90).astype(np.int32), 2**31)


def check_keys():
    """The largest id of a table is all ones where its rows are a power of two, as what fills the last tile is."""
    for rows in (1, 2, 2**8, 2**9, 2**16 + 1):
        check_ids(rows - 1 - RANDOM.integers(0, min(rows, 2), TILE + 3), rows)
    for rows in (2**62, LONGEST):  # too wide to pack
        check_ids(np.concatenate([[rows - 1, 0, rows - 1, 5, 0], RANDOM.integers(0, rows, TILE)]), rows)
    check_words(RANDOM.integers(-LONGEST - 1, LONGEST, 2 * TILE), 5, 20)


def check_rows_outside():
    """An id outside the table stays outside, and takes no other's place in the order."""
    ids = np.array([3, -1, LONGEST, 2, -LONGEST - 1, 40])
    keys, order = (array.copy_to_host() for array in order_cuda.sort_ids(cuda.to_device(ids), 4))
    assert sorted(order) == list(range(len(ids)))
    np.testing.assert_array_equal(keys[np.argsort(order)], [3, -1, 4, 2, -1, 4])


@settings(max_examples=25, deadline=None, database=None)
@given(st.integers(0, 3 * TILE + 2), st.integers(1, 2**20), st.integers(1, 2**20), st.integers(0, 2**32))
def check_any_ids(n, rows, different, seed):
    """Few different ids, or many, from all over the table."""
    random = np.random.default_rng(seed)
    values = random.integers(0, rows, different % 64 + 1 if seed % 2 else different)
    check_ids(random.choice(values, n), rows)


def main():
    assert config.ENABLE_CUDASIM, "start with NUMBA_ENABLE_CUDASIM=1"
    check_sizes()
    check_keys()
    check_rows_outside()
    radix_cuda.DIGIT_BITS = 5  # shorter scans, for more examples
    check_any_ids()
    print("sorted")


if __name__ == "__main__":
    main()
