"""The translation model: gradients, padding, a plain transcription, evaluation, greedy decoding, and that it learns."""

from types import SimpleNamespace

import numpy as np
import pytest
from finite_differences import MemoryStore, pulled_rows

from hybridmpi.autograd import draws, no_grad
from hybridmpi.errors import SparseIndexError, UsageError
from hybridmpi.models.nmt import TranslationModel

SOURCE, TARGET, END = 13, 17, 0


def model(dtype=np.float64, width=4, hidden=3, **options):
    made = TranslationModel(SOURCE, TARGET, width=width, hidden=hidden, samples=6, dtype=dtype, **options)
    made.initialise(3)
    for number, (name, table) in enumerate(made.named_tables()):
        values = np.random.default_rng(number).normal(size=(table.rows, table.dim)) * 0.5
        table.store = MemoryStore(values.astype(dtype), name)
    return made


def batch_of(pairs, padding=0, more=0):
    """Return sentence pairs as a padded batch."""
    arrays = {}
    for name, sentences in zip(("source", "target"), zip(*pairs, strict=True), strict=True):
        lengths = np.array([len(sentence) for sentence in sentences])
        arrays[name] = np.full((len(sentences), lengths.max() + more), padding)
        for words, sentence in zip(arrays[name], sentences, strict=True):
            words[: len(sentence)] = sentence
        arrays[f"{name}_lengths"] = lengths
    return SimpleNamespace(**arrays)


def test_rows_wanted_are_those_that_the_loss_pulls():
    made, pairs = model(), batch_of(sentences(), padding=11, more=2)
    draws.begin_step(1, 3, 0)
    wanted = made.rows_wanted(pairs)
    draws.begin_step(1, 3, 0)
    pulled = pulled_rows(made, lambda: made.loss(pairs))
    assert {name: np.unique(ids).tolist() for name, ids in wanted.items()} == {n: i.tolist() for n, i in pulled.items()}


def sentences(seed=0, lengths=((3, 2), (1, 4), (5, 1))):
    random = np.random.default_rng(seed)
    return [(random.integers(0, SOURCE, a), random.integers(0, TARGET, b)) for a, b in lengths]


def loss_of(made, batch):
    draws.begin_step(1, 1, 0)
    return made.loss(batch)


def gradients_of(made, batch):
    for parameter in made.parameters():
        parameter.begin_step()
    loss = loss_of(made, batch)
    loss.backward()
    rows = {name: table.take_gradient() for name, table in made.named_tables()}
    dense = {name: parameter.grad.copy() for name, parameter in made.named_parameters()}
    return float(loss), rows, dense


def plain_run(made, layer, inputs):
    """Transcribe an LSTM for one sentence."""
    width, outputs = layer.hidden, []
    h, c = np.zeros(width), np.zeros(width)
    for x in inputs:
        z = layer.weight_x.data @ x + layer.weight_h.data @ h + layer.bias.data
        i, f, o = (1 / (1 + np.exp(-z[k * width : (k + 1) * width])) for k in (0, 1, 3))
        c = f * c + i * np.tanh(z[2 * width : 3 * width])
        h = o * np.tanh(c)
        outputs.append(h)
    return np.array(outputs)


def plain_logits(made, source, target):
    """Return the logits of each target word, by the equations, one sentence and word after the other."""
    rows = made.source.store.values[source]
    there, back = plain_run(made, made.forwards, rows), plain_run(made, made.backwards, rows[::-1])
    memory = np.concatenate([there, back[::-1]], axis=1)
    summary = made.summary.weight.data @ np.concatenate([there[-1], back[-1]]) + made.summary.bias.data
    states = plain_run(made, made.decoder, [summary, *made.target.store.values[target[:-1]]])
    logits = []
    for state in states:
        shares = np.exp(memory @ (made.query.weight.data @ state))
        context = shares @ memory / shares.sum()
        hidden = np.tanh(made.combine.weight.data @ np.concatenate([context, state]) + made.combine.bias.data)
        logits.append(made.output.store.values @ hidden + made.bias.store.values[:, 0])
    return np.array(logits)


