"""Streams, shards, prefetching and synthetic text."""

import gc
import threading
import time
from itertools import islice

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hybridmpi.data import Prefetch, Streams, ZipfStreams, block, held_out_streams, shard
from hybridmpi.errors import DataError, UsageError

SIZES = st.tuples(st.integers(2, 200), st.integers(1, 9), st.integers(1, 7), st.integers(1, 11))


@given(st.integers(0, 50), st.integers(1, 12))
def test_block_covers_everything_evenly(total, count):
    parts = [block(total, index, count) for index in range(count)]
    assert [i for first, length in parts for i in range(first, first + length)] == list(range(total))
    assert max(length for _, length in parts) - min(length for _, length in parts) <= 1


@given(st.lists(st.integers()), st.integers(1, 7))
def test_shards_are_every_kth(items, count):
    for index in range(count):
        assert list(shard(iter(items), index, count)) == [x for i, x in enumerate(items) if i % count == index]


def test_impossible_shards_are_refused():
    for index, count in ((3, 3), (-1, 3), (0, 0)):
        with pytest.raises(UsageError, match="shard"):
            shard([], index, count)
        with pytest.raises(UsageError, match="shard"):
            block(10, index, count)


@given(SIZES)
def test_streams_on_any_number_of_ranks_read_the_same_words(sizes):
    n, streams, steps, ranks = sizes
    tokens = np.arange(n, dtype=np.int32)
    length = (n - 1) // streams
    if length < steps:
        with pytest.raises(DataError, match=f"at least {streams * steps + 1} are needed"):
            Streams(tokens, streams, steps)
        return
    readers = [Streams(tokens, streams, steps, rank, ranks) for rank in range(ranks)]
    epoch = readers[0].batches_per_epoch
    assert epoch == length // steps
    for position, batches in enumerate(islice(zip(*readers, strict=True), 2 * epoch)):
        inputs, targets = (np.concatenate([getattr(b, name) for b in batches]) for name in ("inputs", "targets"))
        start = position % epoch * steps
        expected = np.arange(streams)[:, None] * length + np.arange(start, start + steps)
        assert np.array_equal(inputs, expected)
        assert np.array_equal(targets, expected + 1)
        assert sum(b.weight for b in batches) == streams * steps
        assert {(b.position, b.new_epoch) for b in batches} == {(position, position % epoch == 0)}
        assert [b.first_stream for b in batches] == [block(streams, rank, ranks)[0] for rank in range(ranks)]
        assert all(a.dtype == np.int64 and a.flags.c_contiguous for b in batches for a in (b.inputs, b.targets))


@given(SIZES)
def test_one_pass_predicts_each_word_once(sizes):
    n, streams, steps, ranks = sizes
    tokens = np.arange(n, dtype=np.int32)
    readers = [held_out_streams(tokens, streams, steps, rank, ranks) for rank in range(ranks)]
    passes = [list(reader.one_pass()) for reader in readers]
    assert len({len(batches) for batches in passes}) == 1
    seen = np.concatenate([b.targets.ravel() for batches in passes for b in batches])
    before = np.concatenate([b.inputs.ravel() for batches in passes for b in batches])
    assert np.array_equal(seen, before + 1)
    assert len(np.unique(seen)) == len(seen)
    assert n - 1 - len(seen) < streams
    assert all(batches[0].new_epoch and not any(b.new_epoch for b in batches[1:]) for batches in passes)


def test_position_resumes_anywhere():
    tokens = np.arange(1000)
    through = list(islice(Streams(tokens, 4, 7), 100))
    resumed = Streams(tokens, 4, 7)
    resumed.position = through[59].position + 1
    for expected, batch in zip(through[60:], resumed, strict=False):
        assert np.array_equal(batch.inputs, expected.inputs)
        assert (batch.position, batch.new_epoch) == (expected.position, expected.new_epoch)
    assert resumed.position == 60


def test_too_short_and_wrong_arguments():
    assert Streams(np.arange(13), 4, 3).batches_per_epoch == 1
    with pytest.raises(DataError, match="12 words are too few for 4 streams of 3 steps: at least 13"):
        Streams(np.arange(12), 4, 3)
    with pytest.raises(DataError, match="0 words"):
        Streams(np.arange(0), 1, 1)
    with pytest.raises(UsageError, match=r"Streams\.streams = 0 .*at least 1"):
        Streams(np.arange(12), 0, 3)
    with pytest.raises(UsageError, match="shard 2 of 2"):
        Streams(np.arange(100), 4, 3, 2, 2)
    with pytest.raises(DataError, match="1 words"):
        held_out_streams(np.arange(1), 4, 3)


