"""Parallel text: syntax pairs, files, vocabularies, the cache; batches by length; BLEU."""

import ast
import math
from itertools import islice

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hybridmpi.data import (
    PairBatches,
    Pairs,
    Sentences,
    bleu,
    bleu_counts,
    held_out_pair_batches,
    load_parallel,
    parallel,
    syntax_pairs,
)
from hybridmpi.data.parallel import END
from hybridmpi.data.python_source import NotPythonError
from hybridmpi.errors import DataError, UsageError


@pytest.mark.parametrize(
    ("source", "words", "syntax"),
    [
        ("x = f(1)\n", "x = f ( 1 )", "<Assign> <Name> x </> <Call> <Name> f <Constant> 1 </> </>"),
        ("return", "return", "<Return> <none>"),
        (
            "é = a[b:] + 'x'",
            "é = a [ b : ] + 'x'",
            "<Assign> <Name> é </> <BinOp> <Subscript> <Name> a <Slice> <Name> b <none> <none> <Add> <Constant> 'x'",
        ),
        ("f(a,  # why\n  b)", "f ( a , b )", "<Expr> <Call> <Name> f <Name> a <Name> b </> </>"),
        ("import a.b as c", "import a . b as c", "<Import> <alias> a.b c </>"),
        ('("é",); del x\r\n', '( "é" , )', "<Expr> <Tuple> <Constant> 'é' </>"),
    ],
)
def test_statements_become_words(source, words, syntax):
    if source.startswith("return"):
        source = f"def f():\n    {source}"
    assert syntax_pairs.pairs(source, 30)[0] == (words.split(), syntax.split())


def test_statements_come_in_order_without_docstrings_compound_ones_fstrings_and_long_ones():
    text = (
        '"""doc"""\nif a:\n    x = 1\n    y = f"{x}"\nelse:\n    for b in c:\n        pass\nz = 2\nw = 1 + 2 + 3 + 4\n'
    )
    assert [" ".join(source) for source, _ in syntax_pairs.pairs(text, 7)] == ["x = 1", "pass", "z = 2"]
    assert len(syntax_pairs.pairs(text, 30)) == 4
    with pytest.raises(NotPythonError):
        syntax_pairs.pairs("x = (", 30)


def test_the_tree_can_be_told_from_the_words():
    """Equal words on both sides of the translation mean equal trees."""
    texts = ["a - b - c", "a - (b - c)", "f(a)(b)", "f(a, b)", "f((a, b))", "f(a=b)", "not a in b", "not (a in b)"]
    syntax = {tuple(syntax_pairs.pairs(text, 99)[0][1]) for text in texts}
    assert len(syntax) == len({ast.dump(ast.parse(text)) for text in texts})


@pytest.fixture
def files(tmp_path):
    def write(source, target):
        paths = [tmp_path / "text.one", tmp_path / "text.two"]
        for path, text in zip(paths, (source, target), strict=True):
            path.write_bytes(text.encode())
        return [str(path) for path in paths]

    return write


def load(paths, tmp_path, vocabulary=20, longest=4, most=100, held_out=0.0):
    return load_parallel(*paths, vocabulary, longest, most, held_out, tmp_path / "cache")


def shown(text, part="train"):
    pairs = getattr(text, part)
    return [
        (" ".join(text.source_vocabulary.decode(a)), " ".join(text.target_vocabulary.decode(b)))
        for a, b in zip(pairs.source, pairs.target, strict=True)
    ]


def test_files_line_by_line(files, tmp_path):
    paths = files("a b\n\nc\u2028d a\r\na b c d e\na b\nc\nd\n", "A\nB\nC D\nE\nA\n\nF")
    text = load(paths, tmp_path)
    assert shown(text) == [("a b <end>", "A <end>"), ("c d a <end>", "C D <end>"), ("d <end>", "F <end>")]
    assert text.description["pairs left out for their length"] == 3
    assert text.source_vocabulary.words[:2] == [END, "a"]
    assert shown(load(paths, tmp_path, held_out=0.34), "held_out") == [("d <end>", "<unk> <end>")]
    assert len(load(paths, tmp_path, most=2).train) == 2
    small = load(paths, tmp_path, vocabulary=3)
    assert set(small.source_vocabulary.words) == {"<unk>", END, "a"}
    assert shown(small)[1][0] == "<unk> <unk> a <end>"