def test_names():
    made = model()
    assert [name for name, _ in made.named_tables()] == ["bias", "output", "source", "target"]
    assert {name.split(".")[0] for name, _ in made.named_parameters()} == {
        "forwards", "backwards", "summary", "decoder", "query", "combine"
    }  # fmt: skip


def test_full_softmax_loss_is_the_equations():
    made, pairs = model(softmax="full"), sentences()
    total = 0.0
    for source, target in pairs:
        logits = plain_logits(made, source, target)
        total += (np.log(np.exp(logits).sum(axis=1)) - logits[np.arange(len(target)), target]).sum()
    count = sum(len(target) for _, target in pairs)
    batch = batch_of(pairs)
    assert float(loss_of(made, batch)) == pytest.approx(total / count, rel=1e-12)
    found, words = made.eval().evaluate(batch)
    assert (found, words) == (pytest.approx(total, rel=1e-12), count)


@pytest.mark.parametrize("options", [{}, {"softmax": "full"}, {"dropout": 0.3}])
def test_gradients_of_tables_and_weights(options):
    made, batch = model(**options), batch_of(sentences())
    _, rows, gradients = gradients_of(made, batch)
    gradients |= {name: part.to_dense() for name, part in rows.items()}
    arrays = {name: table.store.values for name, table in made.named_tables()}
    arrays |= {name: parameter.data for name, parameter in made.named_parameters()}
    random = np.random.default_rng(0)
    for name, array in arrays.items():
        for _ in range(8):
            place = tuple(random.integers(0, n) for n in array.shape)
            before, values = array[place], []
            for sign in (1e-6, -1e-6):
                array[place] = before + sign
                values.append(float(loss_of(made, batch)))
            array[place] = before
            assert gradients[name][place] == pytest.approx((values[0] - values[1]) / 2e-6, rel=1e-5, abs=1e-8), name


@pytest.mark.parametrize("options", [{}, {"softmax": "full"}])
def test_padding_contributes_nothing(options):
    """Neither what fills the batch nor how far: loss, gradients, and the very rows that are pulled are the same."""
    made = model(**options)
    expected = gradients_of(made, batch_of(sentences(), padding=0))
    for padding, more in ((7, 0), (-99, 2)):  # no word is -99: it is never looked at
        found = gradients_of(made, batch_of(sentences(), padding, more))
        assert found[0] == pytest.approx(expected[0], rel=1e-13)
        for name, rows in expected[1].items():
            np.testing.assert_array_equal(found[1][name].indices, rows.indices)
            np.testing.assert_allclose(found[1][name].values, rows.values, rtol=1e-9, atol=1e-14)
        for name, gradient in expected[2].items():
            np.testing.assert_allclose(found[2][name], gradient, rtol=1e-9, atol=1e-14)


def test_a_batch_is_the_mean_of_its_sentences_over_words():
    made, pairs = model(softmax="full"), sentences()
    loss, _, gradients = gradients_of(made, batch_of(pairs))
    parts = [gradients_of(made, batch_of([pair])) for pair in pairs]
    weights = np.array([len(target) for _, target in pairs]) / sum(len(target) for _, target in pairs)
    assert loss == pytest.approx(sum(w * part[0] for w, part in zip(weights, parts, strict=True)), rel=1e-12)
    for name, gradient in gradients.items():
        mean = sum(w * part[2][name] for w, part in zip(weights, parts, strict=True))
        np.testing.assert_allclose(gradient, mean, rtol=1e-9, atol=1e-14)


def test_only_the_words_of_the_batch_are_pulled():
    made = model()
    gradients_of(made, batch_of([([5, 5, 2], [7, 9, 0]), ([2], [0])]))
    np.testing.assert_array_equal(made.source.store.pulls[0], [2, 5])
    np.testing.assert_array_equal(made.target.store.pulls[0], [7, 9])  # the last word of a sentence is no input
    assert [len(table.store.pulls) for _, table in made.named_tables()] == [1, 1, 1, 1]


