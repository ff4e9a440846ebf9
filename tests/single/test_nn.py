"""Layers: names, initial values, modes, shapes; clipping; dropout; the log-uniform sampler."""

import collections

import numpy as np
import pytest

from hybridmpi import nn
from hybridmpi.autograd import Parameter, Tensor, draws
from hybridmpi.errors import UsageError


class Model(nn.Module):
    def __init__(self, reverse=False):
        build = [
            ("first", lambda: nn.Linear(3, 4)),
            ("words", lambda: nn.Embedding(5, 3)),
            ("drop", lambda: nn.Dropout(0.5)),
        ]
        for name, make in reversed(build) if reverse else build:
            setattr(self, name, make())
        self.layers = [nn.Linear(4, 4, bias=False), (nn.LSTM(4, 2, projection=3), nn.Embedding(2, 1))]
        self.scale = Parameter((1,), ("normal", 0.0, 1.0), np.float64)
        self.again = self.first


def test_names_are_dotted_sorted_and_each_once():
    model = Model()
    assert [name for name, _ in model.named_parameters()] == [
        "again.bias",
        "again.weight",
        "layers.0.weight",
        "layers.1.0.bias",
        "layers.1.0.projection",
        "layers.1.0.weight_h",
        "layers.1.0.weight_x",
        "scale",
    ]
    assert [name for name, _ in model.named_tables()] == ["layers.1.1", "words"]
    assert model.parameters()[0] is model.first.bias


def test_initial_values_depend_on_seed_and_name_only():
    one, other, next_seed = Model(), Model(reverse=True), Model()
    one.initialise(1)
    other.initialise(1)
    next_seed.initialise(2)
    for (name, a), (_, b), (_, c) in zip(*(m.named_parameters() for m in (one, other, next_seed)), strict=True):
        assert a.name == name
        assert a.dtype == (np.float64 if name == "scale" else np.float32)
        np.testing.assert_array_equal(a.data, b.data)
        assert not np.array_equal(a.data, c.data)
    weight = one.layers[0].weight.data
    assert np.abs(weight).max() <= 0.5 and not np.array_equal(weight, one.first.weight.data)


def test_a_layer_before_initialise_says_its_name_or_what_to_do():
    with pytest.raises(UsageError, match=r"initialise\(seed\)"):
        nn.Linear(3, 4)(Tensor(np.ones((1, 3), np.float32)))


def test_linear_and_lstm_shapes_and_dtype():
    linear, lstm = nn.Linear(3, 4, dtype=np.float64), nn.LSTM(4, 5, dtype=np.float64)
    linear.initialise(0)
    lstm.initialise(0)
    x = linear(Tensor(np.ones((2, 6, 3))))
    outputs, (h, c) = lstm(x)
    assert (outputs.shape, h.shape, c.shape, outputs.dtype) == ((2, 6, 5), (2, 5), (2, 5), np.float64)
    np.testing.assert_allclose(linear(Tensor(np.ones(3)[None])).data[0], linear.weight.data.sum(1) + linear.bias.data)
    half, state = lstm(Tensor(x.data[:, :3]))
    rest, _ = lstm(Tensor(x.data[:, 3:]), state)
    np.testing.assert_allclose(np.concatenate([half.data, rest.data], 1), outputs.data, atol=1e-14)


def test_modes_reach_everything_below():
    model = Model()
    assert model.drop.training
    assert model.eval() is model and not model.drop.training and not model.layers[1][0].training
    assert model.train().drop.training


def test_dropout():
    draws.begin_step(1, 1, 0)
    layer, x = nn.Dropout(0.25), Tensor(np.ones((200, 50), np.float32))
    out = layer(x)
    assert out.dtype == np.float32
    np.testing.assert_allclose(np.unique(out.data), [0, 4 / 3], rtol=1e-6)
    assert abs((out.data == 0).mean() - 0.25) < 0.02
    assert not np.array_equal(layer(x).data, out.data)
    draws.begin_step(1, 1, 0)
    np.testing.assert_array_equal(layer(x).data, out.data)
    assert layer.eval()(x) is x and nn.Dropout(0)(x) is x
    with pytest.raises(UsageError, match=r"Dropout\.rate = 1\.0 .*at least 0 and below 1"):
        nn.Dropout(1.0)


def test_clip_global_norm_of_parameters_and_of_flat_arrays():
    gradients = [np.array([3.0, 0.0], np.float32), np.array([[4.0]], np.float32)]
    assert nn.clip_global_norm(gradients, 10) == 5
    np.testing.assert_array_equal(gradients[0], [3, 0])
    assert nn.clip_global_norm(gradients, 1) == 5
    np.testing.assert_allclose(np.concatenate([g.ravel() for g in gradients]), [0.6, 0, 0.8])
    parameter, unwritten = Parameter((2,), ("constant", 1.0)), Parameter((2,), ("constant", 1.0))
    parameter.initialise(np.random.default_rng(0))
    (parameter * np.array([6, 8], np.float32)).sum().backward()
    assert nn.clip_global_norm([parameter, unwritten], 5) == 10
    np.testing.assert_allclose(parameter.grad, [3, 4])
    bad = np.array([np.inf, 1])
    assert nn.clip_global_norm([bad], 1) == np.inf and bad[1] == 1
    assert nn.clip_global_norm([], 1) == 0
    with pytest.raises(UsageError, match="above 0"):
        nn.clip_global_norm([], 0)


