"""The tape itself: order, sharing, reuse, no_grad; and the gradient protocol of parameters."""

import gc
import weakref

import numpy as np
import pytest

from hybridmpi import autograd
from hybridmpi.autograd import Parameter, Tensor, no_grad
from hybridmpi.errors import UsageError


def test_a_value_used_twice_gets_both_gradients_and_shared_arrays_stay_apart():
    x = Tensor(np.array([1.0, 2.0]), requires_grad=True)
    y = x + x
    z = y * x + y
    z.sum().backward()
    np.testing.assert_allclose(x.grad, 4 * x.data + 2)
    a, b = Tensor(np.ones(2), requires_grad=True), Tensor(np.ones(2), requires_grad=True)
    (a + b).sum().backward()
    a.grad *= 5
    np.testing.assert_array_equal(b.grad, [1, 1])


def test_gradients_add_up_over_backwards():
    x = Tensor(np.array([3.0]), requires_grad=True)
    for _ in range(2):
        (x * x).sum().backward()
    np.testing.assert_allclose(x.grad, [12.0])


def test_a_deep_chain_needs_no_recursion():
    x = Tensor(np.ones(1), requires_grad=True)
    y = x
    for _ in range(5000):
        y = y + 1.0
    y.sum().backward()
    np.testing.assert_array_equal(x.grad, [1.0])


def test_history_is_used_up():
    x = Tensor(np.ones(2), requires_grad=True)
    shared = x * 2
    shared.sum().backward()
    with pytest.raises(UsageError, match="a second time"):
        (shared * 3).sum().backward()


def test_backward_needs_history_and_a_scalar():
    with pytest.raises(UsageError, match="no_grad"):
        Tensor(np.ones(())).backward()
    x = Tensor(np.ones(2), requires_grad=True)
    with pytest.raises(UsageError, match="needs a gradient of that shape"):
        (x * 2).backward()
    with pytest.raises(UsageError, match=r"gradient given to backward.* of shape \(3,\)"):
        (x * 2).backward(np.ones(3))


def test_a_weight_from_outside_scales_the_gradient_and_keeps_the_dtype():
    x = Tensor(np.ones(2, np.float32), requires_grad=True)
    (x * 3).sum().backward(0.5)
    np.testing.assert_array_equal(x.grad, np.array([1.5, 1.5]))
    assert x.grad.dtype == np.float32


def test_no_grad_remembers_nothing_and_ends_with_its_block():
    x = Tensor(np.ones(2), requires_grad=True)
    with pytest.raises(ZeroDivisionError), no_grad():
        assert not (x * 2).requires_grad
        raise ZeroDivisionError
    assert (x * 2).requires_grad


def test_results_are_freed_without_the_garbage_collector():
    gc.disable()
    try:
        x = Tensor(np.ones(2), requires_grad=True)
        y = x * 2
        trace, z = weakref.ref(y), autograd.tanh(y).sum()
        del y
        assert trace() is not None
        z.backward()
        assert trace() is None
    finally:
        gc.enable()


def ready(shape=(2, 3), value=0.5):
    parameter = Parameter(shape, ("constant", value))
    parameter.initialise(np.random.default_rng(0))
    return parameter


def test_parameter_without_values_says_what_to_do():
    parameter = Parameter((2, 3), ("uniform", -1.0, 1.0))
    assert (parameter.shape, parameter.dtype, parameter.size) == ((2, 3), np.float32, 6)
    with pytest.raises(UsageError, match=r"initialise\(seed\)"):
        _ = parameter + 1.0
    with pytest.raises(UsageError, match="expected one of"):
        Parameter((2,), ("uniform", 1.0))


def test_attached_views_receive_values_and_gradients():
    parameter = ready()
    flat, gradients = np.zeros(10, np.float32), np.full(10, 7, np.float32)
    parameter.attach(flat[2:8].reshape(2, 3), gradients[2:8].reshape(2, 3))
    np.testing.assert_array_equal(flat, [0, 0, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 0, 0])
    x = Tensor(np.ones((4, 3), np.float32))
    parameter.begin_step()
    assert parameter.grad is None
    autograd.linear(x, parameter).sum().backward()
    np.testing.assert_array_equal(gradients[2:8], 4)  # written over what was there, not added to it
    autograd.linear(x, parameter).sum().backward()
    np.testing.assert_array_equal(gradients[2:8], 8)
    assert parameter.finish_step()
    np.testing.assert_array_equal(gradients[[0, 1, 8, 9]], 7)
    assert parameter.grad.base is gradients or parameter.grad.base.base is gradients


def test_finish_step_fills_an_unwritten_gradient_with_zeros():
    parameter = ready()
    (parameter * 2).sum().backward()
    parameter.begin_step()
    assert not parameter.finish_step()
    np.testing.assert_array_equal(parameter.grad, np.zeros((2, 3)))


def test_attach_refuses_views_that_do_not_fit():
    parameter = ready()
    good = np.zeros((2, 3), np.float32)
    for bad in (np.zeros((3, 2), np.float32), np.zeros((2, 3)), np.zeros((3, 2), np.float32).T):
        with pytest.raises(UsageError, match="C-contiguous"):
            parameter.attach(good, bad)
    with pytest.raises(UsageError, match=r"values of parameter .* of shape \(2,\): expected \(2, 3\)"):
        parameter.assign(np.zeros(2))


def test_on_written_comes_once_after_the_last_contribution_and_before_earlier_layers():
    events = []
    first, second, unused = ready((3, 3)), ready((3, 3)), ready((3, 3))
    for name, parameter in (("first", first), ("second", second), ("unused", unused)):
        parameter.on_written = lambda p, name=name: events.append((name, p.grad.copy()))
    x = Tensor(np.ones((2, 3), np.float32))
    y = autograd.linear(autograd.linear(autograd.linear(x, first), second), second)
    y.sum().backward()
    assert [name for name, _ in events] == ["second", "first"]
    for (_, seen), parameter in zip(events, (second, first), strict=True):
        np.testing.assert_array_equal(seen, parameter.grad)
