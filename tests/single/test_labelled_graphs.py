"""Treebanks; graphs made binary; what a table knows; the cache."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_graphs import as_lists, graphs

from hybridmpi.data import graph_baselines, load_treebank
from hybridmpi.data.binary_trees import binary
from hybridmpi.errors import DataError, UsageError
from hybridmpi.graphs import from_brackets

FEW = settings(max_examples=60, deadline=None)
TRAIN = "(3 (2 It) (4 (2 's) (4 good)))\n\n(1 (2 It) (2 's) (1 (0 so) (1 Bad)) (2 .))\n"
HELD_OUT = "(3 (2 it) (4 (2 's) (3 new)))\r\n"


@pytest.fixture
def load(tmp_path):
    def from_texts(train=TRAIN, held_out=HELD_OUT, limit=100, **options):
        (tmp_path / "train.txt").write_bytes(train.encode())
        (tmp_path / "dev.txt").write_bytes(held_out.encode())
        return load_treebank(str(tmp_path), "", limit, cache_dir=tmp_path / "cache", **options)

    return from_texts


def written(whole, part):
    """Return the trees of a part as text again."""

    def text(vertices, v):
        _, below, data = vertices[v]
        label = "-" if data["label"] < 0 else whole.labels[data["label"]]
        inside = [text(vertices, child) for child in below.values()] or [whole.vocabulary.words[data["word"]]]
        return f"({label} {' '.join(inside)})"

    lists = as_lists(getattr(whole, part))
    return [text(vertices, len(vertices) - 1) for vertices in lists]


def test_a_folder_of_trees(load):
    whole = load(two_children=False)
    assert whole.labels == ["0", "1", "2", "3", "4"] and whole.train.type_names == ("leaf", "inner")
    assert whole.vocabulary.words == ["It", "'s", "good", "so", "Bad", ".", "<unk>"]
    assert whole.vocabulary.counts.tolist() == [2, 2, 1, 1, 1, 1, 0]
    assert written(whole, "train") == [line for line in TRAIN.split("\n") if line]
    assert written(whole, "held_out") == ["(3 (2 <unk>) (4 (2 's) (3 <unk>)))"]
    inner = whole.train.types == 1
    assert (whole.train.data["word"][inner] == -1).all() and (whole.train.data["label"] >= 0).all()
    assert whole.train.data["word"].dtype == whole.train.data["label"].dtype == np.int32


def test_two_children_lower_case_and_few_words(load):
    whole = load(lower=True)
    assert written(whole, "train")[1] == "(1 (2 it) (- (2 's) (- (1 (0 so) (1 bad)) (2 .))))"
    assert written(whole, "held_out") == ["(3 (2 it) (4 (2 's) (3 <unk>)))"]
    few = load(limit=2)
    assert few.vocabulary.words == ["<unk>", "It"]
    # Training labels: 0 once, 1 twice, 2 five times, 3 once, 4 twice; held-out 3 2 4 2 3.
    assert whole.baselines["the most frequent class"] == 0.4
    assert "2 training and 1 held-out graphs" in str(whole) and "40.0 %" in str(whole)


def test_names_as_labels_and_two_files(tmp_path):
    for name, text in (("one", "(S (NP I) (VP go))"), ("two", "(S (X oh))")):
        (tmp_path / name).write_text(text)
    whole = load_treebank(str(tmp_path / "one"), str(tmp_path / "two"), 9, cache_dir=tmp_path)
    assert whole.labels == ["NP", "S", "VP", "X"] and written(whole, "held_out") == ["(S (X <unk>))"]


def test_the_cache_gives_the_same_and_notices_change(load):
    first, again = load(), load()
    for part in ("train", "held_out"):
        assert written(first, part) == written(again, part)
        assert np.array_equal(getattr(first, part).heights, getattr(again, part).heights)
    assert (again.labels, again.baselines, again.kinds) == (first.labels, first.baselines, None)
    assert again.vocabulary.words == first.vocabulary.words and str(first) == str(again)
    assert len(load(TRAIN + "(1 a)\n").train) == 3


def test_what_loading_refuses(load, tmp_path):
    with pytest.raises(DataError, match=r"train\.txt', line 2, column 1: "):
        load("(1 a)\n(1 (2 b)\n")
    with pytest.raises(DataError, match=r"dev\.txt' has no trees"):
        load(held_out="\n")
    (tmp_path / "dev.txt").unlink()
    with pytest.raises(DataError, match=r"a folder without dev\.txt"):
        load_treebank(str(tmp_path), "", 9)
    with pytest.raises(UsageError, match="none that are held out"):
        load_treebank(str(tmp_path / "train.txt"), "", 9)
    with pytest.raises(UsageError, match="beside the folder"):
        load_treebank(str(tmp_path), "x", 9)
    with pytest.raises(DataError, match="no such file"):
        load_treebank("", "", 9)
    with pytest.raises(UsageError, match="a vocabulary of 1"):
        load_treebank(str(tmp_path), "", 1)


@FEW
@given(graphs(arity=6))
def test_binary_graphs_hold_the_same(whole):
    """The children of an old vertex are found by looking through the new ones."""

    def children(vertices, v):
        found = []
        for child in vertices[v][1].values():
            new = vertices[child][2]["word"] == -1
            found += children(vertices, child) if new else [child]
        return found

    made = binary(whole)
    assert np.diff(made.child_starts).max(initial=0) <= 2 and made.slots.max(initial=0) <= 1
    assert len(made) == len(whole)
    for before, after in zip(as_lists(whole), as_lists(made), strict=True):
        old = [v for v, vertex in enumerate(after) if vertex[2]["word"] >= 0]
        assert len(old) == len(before)
        for v, place in enumerate(old):
            assert after[place][0] == before[v][0] and after[place][2] == before[v][2]
            assert [old.index(child) for child in children(after, place)] == list(before[v][1].values())
            # The first child stays where it was, the second is the rest.
            if len(before[v][1]) > 2:
                assert old.index(after[place][1][0]) == before[v][1][min(before[v][1])]


@FEW
@given(graphs(max_graphs=6), graphs(max_graphs=3), st.booleans())
def test_tables_answer_as_counting_by_hand_does(train, held_out, hide):
    if hide:  # some vertices stand in between: neither word nor label
        train, held_out = (
            g.with_data(**{name: np.where(np.arange(g.vertices) % 3, array, -1) for name, array in g.data.items()})
            for g in (train, held_out)
        )

    def looks(vertices, v):
        def below(vertex):
            for child in vertices[vertex][1].values():
                data = vertices[child][2]
                yield from below(child) if data["label"] == data["word"] == -1 else [data["word"]]

        return vertices[v][2]["word"], *sorted(below(v))

    counts, all_labels = {}, Counter()
    for vertices in as_lists(train):
        for v, (_, _, data) in enumerate(vertices):
            if data["label"] >= 0:
                counts.setdefault(looks(vertices, v), Counter())[data["label"]] += 1
                all_labels[data["label"]] += 1

    def most(counter):
        return min(counter, key=lambda label: (-counter[label], label), default=-1)

    rights = [
        (data["label"] == most(all_labels), data["label"] == most(counts.get(looks(vertices, v), all_labels)))
        for vertices in as_lists(held_out)
        for v, (_, _, data) in enumerate(vertices)
        if data["label"] >= 0
    ]
    shares = graph_baselines.majority(train, held_out), graph_baselines.by_children(train, held_out, "word")
    if rights:
        assert shares == pytest.approx(np.mean(rights, axis=0))
    else:
        assert np.isnan(shares).all()


def test_a_table_tells_what_the_children_tell():
    train = from_brackets(["(0 (2 a) (2 b))", "(1 (2 a) (2 a))", "(0 (2 b) (2 a))"], numbers := {"a": 0, "b": 1})
    held_out = from_brackets(["(0 (3 a) (3 b))", "(1 (3 a) (3 a))"], numbers)
    assert graph_baselines.by_children(train, held_out, "word") == pytest.approx(2 / 6)
