"""Optimisers: torch's formulas, equal bits of row and dense form, untouched rows, names and refusals."""

import json

import numpy as np
import pytest

from hybridmpi.errors import UsageError
from hybridmpi.optim import OPTIMIZERS, SGD, Adagrad, Adam, Momentum, by_name, from_description

RULES = [SGD(0.1), Momentum(0.1, 0.8), Adagrad(0.3), Adam(0.01)]
BY_RULE = pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
DTYPES = pytest.mark.parametrize("dtype", [np.float32, np.float64])


def torch_reference(rule, values, all_gradients):
    """Return the values after the steps of `all_gradients`, in float64, transcribed from torch.optim (2.x, single
    tensor, default options)."""
    w = values.astype(np.float64)
    v = np.zeros_like(w)
    m = np.zeros_like(w)
    a = np.full_like(w, getattr(rule, "initial", 0.0))
    for step, g in enumerate((g.astype(np.float64) for g in all_gradients), start=1):
        if rule.name == "sgd":
            w = w - rule.rate * g
        elif rule.name == "momentum":
            v = g if step == 1 else rule.momentum * v + g
            w = w - rule.rate * v
        elif rule.name == "adagrad":
            a = a + g * g
            w = w - rule.rate * (g / (np.sqrt(a) + rule.epsilon))
        else:
            m = m + (g - m) * (1 - rule.beta1)
            v = rule.beta2 * v + (1 - rule.beta2) * g * g
            denominator = np.sqrt(v) / np.sqrt(1 - rule.beta2**step) + rule.epsilon
            w = w - rule.rate / (1 - rule.beta1**step) * (m / denominator)
    return w


def gradients(steps, shape, dtype):
    return np.random.default_rng(5).standard_normal((steps, *shape)).astype(dtype)


@DTYPES
@BY_RULE
def test_dense_form_follows_torch(rule, dtype):
    values = np.random.default_rng(1).standard_normal(1003).astype(dtype)
    start = values.copy()
    state = rule.new_state(values)
    grads = gradients(5, (1003,), dtype)
    for step, gradient in enumerate(grads, start=1):
        rule.update_dense(values, gradient, state, step)
    tolerance = 2e-6 if dtype == np.float32 else 1e-14
    np.testing.assert_allclose(values, torch_reference(rule, start, grads), rtol=tolerance, atol=tolerance)
    assert values.dtype == dtype


@DTYPES
@BY_RULE
def test_arithmetic_stays_in_the_dtype_of_the_values(rule, dtype):
    """One step, rounded after every operation as numpy does: no contraction, no widening to float64."""
    w, g = gradients(2, (257,), dtype)
    state = {slot: abs(array) for slot, array in zip(rule.slots, gradients(2, (257,), dtype), strict=False)}
    to = dtype
    rate = to(rule.rate)
    if rule.name == "sgd":
        expected = w - rate * g
    elif rule.name == "momentum":
        expected = w - rate * (to(rule.momentum) * state["velocity"] + g)
    elif rule.name == "adagrad":
        expected = w - rate * g / (np.sqrt(state["accumulator"] + g * g) + to(rule.epsilon))
    else:
        m = to(rule.beta1) * state["first_moment"] + to(1 - rule.beta1) * g
        v = to(rule.beta2) * state["second_moment"] + to(1 - rule.beta2) * g * g
        denominator = np.sqrt(v) / to(np.sqrt(1 - rule.beta2**3)) + to(rule.epsilon)
        expected = w - to(rule.rate / (1 - rule.beta1**3)) * m / denominator
    rule.update_dense(w, g, state, 3)
    np.testing.assert_array_equal(w, expected)


@DTYPES
@BY_RULE
@pytest.mark.parametrize("width", [1, 5, 64])
def test_row_form_on_all_rows_has_the_bits_of_the_dense_form(rule, dtype, width):
    table = np.random.default_rng(2).standard_normal((37, width)).astype(dtype)
    dense = table.copy().reshape(-1)
    row_state, dense_state = rule.new_state(table), rule.new_state(dense)
    positions = np.random.default_rng(3).permutation(37)
    for step, gradient in enumerate(gradients(4, (37, width), dtype), start=1):
        rule.update_rows(table, row_state, positions, gradient[positions], step)
        rule.update_dense(dense, gradient.reshape(-1), dense_state, step)
    np.testing.assert_array_equal(table.reshape(-1), dense)
    for slot in rule.slots:
        np.testing.assert_array_equal(row_state[slot].reshape(-1), dense_state[slot])


@BY_RULE
def test_other_rows_stay_untouched(rule):
    table = np.random.default_rng(4).standard_normal((20, 8)).astype(np.float32)
    state = rule.new_state(table)
    before, state_before = table.copy(), {slot: array.copy() for slot, array in state.items()}
    touched = np.array([3, 0, 19])
    rest = np.setdiff1d(np.arange(20), touched)
    rule.update_rows(table, state, touched, np.ones((3, 8), np.float32), 1)
    assert (table[touched] != before[touched]).all()
    np.testing.assert_array_equal(table[rest], before[rest])
    for slot in rule.slots:
        assert (state[slot][touched] != state_before[slot][touched]).all()
        np.testing.assert_array_equal(state[slot][rest], state_before[slot][rest])


@BY_RULE
def test_no_rows_and_no_elements(rule):
    table = np.ones((4, 3), np.float32)
    rule.update_rows(table, rule.new_state(table), np.empty(0, np.int64), np.empty((0, 3), np.float32), 1)
    assert (table == 1).all()
    nothing = np.empty((0, 3), np.float32)
    rule.update_rows(nothing, rule.new_state(nothing), np.empty(0, np.int64), nothing, 1)
    flat = np.empty(0, np.float32)
    rule.update_dense(flat, flat, rule.new_state(flat), 1)