def test_rank_without_streams_has_empty_batches():
    batch = next(iter(Streams(np.arange(100), 2, 5, rank=2, ranks=3)))
    assert batch.inputs.shape == batch.targets.shape == (0, 5)
    assert batch.weight == 0


def test_prefetch_gives_the_same_elements():
    with Prefetch(range(100), depth=3) as elements:
        assert list(elements) == list(range(100))
        assert next(elements, "ended") == "ended"


def test_prefetch_stays_ahead_by_its_depth_only():
    made = []
    with Prefetch((made.append(i) or i for i in range(100)), depth=2) as elements:
        assert next(elements) == 0
        wait_for(lambda: len(made) == 4)  # one consumed, two ready, one in the thread's hands
        time.sleep(0.05)
        assert len(made) == 4


def test_prefetch_raises_errors_after_what_was_made_before():
    def failing():
        yield 1
        yield 2
        raise KeyError("broken input")

    elements = Prefetch(failing(), depth=5)
    wait_for(lambda: not elements._thread.is_alive())
    assert [next(elements), next(elements)] == [1, 2]
    with pytest.raises(KeyError, match="broken input"):
        next(elements)
    assert list(elements) == []
    elements.close()


def test_prefetch_closes_early_and_twice_and_cleans_up():
    closed = threading.Event()

    def endless():
        try:
            while True:
                yield 0
        finally:
            closed.set()

    elements = Prefetch(endless())
    next(elements)
    start = time.perf_counter()
    elements.close()
    elements.close()
    assert time.perf_counter() - start < 2
    assert closed.is_set() and not elements._thread.is_alive()
    assert list(elements) == []


def test_prefetch_of_what_is_not_iterable_and_depth():
    with pytest.raises(TypeError), Prefetch(3) as elements:
        next(elements)
    with pytest.raises(UsageError, match=r"Prefetch\.depth = 0 "):
        Prefetch([], 0)


def test_closed_prefetch_wakes_a_waiting_consumer():
    gate = threading.Event()

    def stuck():
        gate.wait(10)
        yield 1

    elements = Prefetch(stuck())
    got = []
    consumer = threading.Thread(target=lambda: got.extend(elements))
    consumer.start()
    closer = threading.Thread(target=elements.close)
    closer.start()
    consumer.join(5)
    assert not consumer.is_alive() and got == []
    gate.set()
    closer.join(5)
    gc.collect()


def wait_for(condition, seconds=5.0):
    end = time.perf_counter() + seconds
    while not condition():
        assert time.perf_counter() < end, "waited in vain"
        time.sleep(0.002)


def test_zipf_draws_as_the_peers_feed_does():
    """shared/peers/lm_model.py Feed, without its negative samples."""
    vocabulary, exponent, streams, steps, seed, rank = 50, 1.1, 4, 6, 7, 0
    random = np.random.default_rng([seed, rank])
    weights = np.arange(1, vocabulary + 1, dtype=np.float64) ** -exponent
    cumulated = np.cumsum(weights) / weights.sum()

    def draw(*shape):
        return np.minimum(np.searchsorted(cumulated, random.random(shape)), vocabulary - 1).astype(np.int64)

    last = draw(streams, 1)
    for batch in islice(ZipfStreams(vocabulary, exponent, streams, steps, seed), 5):
        window = np.concatenate([last, draw(streams, steps)], axis=1)
        last = window[:, -1:]
        assert np.array_equal(batch.inputs, window[:, :-1])
        assert np.array_equal(batch.targets, window[:, 1:])
        assert batch.inputs.dtype == np.int64 and batch.inputs.flags.c_contiguous


def test_zipf_ranks_differ_and_frequencies_fall():
    first, second = (next(iter(ZipfStreams(1000, 1.0, 65, 200, 1, rank, 2))) for rank in range(2))
    assert (len(first.inputs), len(second.inputs)) == (33, 32)
    assert second.first_stream == 33
    assert not np.array_equal(first.inputs[:32], second.inputs)
    share = np.bincount(first.inputs.ravel(), minlength=1000) / first.inputs.size
    assert share[0] == pytest.approx(1 / np.sum(1 / np.arange(1, 1001)), rel=0.1)
    with pytest.raises(UsageError, match=r"ZipfStreams\.vocabulary = 0 "):
        ZipfStreams(0, 1.0, 1, 1, 1)
