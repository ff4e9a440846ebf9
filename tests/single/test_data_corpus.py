"""Corpora: words to ids, the split, the vocabulary's order, the cache, and what is refused."""

import os
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hybridmpi.data import Vocabulary, corpus, load_treebank, open_bandit, python_source, text_file
from hybridmpi.data.vocabulary import UNKNOWN, Provisional, build
from hybridmpi.errors import DataError, UsageError

TEXT = "the cat saw the dog\nthe dog\n\nran to the cat\n"


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text(TEXT)
    return path


def load(path, tmp_path, limit=100, held_out=0.0):
    return corpus.load(str(path), limit, held_out, tmp_path / "cache")


def test_text_round_trip(text, tmp_path):
    loaded = load(text, tmp_path)
    words = TEXT.replace("\n", " <eol> ").split()
    assert loaded.vocabulary.decode(loaded.train) == words
    assert loaded.train.dtype == loaded.held_out.dtype == np.int32
    assert len(loaded.held_out) == 0
    assert loaded.vocabulary.words == ["the", "<eol>", "cat", "dog", "saw", "ran", "to", UNKNOWN]
    assert loaded.vocabulary.counts.tolist() == [4, 4, 2, 2, 1, 1, 1, 0]
    assert "15 training and 0 held-out words" in str(loaded)


def test_held_out_is_the_end_and_leaves_no_trace_in_the_vocabulary(text, tmp_path):
    loaded = load(text, tmp_path, held_out=0.4)
    words = TEXT.replace("\n", " <eol> ").split()
    assert loaded.vocabulary.decode(loaded.train) == words[:9]
    assert len(loaded.held_out) == 6
    assert loaded.vocabulary.decode(loaded.held_out) == ["<eol>", UNKNOWN, UNKNOWN, "the", "cat", "<eol>"]


def test_unknown_stands_at_the_place_of_its_count(text, tmp_path):
    loaded = load(text, tmp_path, limit=4)
    assert loaded.vocabulary.words == [UNKNOWN, "the", "<eol>", "cat"]
    assert loaded.vocabulary.counts.tolist() == [5, 4, 4, 2]
    assert (loaded.train == loaded.vocabulary.unknown).sum() == 5


@given(st.lists(st.sampled_from(["a", "b", "c", "d", UNKNOWN, "e"]), min_size=1), st.integers(0, 30), st.integers(2, 8))
def test_vocabulary_against_a_counter(words, cut, limit):
    """`<unk>` in the text itself counts as unknown; ids are ranks by training count."""
    provisional = Provisional()
    ids = provisional.encode(words)
    counts = np.bincount(ids[:cut], minlength=len(provisional))
    vocabulary, mapping = build(provisional, counts, limit)
    train = Counter(words[:cut])
    kept = [word for word in vocabulary.words if word != UNKNOWN]
    assert len(vocabulary) <= limit
    first = {word: words.index(word) for word in train}
    best = sorted((w for w in train if w != UNKNOWN), key=lambda w: (-train[w], first[w]))
    assert kept == best[: limit - 1]
    assert vocabulary.counts.tolist() == sorted(vocabulary.counts.tolist(), reverse=True)
    assert vocabulary.counts[vocabulary.unknown] == len(words[:cut]) - sum(train[w] for w in kept)
    assert [w if w in kept else UNKNOWN for w in words] == vocabulary.decode(mapping[ids])
    assert vocabulary.encode(words).tolist() == mapping[ids].tolist()


def test_vocabulary_refuses_what_is_none():
    with pytest.raises(DataError, match="distinct"):
        Vocabulary(["a", "a", UNKNOWN], [1, 1, 1])
    with pytest.raises(DataError, match="without <unk>"):
        Vocabulary(["a"], [1])


def test_unigram_perplexity():
    vocabulary = Vocabulary(["a", UNKNOWN], [3, 0])
    assert vocabulary.unigram_perplexity(np.array([0, 0])) == pytest.approx(5 / 4)
    assert vocabulary.unigram_perplexity(np.array([0, 1])) == pytest.approx(np.sqrt(5 / 4 * 5))
    assert np.isnan(vocabulary.unigram_perplexity(np.array([], np.int32)))


def test_byte_order_mark_line_ends_and_missing_last_newline(tmp_path):
    path = tmp_path / "windows.txt"
    path.write_bytes("\ufeffein Täg\r\nzwei".encode())
    loaded = load(path, tmp_path)
    assert loaded.vocabulary.decode(loaded.train) == ["ein", "Täg", "<eol>", "zwei", "<eol>"]


def test_blocks_do_not_change_the_words(text, tmp_path, monkeypatch):
    whole = load(text, tmp_path)
    monkeypatch.setattr(text_file, "BLOCK", 3)
    monkeypatch.setattr(corpus, "FORMAT", -1)
    assert load(text, tmp_path).train.tolist() == whole.train.tolist()