def test_the_cache_gives_the_same_and_notices_change(files, tmp_path):
    paths = files("a b\nc\n", "A\nB C\n")
    first, again = load(paths, tmp_path, held_out=0.5), load(paths, tmp_path, held_out=0.5)
    for part in ("train", "held_out"):
        assert shown(first, part) == shown(again, part)
    assert again.source_vocabulary.counts.tolist() == first.source_vocabulary.counts.tolist()
    assert again.description == first.description
    assert len(load(files("a b\nc\nd\n", "A\nB C\nD\n"), tmp_path).train) == 3


def test_what_loading_refuses(files, tmp_path):
    with pytest.raises(DataError, match=r"text.one' has 2 lines and '.*text.two' 1"):
        load(files("a\nb\n", "A\n"), tmp_path)
    with pytest.raises(DataError, match="no pairs to train on"):
        load(files("a\n", "\u00a0\n"), tmp_path)
    with pytest.raises(DataError, match="data source '': no such file"):
        load((files("a\n", "A\n")[0], ""), tmp_path)
    with pytest.raises(UsageError, match="a target 'x' beside the source 'stdlib'"):
        load(("stdlib", "x"), tmp_path)
    for wrong in ({"vocabulary": 2}, {"longest": 0}, {"most": 0}, {"held_out": 1.0}):
        with pytest.raises(UsageError, match="expected at least"):
            load(files("a\n", "A\n"), tmp_path, **wrong)


def test_standard_library(tmp_path):
    text = load(("stdlib", ""), tmp_path, vocabulary=500, longest=30, most=1000, held_out=0.1)
    assert len(text.train) + len(text.held_out) == 1000
    assert 90 < len(text.held_out) < 500  # whole files
    words = shown(text) + shown(text, "held_out")
    assert all(source.endswith(END) and target.startswith("<") for source, target in words)
    assert not {pair for pair in shown(text) if "<unk>" not in pair[0] + pair[1]} & set(shown(text, "held_out"))
    assert max(text.train.source.lengths.max(), text.train.target.lengths.max()) <= 31
    assert text.train.source.words.dtype == np.int32 and text.train.source.words.max() < 500


def pairs_of(lengths):
    sides = [[np.full(pair[side], 10 * number + side) for number, pair in enumerate(lengths)] for side in (0, 1)]
    return Pairs(*map(Sentences.of, sides))


FEW = settings(max_examples=30, deadline=None)
LENGTHS = st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9)), min_size=1, max_size=40)