def test_log_uniform_draws_as_often_as_it_says():
    sampler, generator = nn.LogUniform(50, 1000), np.random.default_rng(0)
    drawn = np.concatenate([sampler.draw(generator) for _ in range(200)])
    assert drawn.dtype == np.int64 and drawn.min() == 0 and drawn.max() == 49
    shares = np.log1p(1 / np.arange(1, 51)) / np.log(51)
    np.testing.assert_allclose(np.bincount(drawn, minlength=50) / 200, 1000 * shares, rtol=0.06)
    few = nn.LogUniform(50, 8)
    seen = np.mean([np.isin(np.arange(50), few.draw(generator)) for _ in range(4000)], axis=0)
    np.testing.assert_allclose(seen, np.exp(few.log_chance(np.arange(50))), atol=0.04)
    assert nn.LogUniform(1, 3).log_chance(np.zeros(1, int)) == 0
    with pytest.raises(UsageError, match="at least 1"):
        nn.LogUniform(0, 5)


def named(**parts):
    """A module with these attributes, whatever their names are."""
    module = nn.Module()
    for name, part in parts.items():
        setattr(module, name, part)
    return module


@pytest.mark.parametrize("kind", [set, frozenset, collections.deque])
def test_parts_without_lasting_names_are_refused_and_other_values_left_alone(kind):
    model = nn.Module()
    model.words, model.heads = kind(["a", "b"]), {"left": kind([nn.Linear(2, 2)])}
    with pytest.raises(UsageError, match=rf"self.heads\['left'\] is a {kind.__name__} of modules .* list, a tuple"):
        model.named_parameters()
    del model.heads
    assert model.named_parameters() == []


def test_two_parts_of_one_name_are_refused_with_both_places():
    for one, other in (
        ({"a": nn.Linear(2, 2)}, {"a.weight": Parameter((1,), ("constant", 0.0))}),
        ({"a": [nn.Embedding(2, 2)]}, {"a.0": nn.Embedding(3, 2)}),
    ):
        for parts in (one | other, other | one):
            model = named(**parts)
            for ask in (model.named_parameters, model.named_tables, lambda model=model: model.initialise(1)):
                with pytest.raises(UsageError, match=r"self\.a.* and .*getattr\(self, 'a\..*|getattr.* and self\.a"):
                    ask()
    assert len(named(a=nn.Linear(2, 2), **{"b.weight": Parameter((1,), ("constant", 0.0))}).named_parameters()) == 3


@pytest.mark.parametrize("name", ["", "/", "a/b", "\0", "a\nb", "\x1b[1m", ".", "a..b", ".a", "a.", "\udcff"])
def test_names_that_cannot_be_stored_are_refused_when_asked_for(name):
    for part in (nn.Linear(2, 2), nn.Embedding(2, 2), Parameter((1,), ("constant", 0.0))):
        with pytest.raises(UsageError, match="cannot be stored in a checkpoint"):
            named(**{name: part}).named_parameters()
    assert named(**{"größe 2": nn.Linear(2, 2)}).named_parameters()[0][0] == "größe 2.bias"


def test_a_reference_back_to_the_whole_is_none_of_its_parts():
    model = named(layer=nn.Linear(2, 2), part=named(words=nn.Embedding(3, 2)), items=[])
    model.part.whole, model.part.layer = model, model.layer
    model.items += [model.items, model]
    assert [name for name, _ in model.named_parameters()] == ["layer.bias", "layer.weight"]
    assert [name for name, _ in model.named_tables()] == ["part.words"]
    model.initialise(1)
    assert not model.eval().part.training and model.train().part.words.training


@pytest.mark.parametrize(
    "dtype", [np.float16, np.longdouble, complex, np.int64, np.uint8, bool, object, "U1", "?", None, "x", 7]
)
def test_what_is_trained_is_float32_or_float64(dtype):
    for make in (
        lambda: nn.Linear(2, 2, dtype=dtype),
        lambda: nn.LSTM(2, 2, dtype=dtype),
        lambda: nn.Embedding(2, 2, dtype=dtype),
        lambda: nn.EmbeddingBag(2, 2, dtype=dtype),
        lambda: Parameter((2,), ("constant", 1.0), dtype),
    ):
        with pytest.raises(UsageError, match=r"expected numpy.float32 or numpy.float64"):
            make()


def test_dtypes_of_other_byte_order_are_taken_in_the_machines_own():
    for dtype in (">f4", "<f4", ">f8", float, "float32"):
        own = np.dtype(dtype).newbyteorder("=")
        assert nn.Linear(2, 2, dtype=dtype).weight.dtype == own == nn.Embedding(2, 2, dtype=dtype).dtype
        assert nn.Linear(2, 2, dtype=dtype).weight.dtype.isnative


@pytest.mark.parametrize("shape", [3, (-1,), (2.0,), "ab", None, (2, None)])
def test_shapes_of_parameters_are_lengths(shape):
    with pytest.raises(UsageError, match="a Parameter of shape"):
        Parameter(shape, ("constant", 0.0))