@BY_RULE
def test_state_that_is_saved_and_restored_goes_on_alike(rule):
    values = np.ones(50, np.float32)
    state = rule.new_state(values)
    assert tuple(state) == rule.slots
    assert all(array.shape == values.shape and array.dtype == values.dtype for array in state.values())
    first, second = gradients(2, (50,), np.float32)
    rule.update_dense(values, first, state, 1)
    saved_values, saved = values.copy(), {slot: array.copy() for slot, array in state.items()}
    rule.update_dense(values, second, state, 2)
    from_description(json.loads(json.dumps(rule.describe()))).update_dense(saved_values, second, saved, 2)
    np.testing.assert_array_equal(values, saved_values)


@BY_RULE
def test_shapes_that_do_not_fit_change_nothing(rule):
    table = np.ones((4, 3), np.float32)
    with pytest.raises(ValueError, match="row update: table"):
        rule.update_rows(table, rule.new_state(table), np.array([1, 2]), np.ones((3, 3), np.float32), 1)
    with pytest.raises(ValueError, match="dense update: values"):
        rule.update_dense(table.reshape(-1), np.ones(11, np.float32), rule.new_state(table.reshape(-1)), 1)
    assert (table == 1).all()


def test_adam_counts_steps_from_one():
    values = np.ones(3, np.float32)
    with pytest.raises(ValueError, match="got step 0"):
        Adam(0.1).update_dense(values, values.copy(), Adam(0.1).new_state(values), 0)


def test_adagrad_starts_at_initial():
    assert (Adagrad(0.1, initial=0.25).new_state(np.zeros((2, 2), np.float32))["accumulator"] == 0.25).all()


@BY_RULE
def test_description_makes_the_same_optimiser(rule):
    assert from_description(rule.describe()) == rule
    assert by_name(rule.name, rate=rule.rate) == type(rule)(rule.rate)
    assert OPTIMIZERS[rule.name] is type(rule)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: SGD(0), r"SGD\.rate = 0 \(a whole number\); expected a number, above 0"),
        (lambda: SGD(float("nan")), r"SGD\.rate = nan "),
        (lambda: SGD(float("inf")), r"SGD\.rate = inf "),
        (lambda: SGD("0.1"), r'SGD\.rate = "0\.1" \(a string\)'),
        (lambda: SGD(True), r"SGD\.rate = True \(a truth value\)"),
        (lambda: Momentum(0.1, 1.0), r"Momentum\.momentum = 1\.0 .*expected a number, at least 0 and below 1"),
        (lambda: Adagrad(0.1, initial=-1), r"Adagrad\.initial = -1 .*expected a number, at least 0"),
        (lambda: Adagrad(0.1, epsilon=0), r"Adagrad\.epsilon = 0 "),
        (lambda: Adam(0.1, beta2=1), r"Adam\.beta2 = 1 "),
        (lambda: by_name("adagard", rate=0.1), "unknown optimiser 'adagard'; did you mean 'adagrad'?"),
        (lambda: by_name("adam", rate=0.1, beta=0.9), "unknown option 'beta'; did you mean 'beta"),
        (lambda: by_name("adam"), "option 'rate' is missing"),
        (lambda: by_name(3, rate=0.1), "unknown optimiser 3"),
        (lambda: from_description({"rate": 0.1}), "no 'name'"),
    ],
)
def test_refusals_say_what_was_expected(make, message):
    with pytest.raises(UsageError, match=message):
        make()


def test_settings_are_frozen_floats():
    rule = SGD(1)
    assert rule.rate == 1.0 and isinstance(rule.rate, float)
    with pytest.raises(AttributeError):
        rule.rate = 2.0


def lazy_adam(rule, gradients, epsilon_is_torch_sparse):
    """Return the value of an element that begins at 0, in float64, after the steps of `gradients`; None: not touched.

    Transcribed from the paper's algorithm, or from torch.optim.SparseAdam (2.x, _functional.sparse_adam)."""
    w = m = v = 0.0
    for step, g in enumerate(gradients, 1):
        if g is None:
            continue
        m += (1 - rule.beta1) * (g - m)
        v += (1 - rule.beta2) * (g * g - v)
        first, second = 1 - rule.beta1**step, 1 - rule.beta2**step
        if epsilon_is_torch_sparse:
            w -= rule.rate * np.sqrt(second) / first * (m / (np.sqrt(v) + rule.epsilon))
        else:
            w -= rule.rate * (m / first) / (np.sqrt(v / second) + rule.epsilon)
    return w


@pytest.mark.parametrize(("size", "apart"), [(1e-6, 0.1852), (1.0, 0.0)])
def test_rows_move_by_lazy_adam_with_the_papers_epsilon(size, apart):
    """Where epsilon matters, torch's SparseAdam moves rows less: the documentation says how."""
    rule, given = Adam(0.1), [size, size, None, size]
    table, state = np.zeros((2, 1)), rule.new_state(np.zeros((2, 1)))
    for step, g in enumerate(given, 1):
        if g is not None:
            rule.update_rows(table, state, np.array([1]), np.array([[g]]), step)
    ours, theirs = lazy_adam(rule, given, False), lazy_adam(rule, given, True)
    assert table[1, 0] == pytest.approx(ours, rel=1e-9) and table[0, 0] == 0
    assert 1 - theirs / ours == pytest.approx(apart, abs=1e-4)