@FEW
@given(LENGTHS, st.integers(1, 7), st.integers(1, 4))
def test_batches_on_any_number_of_ranks_hold_the_same_pairs(lengths, sentences, ranks):
    pairs = pairs_of(lengths)
    if len(pairs) < sentences:
        with pytest.raises(DataError, match="too few for a batch"):
            PairBatches(pairs, sentences, 1)
        return
    readers = [PairBatches(pairs, sentences, 1, rank, ranks) for rank in range(ranks)]
    alone = PairBatches(pairs, sentences, 1)
    epoch = alone.batches_per_epoch
    seen = []
    for position, (whole, *parts) in enumerate(islice(zip(alone, *readers, strict=True), 2 * epoch)):
        assert whole.position == position and len(whole.pairs) == sentences
        assert sorted(np.concatenate([part.pairs for part in parts])) == sorted(whole.pairs)
        assert sum(part.weight for part in parts) == whole.weight == sum(lengths[i][1] for i in whole.pairs)
        seen += [*whole.pairs]
        for part in parts:
            for side, name in enumerate(("source", "target")):
                words, its = getattr(part, name), getattr(part, f"{name}_lengths")
                assert its.tolist() == [lengths[i][side] for i in part.pairs]
                assert words.shape == (len(its), its.max(initial=0)) and words.dtype == np.int64
                for row, length, number in zip(words, its, part.pairs, strict=True):
                    assert (row[:length] == 10 * number + side).all() and not row[length:].any()
    for half in (seen[: len(seen) // 2], seen[len(seen) // 2 :]):  # an epoch reads no pair twice
        assert len(set(half)) == epoch * sentences


@FEW
@given(LENGTHS, st.integers(1, 50), st.integers(1, 4))
def test_one_pass_reads_each_pair_once(lengths, sentences, ranks):
    passes = [list(held_out_pair_batches(pairs_of(lengths), sentences, r, ranks).one_pass()) for r in range(ranks)]
    assert len({len(batches) for batches in passes}) == 1
    seen = np.concatenate([batch.pairs for batches in passes for batch in batches])
    assert sorted(seen) == list(range(len(lengths)))


def test_batches_are_of_about_equal_length_and_go_on_anywhere():
    random = np.random.default_rng(1)
    pairs = pairs_of(random.integers(1, 30, (1000, 2)))
    made = list(islice(PairBatches(pairs, 16, 3), 130))
    places = sum(batch.target.size for batch in made)
    assert sum(batch.weight for batch in made) > 0.95 * places
    assert made[0].pairs.tolist() != made[62].pairs.tolist()  # the next epoch is another one
    resumed = PairBatches(pairs, 16, 3)
    resumed.position = 61
    for expected, batch in zip(made[61:], resumed, strict=False):
        assert batch.position == expected.position and np.array_equal(batch.target, expected.target)
    with pytest.raises(DataError, match="no held-out pairs"):
        held_out_pair_batches(pairs_of([]), 3)
    with pytest.raises(UsageError, match=r"PairBatches\.sentences = 0 "):
        PairBatches(pairs, 0, 1)


def test_a_sample_is_spread_evenly():
    pairs = pairs_of([(1, 2)] * 101)
    assert pairs.sample(3).source.words.tolist() == [0, 500, 1000]
    assert len(pairs.sample(500)) == 101 and len(pairs_of([]).sample(3)) == 0


def test_bleu_by_hand():
    # Words 1 to 6 are the, cat, sat, on, is, mat: 5 of 6 words (the twice in the reference), 2 of 5 pairs, no more.
    translation, reference = [1, 2, 3, 4, 1, 1], [1, 2, 5, 4, 1, 6, 3]
    counts = bleu_counts([translation], [reference])
    assert counts.tolist() == [6, 7, 6, 5, 5, 2, 4, 0, 3, 0]
    assert bleu(counts) == 0
    # Two sentences: 1-grams 8 of 9, 2-grams 5 of 7, 3-grams 3 of 5, 4-grams 1 of 3; 9 words for 10.
    translations = [[1, 2, 3, 4, 5], [6, 7, 8, 9]]
    references = [[1, 2, 3, 4, 0, 5], [6, 7, 8, 0]]
    counts = bleu_counts(translations, references)
    assert counts.tolist() == [9, 10, 9, 8, 7, 5, 5, 3, 3, 1]
    expected = math.exp(1 - 10 / 9) * (8 / 9 * 5 / 7 * 3 / 5 * 1 / 3) ** 0.25
    assert bleu(counts) == pytest.approx(expected, rel=1e-12)
    apart = [bleu_counts([t], [r]) for t, r in zip(translations, references, strict=True)]
    assert np.array_equal(sum(apart), counts)
    assert bleu(bleu_counts(references, references)) == 1  # and longer ones are not punished for their length
    assert bleu(bleu_counts([[1, 2, 3, 4, 9]], [[1, 2, 3, 4]])) == pytest.approx((4 / 5 * 3 / 4 * 2 / 3 / 2) ** 0.25)
    assert bleu(bleu_counts([[]], [[1]])) == 0


@pytest.mark.parametrize("side", [0, 1])
def test_the_end_of_a_sentence_is_no_word_of_the_text(tmp_path, side):
    """It would end a translation early; as a part of a word it may stand there, and `<unk>` is what is not known."""
    paths = [tmp_path / "source.txt", tmp_path / "target.txt"]
    for path in paths:
        path.write_text("a b\nx<end> <unk>\nc <endless>\n")
    assert len(load_parallel(*map(str, paths), 100, 10, 100, 0, tmp_path).train) == 3
    paths[side].write_text("a b\nx y\nc <end> d\n")
    with pytest.raises(DataError, match=f"{paths[side].name}', line 3: the word '<end>' stands for the end of a sent"):
        load_parallel(*map(str, paths), 100, 10, 100, 0, tmp_path)


def test_pairs_are_equal_when_both_sides_are(tmp_path):
    """Whatever words there are between them."""
    pairs = [(["a"], ["b", END, "c"]), (["a", END, "b"], ["c"])]
    assert len({parallel._words(pair) for pair in pairs}) == 2
