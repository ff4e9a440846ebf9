"""Passes read no memory but their own: values that move, copies of constants, inputs that lie in another order."""

import gc

import numpy as np
import pytest

from hybridmpi import autograd
from hybridmpi.autograd import Parameter, Tensor
from hybridmpi.dynamic import GraphPass, VertexFunction
from hybridmpi.errors import UsageError
from hybridmpi.graphs import Graphs

WIDTH = 37
BRANCHED = Graphs([0, 4], [0] * 4, [0, 0, 0, 2, 3], [0, 1, 2], [0, 1, 0], ("a",))
POLICIES = ("serial", "level")


class Scaled(VertexFunction):
    """Uses a matrix, a row and a number, which is repeated for a row."""

    def __init__(self):
        self.matrix = Parameter((WIDTH, WIDTH), ("uniform", -0.3, 0.3), np.float64)
        self.row = Parameter((WIDTH,), ("uniform", -1, 1), np.float64)
        self.number = Parameter((1,), ("uniform", 0.5, 1), np.float64)

    def vertex(self, v):
        below = v.gather(0).h - v.gather(1).h
        h = autograd.tanh(v.pull("x") @ self.matrix * self.number + below * self.row)
        v.scatter(h=h)
        v.push(h=h * self.number)


class Written(VertexFunction):
    """Whatever a function does with a tensor."""

    def __init__(self, work, tensor=None):
        self.work, self.tensor = work, tensor

    def vertex(self, v):
        self.work(v, self.tensor)


def scaled(policy):
    passing = GraphPass({"a": Scaled()}, {"h": WIDTH}, policy=policy)
    passing.initialise(3)
    for parameter in passing.parameters():
        parameter.begin_step()
    return passing


def inputs(count):
    random = np.random.default_rng(count)
    return [Tensor(random.standard_normal((4, WIDTH)), requires_grad=True) for _ in range(count)]


def gradients(passing, rows, move=lambda passing: None):
    """Forward for all rows, then `move`, then backward."""
    losses = [passing(BRANCHED, x=x).h.sum() for x in rows]
    move(passing)
    gc.collect()
    held = [np.full(shape, 1e9) for shape in (WIDTH, (WIDTH, WIDTH)) for _ in range(200)]  # where memory became free
    for loss in losses:
        loss.backward()
    del held
    return [tensor.grad for tensor in (*rows, *passing.parameters())]


def attached(passing):
    """Move all parameters to buffers of their own, and run a pass that finds them there."""
    for parameter in passing.parameters():
        parameter.attach(np.empty(parameter.shape), np.empty(parameter.shape))
    passing(BRANCHED, x=inputs(1)[0])


@pytest.mark.parametrize("move", [lambda passing: None, attached])
def test_several_passes_at_once_find_the_parameters_that_they_began_with(move):
    serial, level = (gradients(scaled(policy), inputs(5), move) for policy in POLICIES)
    for ours, expected in zip(level, serial, strict=True):
        np.testing.assert_allclose(ours, expected, rtol=0, atol=1e-11)


def pushed(work, x, tensor=None, graphs=BRANCHED, dtype=np.float64):
    """Return what a function pushes as h by each policy, and the gradient of its tensor."""
    found = []
    for policy in POLICIES:
        h = GraphPass({"a": Written(work, tensor)}, {"h": x[0].shape[1]}, policy=policy)(graphs, x=x).h
        if tensor is not None:
            tensor.grad = None
            h.sum().backward()
        found.append((h.data, None if tensor is None else tensor.grad.copy()))
    return found


@pytest.mark.parametrize("positions", [np.arange(4), np.array([0, 2, 2, 1])])
def test_inputs_may_lie_in_any_order(positions):
    def work(v, _):
        v.scatter(h=v.pull("x"))
        v.push(h=v.pull("x") + v.gather(0).h * v.gather(1).h)

    rows = np.random.default_rng(0).standard_normal((8, 6))
    for array in (rows[:4, ::2], np.asfortranarray(rows[:4]), rows[::2], rows.T[:4]):
        (serial, _), (level, _) = pushed(work, (Tensor(array), positions))
        np.testing.assert_array_equal(level, serial)


def test_a_gradient_is_laid_out_as_the_parameter_was_given():
    alone = Graphs([0, 4], [0] * 4, [0] * 5, [], [], ("a",))
    x = Tensor(np.random.default_rng(1).standard_normal((4, 3)))
    parameter = Parameter((3, 3), ("constant", 0), np.float64)
    parameter.assign(np.asfortranarray(np.arange(9.0).reshape(3, 3)))
    work = lambda v, matrix: v.push(h=(v.pull("x") @ matrix) ** 2)  # noqa: E731
    serial, level = pushed(work, (x, np.arange(4)), parameter, alone)
    for ours, expected in zip(level, serial, strict=True):
        np.testing.assert_allclose(ours, expected, rtol=1e-13)


@pytest.mark.parametrize("shape", [(3, 3), (3,)])
def test_tensors_that_are_no_parameters_get_gradients_too(shape):
    alone = Graphs([0, 4], [0] * 4, [0] * 5, [], [], ("a",))
    x = Tensor(np.random.default_rng(1).standard_normal((4, 3)))
    tensor = Tensor(np.random.default_rng(2).standard_normal(shape), requires_grad=True)
    work = lambda v, t: v.push(h=v.pull("x") @ t if len(t.shape) == 2 else v.pull("x") * t)  # noqa: E731
    serial, level = pushed(work, (x, np.arange(4)), tensor, alone)
    for ours, expected in zip(level, serial, strict=True):
        np.testing.assert_allclose(ours, expected, rtol=1e-13)


def test_children_may_be_counted_and_not_gathered():
    def work(v, _):
        v.push(h=v.total(v.pull("x")))

    (serial, _), (level, _) = pushed(work, (inputs(1)[0].detach(), np.arange(4)))
    np.testing.assert_array_equal(level, serial)


def test_what_would_be_read_wrongly_is_refused():
    x = Tensor(np.ones((4, 3)))
    narrow = Tensor(np.ones(3, np.float32))

    def run(work, positions=np.arange(4)):  # noqa: B008
        GraphPass({"a": Written(work)}, {"h": 3})(Graphs([0, 4], [0] * 4, [0] * 5, [], [], ("a",)), x=(x, positions))

    with pytest.raises(UsageError, match="in one dtype"):
        run(lambda v, _: v.push(h=v.pull("x") * narrow))
    with pytest.raises(UsageError, match="have that already"):
        run(lambda v, _: v.push(vertices=v.pull("x")))
    with pytest.raises(UsageError, match="input 'x': position of dtype float64: expected integers"):
        run(lambda v, _: v.push(h=v.pull("x")), np.arange(4) + 0.5)


def test_rows_computed_from_parameters_are_refused_without_gradients_too():
    passing = GraphPass({"a": Written(lambda v, row: v.push(h=v.pull("x") * (2.0 * row)), Scaled().row)})
    passing.initialise(1)
    with autograd.no_grad(), pytest.raises(UsageError, match="computed from others before"):
        passing(BRANCHED, x=Tensor(np.ones((4, WIDTH))))