def greedy(made, source, longest):
    """Return the likeliest words one after the other, by the equations."""
    words = []
    while len(words) < longest:
        word = int(plain_logits(made, source, np.array([*words, 0]))[-1].argmax())
        if word == END:
            break
        words.append(word)
    return words


def test_translations_are_greedy():
    made, pairs = model().eval(), sentences(lengths=((3, 1), (1, 1), (5, 1), (2, 1), (4, 1)))
    for array in [*(p.data for p in made.parameters()), *(t.store.values for _, t in made.named_tables())]:
        array *= 3  # so that the words differ
    made.bias.store.values[END] += 0.5
    found = made.translate(batch_of(pairs), END, 6)
    expected = [greedy(made, source, 6) for source, _ in pairs]
    assert [list(words) for words in found] == expected
    assert len({len(words) for words in expected}) > 1  # some end early, some are cut
    assert made.translate(batch_of(pairs[:1]), END, 0)[0].tolist() == []
    assert all(len(table.take_gradient()) == 0 for _, table in made.named_tables())


def test_what_it_refuses():
    made, batch = model(), batch_of(sentences())
    with pytest.raises(UsageError, match='"sampled" or "full"'):
        model(softmax="none")
    with pytest.raises(UsageError, match="evaluate in training mode"):
        made.evaluate(batch)
    with pytest.raises(UsageError, match="translate in training mode"):
        made.translate(batch, END, 3)
    batch.target[0, 0] = TARGET
    with pytest.raises(SparseIndexError, match=f"id {TARGET}"):
        made.loss(batch)
    for lengths in ([0, 1, 2], [3, 1, 6], [3, 1]):
        wrong = SimpleNamespace(**{**vars(batch_of(sentences())), "source_lengths": np.array(lengths)})
        with pytest.raises(UsageError, match="expected one for each sentence, at least 1"):
            made.loss(wrong)
    nothing = SimpleNamespace(**{name: array[:0] for name, array in vars(batch_of(sentences())).items()})
    with pytest.raises(UsageError, match="without sentences"):
        made.loss(nothing)
    assert made.eval().evaluate(nothing) == (0.0, 0)
    assert made.translate(nothing, END, 3) == []


@pytest.mark.parametrize("options", [{}, {"softmax": "full", "dropout": 0.1}])
def test_it_learns_to_reverse(options):
    """Sentences of two to four words, translated word by word and in the opposite order."""
    made, random = model(np.float32, width=16, hidden=16, **options), np.random.default_rng(5)

    def pairs(count):
        drawn = [random.integers(1, 9, random.integers(2, 5)) for _ in range(count)]
        return batch_of([([*words, END], [*(words[::-1] + 3), END]) for words in drawn])

    squares = {}
    for step in range(350):
        draws.begin_step(1, step, 0)
        for parameter in made.parameters():
            parameter.begin_step()
        made.loss(pairs(32)).backward()
        arrays = [(name, p.data, p.grad) for name, p in made.named_parameters()]
        for name, table in made.named_tables():
            gradient = table.take_gradient()
            arrays.append((name, table.store.values, gradient.to_dense()))
        for name, values, gradient in arrays:  # Adagrad
            squares[name] = squares.get(name, 1e-6) + gradient * gradient
            values -= 0.1 * gradient / np.sqrt(squares[name])
    held_out = pairs(64)
    with no_grad():
        total, count = made.eval().evaluate(held_out)
    assert np.exp(total / count) < 1.6
    found = made.translate(held_out, END, 8)
    right = [
        np.array_equal(f, t[: n - 1]) for f, t, n in zip(found, held_out.target, held_out.target_lengths, strict=True)
    ]
    assert np.mean(right) > 0.7
