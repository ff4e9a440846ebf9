"""The language model: gradients, carried state, evaluation, checkpoints of the state, and that it learns."""

from types import SimpleNamespace

import numpy as np
import pytest
from finite_differences import MemoryStore, pulled_rows

from hybridmpi import autograd
from hybridmpi.autograd import Tensor, draws
from hybridmpi.errors import SparseIndexError, UsageError
from hybridmpi.models import lm, prediction
from hybridmpi.models.lm import LanguageModel

VOCAB = 23


def model(dtype=np.float64, vocab=VOCAB, **options):
    made = LanguageModel(vocab, width=4, hidden=5, samples=6, dtype=dtype, **options)
    made.initialise(3)
    for number, (name, table) in enumerate(made.named_tables()):
        values = np.random.default_rng(number).normal(size=(table.rows, table.dim)) * 0.3
        table.store = MemoryStore(values.astype(dtype), name)
    return made


def batch(seed=0, streams=3, steps=4, new_epoch=False, vocab=VOCAB):
    words = np.random.default_rng(seed).integers(0, vocab, (streams, steps + 1)).astype(np.int32)
    return SimpleNamespace(inputs=words[:, :-1], targets=words[:, 1:], new_epoch=new_epoch)


def loss_of(made, words, state=None):
    draws.begin_step(1, 1, 0)
    made._state = state
    return made.loss(words)


def test_names():
    made = model()
    assert [name for name, _ in made.named_tables()] == ["bias", "embedding", "output"]
    assert [name for name, _ in made.named_parameters()] == [
        "lstm.bias", "lstm.projection", "lstm.weight_h", "lstm.weight_x"
    ]  # fmt: skip
    assert [table.rows for _, table in made.named_tables()] == [VOCAB] * 3


@pytest.mark.parametrize(
    ("options", "names"), [({}, {"embedding", "output", "bias"}), ({"softmax": "full"}, {"embedding"})]
)
def test_rows_wanted_are_those_that_the_loss_pulls(options, names):
    made, words = model(vocab=400, **options), batch(vocab=400)
    draws.begin_step(1, 0, 0)
    with draws.peek(1):
        wanted = made.rows_wanted(words)
    pulled = pulled_rows(made, lambda: loss_of(made, words))  # in step 1
    assert wanted.keys() == names
    for name, ids in wanted.items():
        assert np.array_equal(np.unique(ids), pulled[name])


@pytest.mark.parametrize("options", [{}, {"softmax": "full"}, {"dropout": 0.3}])
def test_gradients_of_tables_and_weights(options):
    made, words = model(**options), batch()
    loss_of(made, words).backward()
    gradients = {name: table.take_gradient().to_dense() for name, table in made.named_tables()}
    gradients |= {name: parameter.grad for name, parameter in made.named_parameters()}
    arrays = {name: table.store.values for name, table in made.named_tables()}
    arrays |= {name: parameter.data for name, parameter in made.named_parameters()}
    random = np.random.default_rng(0)
    for name, array in arrays.items():
        for _ in range(12):
            place = tuple(random.integers(0, n) for n in array.shape)
            before, values = array[place], []
            for sign in (1e-6, -1e-6):
                array[place] = before + sign
                values.append(float(loss_of(made, words)))
            array[place] = before
            assert gradients[name][place] == pytest.approx((values[0] - values[1]) / 2e-6, rel=1e-5, abs=1e-8), name


def test_full_softmax_loss_is_cross_entropy_over_the_vocabulary():
    made, words = model(softmax="full"), batch()
    found = float(loss_of(made, words))
    state_free, _ = made.lstm(made.embedding(words.inputs))
    logits = autograd.linear(state_free.reshape(-1, 4), Tensor(made.output.store.values)) + made.bias.store.values[:, 0]
    assert found == pytest.approx(float(autograd.cross_entropy(logits, words.targets.reshape(-1))), rel=1e-12)
    total, count = made.eval().evaluate(words)
    assert (total / count, count) == (pytest.approx(found, rel=1e-12), 12)


def test_a_row_is_pulled_once_however_often_its_word_occurs():
    made = model()
    words = SimpleNamespace(inputs=np.full((3, 4), 5), targets=np.full((3, 4), 7), new_epoch=False)
    loss_of(made, words).backward()
    np.testing.assert_array_equal(made.embedding.store.pulls[0], [5])
    assert [len(table.store.pulls) for _, table in made.named_tables()] == [1, 1, 1]
    np.testing.assert_array_equal(made.embedding.take_gradient().indices, [5])


