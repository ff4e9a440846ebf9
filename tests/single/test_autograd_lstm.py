"""The fused LSTM against a transcription of its equations, finite differences, and its own other forms."""

import numpy as np
import pytest
from finite_differences import check_gradients
from hypothesis import given, settings
from hypothesis import strategies as st

from hybridmpi import autograd
from hybridmpi.autograd import LSTMWeights, Tensor, lstm, lstm_gates
from hybridmpi.errors import UsageError

FEW = settings(max_examples=12, deadline=None)
sizes = st.tuples(
    st.integers(0, 3), st.integers(0, 3), st.integers(1, 3), st.integers(1, 3), st.sampled_from([None, 1, 2])
)


def arrays(batch, steps, inputs, hidden, projection, seed=0):
    """Return x, weights and state, float64."""
    random, p = np.random.default_rng(seed), projection or hidden
    shapes = [(batch, steps, inputs), (4 * hidden, inputs), (4 * hidden, p), (4 * hidden,)]
    if projection:
        shapes.append((projection, hidden))
    return [random.normal(size=s) for s in shapes], (
        random.normal(size=(batch, p)),
        random.normal(size=(batch, hidden)),
    )


def plain(x, weights, state, projection=None):
    """Transcribe the equations, one sequence and step after the other."""
    weight_x, weight_h, bias = weights
    width = len(bias) // 4
    outputs = np.zeros((*x.shape[:2], weight_h.shape[1]))
    h_last, c_last = (part.copy() for part in state)
    for i in range(len(x)):
        h, c = state[0][i], state[1][i]
        for t in range(x.shape[1]):
            z = weight_x @ x[i, t] + weight_h @ h + bias
            gate_i, gate_f, gate_o = (1 / (1 + np.exp(-z[k * width : (k + 1) * width])) for k in (0, 1, 3))
            c = gate_f * c + gate_i * np.tanh(z[2 * width : 3 * width])
            h = gate_o * np.tanh(c)
            h = h if projection is None else projection @ h
            outputs[i, t] = h
        h_last[i], c_last[i] = h, c
    return outputs, (h_last, c_last)


def weights_of(parts):
    return LSTMWeights(*(part if isinstance(part, Tensor) else Tensor(part) for part in parts))


@FEW
@given(sizes)
def test_forward_is_the_equations(size):
    (x, *weights), state = arrays(*size)
    outputs, last = lstm(Tensor(x), state, weights_of(weights))
    expected, expected_last = plain(x, weights[:3], state, weights[3] if size[4] else None)
    np.testing.assert_allclose(outputs.data, expected, atol=1e-12)
    for found, wanted in zip(last, expected_last, strict=True):
        np.testing.assert_allclose(found, wanted, atol=1e-12)


@FEW
@given(sizes)
def test_gradients(size):
    parts, state = arrays(*size)
    check_gradients(lambda x, *weights: lstm(x, state, weights_of(weights))[0], *parts)


@FEW
@given(sizes, st.integers(1, 3))
def test_shared_rows_equal_the_looked_up_inputs(size, rows):
    (x, *weights), state = arrays(*size)
    table = np.random.default_rng(1).normal(size=(rows, x.shape[2]))
    positions = np.random.default_rng(2).integers(0, rows, x.shape[:2])
    looked_up = lstm(Tensor(table[positions]), state, weights_of(weights))[0]

    def shared(table, *weights):
        return lstm(table, state, weights_of(weights), positions)[0]

    np.testing.assert_allclose(shared(Tensor(table), *weights).data, looked_up.data, atol=1e-12)
    check_gradients(shared, table, *weights)


def test_plain_array_form_of_the_gates_equals_the_fused_one(monkeypatch):
    parts, state = arrays(3, 4, 2, 3, 2)

    def run():
        tensors = [Tensor(part.copy(), requires_grad=True) for part in parts]
        outputs, last = lstm(tensors[0], state, weights_of(tensors[1:]))
        (outputs * outputs).sum().backward()
        return [outputs.data, *last, *(t.grad for t in tensors)]

    fused = run()

    class Disguise:
        def __getattr__(self, name):
            return getattr(np, name)

    monkeypatch.setattr(lstm_gates, "namespace", lambda array: Disguise())
    for a, b in zip(fused, run(), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-14)


def test_two_uses_of_one_layer_add_up():
    (x, *weights), state = arrays(2, 3, 2, 3, 2)

    def gradients(*inputs):
        tensors = [Tensor(w, requires_grad=True) for w in weights]
        parts = [lstm(Tensor(one), state, weights_of(tensors))[0] for one in inputs]
        for part in parts:
            part.sum().backward()
        return [tensor.grad for tensor in tensors]

    for both, first, second in zip(gradients(x, x + 1), gradients(x), gradients(x + 1), strict=True):
        np.testing.assert_allclose(both, first + second, rtol=1e-12)


def test_time_first_memory_is_used_without_a_copy():
    (x, *weights), _ = arrays(2, 3, 2, 3, 2)
    outputs, _ = lstm(Tensor(x), None, weights_of(weights))
    assert outputs.data.transpose(1, 0, 2).flags.c_contiguous
    again, _ = lstm(Tensor(np.ascontiguousarray(x.transpose(1, 0, 2)).transpose(1, 0, 2)), None, weights_of(weights))
    np.testing.assert_array_equal(outputs.data, again.data)


def test_the_last_state_does_not_keep_the_memory_of_the_pass_alive():
    (x, *weights), state = arrays(2, 3, 2, 3, 2)
    _, last = lstm(Tensor(x), state, weights_of(weights))
    assert all(part.base is None for part in last)


@pytest.mark.parametrize("bad", ["input", "state", "positions"])
def test_shapes_that_do_not_fit(bad):
    (x, *weights), state = arrays(2, 3, 2, 3, 2)
    with pytest.raises(UsageError, match="expected"):
        if bad == "input":
            lstm(Tensor(x[..., :1]), state, weights_of(weights))
        elif bad == "state":
            lstm(Tensor(x), (state[1], state[0]), weights_of(weights))
        else:
            lstm(Tensor(x), state, weights_of(weights), np.zeros((2, 3), np.int64))


def test_float32_stays_float32():
    (x, *weights), _ = arrays(2, 3, 2, 3, 2)
    tensors = [Tensor(a.astype(np.float32), requires_grad=True) for a in (x, *weights)]
    outputs, last = autograd.lstm(tensors[0], None, weights_of(tensors[1:]))
    outputs.sum().backward()
    assert {outputs.dtype, *(part.dtype for part in last), *(t.grad.dtype for t in tensors)} == {np.dtype(np.float32)}