def test_cache_is_used_and_follows_what_matters(text, tmp_path, monkeypatch):
    first = load(text, tmp_path, held_out=0.2)
    made = []
    real = corpus._make
    monkeypatch.setattr(corpus, "_make", lambda *given: made.append(given) or real(*given))
    again = load(text, tmp_path, held_out=0.2)
    assert not made
    assert again.train.tolist() == first.train.tolist()
    assert again.held_out.tolist() == first.held_out.tolist()
    assert again.vocabulary.words == first.vocabulary.words
    assert again.vocabulary.counts.tolist() == first.vocabulary.counts.tolist()
    assert again.description == first.description
    load(text, tmp_path, held_out=0.3)
    load(text, tmp_path, limit=5)
    assert len(made) == 2
    text.write_text("changed")
    assert load(text, tmp_path, held_out=0.2).vocabulary.words[0] == "changed"
    assert not list((tmp_path / "cache").glob(".*")), "nothing is left aside"


@pytest.mark.parametrize(
    "damage", [lambda data: data[: len(data) // 2], lambda data: b"", lambda data: data[:200] + b"??" + data[202:]]
)
def test_damaged_cache_is_made_again(text, tmp_path, damage):
    expected = load(text, tmp_path).train.tolist()
    (file,) = (tmp_path / "cache").iterdir()
    file.write_bytes(damage(file.read_bytes()))
    assert load(text, tmp_path).train.tolist() == expected
    assert load(text, tmp_path).train.tolist() == expected


def test_unwritable_cache_is_a_warning(text, tmp_path):
    (tmp_path / "cache").write_text("a file where the folder should be")
    with pytest.warns(RuntimeWarning, match="could not be kept"):
        assert len(load(text, tmp_path).train) == 15


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "no such file"),
        (b"", "is empty"),
        (b" \n\t\n", "has no words"),
        (b"text\0more", "zero byte at offset 4"),
        (b"good\nlines\n" * 3 + b"caf\xe9 \n", "byte 0xe9 at offset 36"),
    ],
)
def test_bad_files_are_refused(tmp_path, content, message, monkeypatch):
    monkeypatch.setattr(text_file, "BLOCK", 8)
    path = tmp_path / "bad.txt"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(DataError, match=message) as caught:
        load(path, tmp_path)
    assert "bad.txt" in str(caught.value)
    assert not (tmp_path / "cache").exists()


def test_wrong_arguments_are_refused(text, tmp_path):
    with pytest.raises(DataError, match="is a directory"):
        load(tmp_path, tmp_path)
    with pytest.raises(DataError, match="no such file"):
        load("", tmp_path)
    with pytest.raises(UsageError, match="held-out share of 1"):
        load(text, tmp_path, held_out=1)
    with pytest.raises(UsageError, match="vocabulary limit of 1"):
        load(text, tmp_path, limit=1)


def test_standard_library(tmp_path, monkeypatch):
    """A twentieth of it: held-out files are whole, broken ones are skipped and counted, the cache answers again."""
    files = [file for file in python_source.standard_library()[::20] if "test" not in file.name]
    broken = tmp_path / "broken.py"
    broken.write_text("s = 'open\n")
    files.append(python_source.SourceFile(str(broken), "z_broken.py", 10, 0))
    monkeypatch.setattr(python_source, "standard_library", lambda: files)
    loaded = corpus.load("stdlib", 1000, 0.1, tmp_path / "cache")
    assert loaded.description["files"] == len(files) - 1
    assert loaded.description["files skipped"] == 1
    assert len(loaded.vocabulary) == 1000
    assert loaded.vocabulary.words[0] == python_source.NEWLINE
    _, held_out = python_source.split(files, 0.1)
    words = [word for file in held_out if file.name != "z_broken.py" for word in python_source.read(file.path)]
    assert loaded.held_out.tolist() == loaded.vocabulary.encode(words).tolist()
    assert 0.02 < len(loaded.held_out) / (len(loaded.train) + len(loaded.held_out)) < 0.2
    assert loaded.vocabulary.unigram_perplexity(loaded.held_out) < 500
    assert corpus.load("stdlib", 1000, 0.1, tmp_path / "cache").train.tolist() == loaded.train.tolist()


def test_the_end_of_a_line_is_no_word_of_the_text(tmp_path, monkeypatch):
    path = tmp_path / "text.txt"
    path.write_text("a <unk>\nb<eol> c\n" * 10)
    assert corpus.load(str(path), 100, 0.1, tmp_path).vocabulary.words[:2] == ["<eol>", "a"]
    monkeypatch.setattr(text_file, "BLOCK", 16)
    path.write_text("a b\n" * 10 + "c <eol> d\n")
    with pytest.raises(DataError, match=r"text\.txt', line 11: the word '<eol>' stands for the end of a line here"):
        corpus.load(str(path), 100, 0.1, tmp_path)


@pytest.mark.parametrize(
    "source", ["x" * 400, "a\0b", "{folder}", "{folder}/pipe", "{folder}/text.txt/x", "", "{folder}/loop"]
)
@pytest.mark.parametrize("read", ["corpus", "bandit", "treebank"])
def test_what_is_no_path_of_data(tmp_path, source, read):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "text.txt").write_text("words")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    source = source.format(folder=tmp_path)
    with pytest.raises((DataError, UsageError)):
        if read == "corpus":
            corpus.load(source, 10, 0.1, tmp_path / "cache")
        elif read == "bandit":
            open_bandit.read(Path(source), 1, 1)
        else:
            load_treebank(source, source, 10, cache_dir=tmp_path / "cache")