def test_state_is_carried_saved_restored_and_reset():
    made, other, words = model(), model(), batch()
    empty = made.state_arrays()
    assert (empty["h"].shape, empty["c"].shape) == ((0, 4), (0, 5))
    draws.begin_step(1, 1, 0)
    made.loss(words)
    draws.begin_step(1, 2, 0)
    saved = made.state_arrays()
    second = float(made.loss(batch(1)))
    draws.begin_step(1, 2, 0)
    other.set_state_arrays({name: array.copy() for name, array in saved.items()})
    assert float(other.loss(batch(1))) == second
    draws.begin_step(1, 2, 0)
    other.reset_state()
    fresh = float(other.loss(batch(1)))
    assert fresh != second
    draws.begin_step(1, 2, 0)
    assert float(made.loss(batch(1, new_epoch=True))) == fresh
    made.set_state_arrays(empty)
    draws.begin_step(1, 2, 0)
    assert float(made.loss(batch(1))) == fresh
    with pytest.raises(UsageError, match="expected streams x"):
        made.set_state_arrays({"h": saved["h"]})


def test_evaluation_in_blocks_has_its_own_state_and_leaves_training_alone(monkeypatch):
    made, long = model(), batch(streams=2, steps=9)
    draws.begin_step(1, 1, 0)
    made.loss(batch(streams=3))
    before = made.state_arrays()
    whole, count = made.eval().evaluate(long)
    monkeypatch.setattr(lm, "EVALUATED_STEPS", 2)
    monkeypatch.setattr(prediction, "EVALUATED_ROWS", 5)
    monkeypatch.setattr(prediction, "EVALUATED_WORDS", 4)
    again, _ = made.eval().evaluate(long)
    assert (again, count) == (pytest.approx(whole, rel=1e-12), 18)
    made.eval()
    parts = [
        made.evaluate(SimpleNamespace(inputs=long.inputs[:, s], targets=long.targets[:, s], new_epoch=False))[0]
        for s in (slice(0, 4), slice(4, 9))
    ]
    assert sum(parts) == pytest.approx(whole, rel=1e-12)
    assert made.evaluate(batch(streams=0)) == (0.0, 0)
    assert made.train().state_arrays()["h"] is before["h"]
    assert all(len(table.take_gradient()) == 0 for _, table in made.named_tables())


def test_ranks_with_half_the_streams_average_to_one_rank_with_all():
    """What makes data parallelism exact: all ranks draw the same candidates."""
    made, words = model(), batch(streams=4)
    loss_of(made, words).backward()
    whole = made.lstm.weight_h.grad.copy(), made.output.take_gradient().to_dense()
    halves = []
    for rank in (0, 1):
        part = slice(2 * rank, 2 * rank + 2)
        draws.begin_step(1, 1, rank)
        made.reset_state()
        for parameter in made.parameters():
            parameter.begin_step()
        made.loss(SimpleNamespace(inputs=words.inputs[part], targets=words.targets[part], new_epoch=False)).backward()
        halves.append((made.lstm.weight_h.grad.copy(), made.output.take_gradient().to_dense()))
    for a, b, c in zip(whole, *halves, strict=True):
        np.testing.assert_allclose(a, (b + c) / 2, atol=1e-14)


def test_errors():
    made = model()
    draws.begin_step(1, 1, 0)
    with pytest.raises(UsageError, match="empty batch"):
        made.loss(batch(streams=0))
    made.loss(batch(streams=3))
    with pytest.raises(UsageError, match="2 streams after one of 3"):
        made.loss(batch(streams=2))
    with pytest.raises(SparseIndexError, match="embedding"):
        made.loss(batch(vocab=100))
    wrong = batch()
    wrong.targets = wrong.targets + VOCAB
    with pytest.raises(SparseIndexError, match="output"):
        made.loss(wrong)
    with pytest.raises(UsageError, match="call eval"):
        made.evaluate(batch())
    with pytest.raises(UsageError, match='"sampled" or "full"'):
        LanguageModel(5, softmax="none")


@pytest.mark.parametrize("options", [{}, {"softmax": "full"}, {"dropout": 0.1}])
def test_it_learns_a_cycle_of_words(options):
    made = model(np.float32, **options)
    words = np.arange(600) % 7
    for step in range(120):
        draws.begin_step(1, step, 0)
        window = words[step * 4 : step * 4 + 13].reshape(1, -1)
        for parameter in made.parameters():
            parameter.begin_step()
        made.loss(SimpleNamespace(inputs=window[:, :-1], targets=window[:, 1:], new_epoch=True)).backward()
        for parameter in made.parameters():
            parameter.data[...] -= 0.5 * parameter.grad
        for _, table in made.named_tables():
            gradient = table.take_gradient()
            table.store.values[gradient.indices] -= 2 * gradient.values
    total, count = made.eval().evaluate(
        SimpleNamespace(inputs=words[None, :30], targets=words[None, 1:31], new_epoch=True)
    )
    assert np.exp(total / count) < 3
