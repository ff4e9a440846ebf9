"""Vertex functions in batches, against one vertex after the other, and against finite differences."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_graphs import graphs

from hybridmpi import autograd, nn
from hybridmpi.autograd import Tensor
from hybridmpi.dynamic import Batching, GraphPass, VertexFunction
from hybridmpi.errors import UsageError
from hybridmpi.graphs import Graphs, chains

WIDTH, HIDDEN, SLOTS = 3, 20, 3
MOVES = [Batching(), Batching(fused=False), Batching(eager=False), Batching(lazy=False), Batching(False, False, False)]


class Slots(VertexFunction):
    """Every slot by itself, joined; a leaf gathers zeros."""

    def __init__(self, dtype):
        self.own = nn.Linear(WIDTH, HIDDEN, dtype=dtype)
        self.children = nn.Linear(SLOTS * HIDDEN, HIDDEN, dtype=dtype)

    def vertex(self, v):
        below = autograd.concatenate([v.gather(slot).h for slot in range(SLOTS)], axis=1)
        h = autograd.tanh(self.own(v.pull("word")) + self.children(below)) - v.gather(1).c * 0.5
        c = autograd.sigmoid(h[:, :10]) / (2.0 + h[:, 10:] ** 2)
        v.scatter(h=h, c=autograd.concatenate([c, c], axis=1))
        v.push(h=h)


class Children(VertexFunction):
    """A sum over children, each weighted by a gate that looks at the vertex too."""

    def __init__(self, dtype):
        self.own = nn.Linear(WIDTH, HIDDEN, dtype=dtype)
        self.gate = nn.Linear(HIDDEN, HIDDEN, bias=False, dtype=dtype)
        self.scale = nn.Linear(1, HIDDEN, dtype=dtype).bias

    def vertex(self, v):
        kids, x = v.gather_all(), self.own(v.pull("word"))
        gate = autograd.sigmoid(x + self.gate(kids.h) * self.scale)
        c = v.total(gate * kids.c) + autograd.relu(x) + v.total(x * 0.1)
        v.scatter(h=autograd.exp(-(c * c)) + self.scale, c=c)
        v.push(narrow=c.reshape(-1, 4, 5).sum(axis=1) @ self._wide, last=v.total(kids.h))


def children(dtype):
    function = Children(dtype)
    function._wide = nn.Linear(5, 5, bias=False, dtype=dtype).weight
    return function


class Model(nn.Module):
    def __init__(self, dtype, **options):
        state = {"h": HIDDEN, "c": HIDDEN}
        self.passing = GraphPass({"a": Slots(dtype), "b": children(dtype)}, state, **options)


def prepared(dtype, rows, **options):
    model = Model(dtype, **options)
    model.initialise(5)
    table = Tensor(np.random.default_rng(rows).standard_normal((rows, WIDTH)).astype(dtype), requires_grad=True)
    return model, table


def results(batch, positions, dtype, rows, **options):
    """Return outputs and the gradient of everything, by name."""
    model, table = prepared(dtype, rows, **options)
    outputs = model.passing(batch, word=(table, positions))
    found, loss = {}, Tensor(np.zeros((), dtype))
    for name, vertices in outputs.vertices.items():
        tensor = getattr(outputs, name)
        found[name], found[f"vertices {name}"] = tensor.data, vertices
        weights = np.random.default_rng(7).standard_normal(tensor.shape).astype(dtype)
        loss = loss + (tensor * Tensor(weights)).sum()
    if loss.requires_grad:
        for parameter in model.parameters():
            parameter.begin_step()
        loss.backward()
        for name, parameter in model.named_parameters():
            parameter.finish_step()
            found[f"gradient {name}"] = parameter.grad.copy()
        found["gradient table"] = table.grad
    return found


@settings(deadline=None, max_examples=40)
@given(
    graphs(types=("a", "b"), arity=SLOTS, max_vertices=25, max_graphs=4),
    st.integers(0, 2**32 - 1),
    st.sampled_from(MOVES),
)
def test_batches_give_what_single_vertices_give(batch, seed, moves):
    rows = 6
    positions = np.random.default_rng(seed).integers(0, rows, batch.vertices)
    expected = results(batch, positions, np.float64, rows, policy="serial")
    for dtype, tolerance in ((np.float64, 1e-11), (np.float32, 3e-4)):
        found = results(batch, positions, dtype, rows, batching=moves)
        for name, array in expected.items():
            scale = 1 + np.abs(array).max(initial=0)
            np.testing.assert_allclose(found[name], array, rtol=0, atol=tolerance * scale, err_msg=name)


@pytest.mark.parametrize("fused", [True, False])
def test_rounds_of_few_and_of_many_rows_give_what_single_vertices_give(fused):
    # A chain of 3 above two leaves each, and 70 times a vertex above three: rounds of 1 and of 70 rows, children 210.
    types, child_starts, below, slots = [], [0], [], []
    for count in (3, *(1,) * 70):
        for place in range(count):
            kind = (place + count) % 2
            types += [1 - kind] * 3 + [kind]
            first = len(types) - 4
            under = [first, first + 1, first - 1 if place else first + 2]
            child_starts += [len(below)] * 3 + [len(below) + 3]
            below, slots = below + under, [*slots, 0, 1, 2]
    batch = Graphs([0, len(types)], types, child_starts, below, slots, ("a", "b"))
    positions = np.arange(batch.vertices) % 90
    expected = results(batch, positions, np.float64, 90, policy="serial")
    for dtype, tolerance in ((np.float64, 1e-11), (np.float32, 3e-4)):
        found = results(batch, positions, dtype, 90, batching=Batching(fused=fused))
        for name, array in expected.items():
            scale = 1 + np.abs(array).max(initial=0)
            np.testing.assert_allclose(found[name], array, rtol=0, atol=tolerance * scale, err_msg=name)


def test_gradients_are_finite_differences():
    types, child_starts = [1, 0, 1, 0, 1, 0], [0, 0, 1, 3, 5, 8, 8]
    below, slots = [0, 0, 1, 1, 1, 0, 2, 3], [0, 0, 1, 0, 2, 0, 1, 2]
    batch = Graphs([0, 5, 6], types, child_starts, below, slots, ("a", "b"))
    positions = np.array([0, 1, 2, 0, 1, 2])
    model, table = prepared(np.float64, 3)

    def value():
        outputs = model.passing(batch, word=(table, positions))
        return (outputs.h**2).sum() + outputs.last.sum()

    for parameter in model.parameters():
        parameter.begin_step()
    value().backward()
    random = np.random.default_rng(2)
    for name, parameter in [*model.named_parameters(), ("table", table)]:
        if isinstance(parameter, Tensor) and parameter is not table:
            parameter.finish_step()
        direction = random.standard_normal(parameter.data.shape)
        sides = []
        for sign in (1, -1):
            parameter.data[...] += sign * 1e-6 * direction
            sides.append(float(value()))
            parameter.data[...] -= sign * 1e-6 * direction
        slope = (sides[0] - sides[1]) / 2e-6
        assert abs(slope - float((parameter.grad * direction).sum())) < 1e-6 * (1 + abs(slope)), name


def test_what_cannot_be_known_is_asked_for():
    class Chain(VertexFunction):
        def __init__(self):
            self.next = nn.Linear(4, 4)

        def vertex(self, v):
            h = self.next(v.gather(0).h)
            v.scatter(h=h)
            v.push(h=h)

    with pytest.raises(UsageError, match=r"state=\{name: width\}"):
        GraphPass({"step": Chain()})(chains([3]))
    passing = GraphPass({"step": Chain()}, state={"h": 4})
    passing.initialise(1)
    assert passing(chains([3, 1, 2])).h.shape == (6, 4)
    with pytest.raises(UsageError, match="a child in slot 1"):
        passing(Graphs([0, 2], [0, 0], [0, 0, 1], [0], [1], ("step",)))


class Named(VertexFunction):
    """Scatters its row under one name, and gathers what is there under all."""

    def __init__(self, name):
        self.name, self.layer = name, nn.Linear(3, 3, dtype=np.float64)

    def vertex(self, v):
        below = v.gather(0)
        h = autograd.tanh(self.layer(below.a) + v.pull("x")) - 2.0 * below.b
        v.scatter(**{self.name: h})
        v.push(h=h)


def test_what_a_child_does_not_scatter_is_zeros_whatever_memory_held():
    functions = {name: Named(name) for name in ("a", "b")}
    for name, function in functions.items():
        function.initialise(ord(name))
    batched = GraphPass(functions, {"a": 3, "b": 3})
    serial = GraphPass(functions, {"a": 3, "b": 3}, policy="serial")
    random = np.random.default_rng(1)
    for _ in range(4):  # the memory of one pass serves the next, in which other types lie where these did
        types = random.integers(0, 2, 5)
        graphs = Graphs([0, 5], types, [0, 0, 1, 2, 3, 4], np.arange(4), np.zeros(4, int), ("a", "b"))
        x = Tensor(random.standard_normal((5, 3)))
        np.testing.assert_allclose(batched(graphs, x=x).h.data, serial(graphs, x=x).h.data, rtol=0, atol=1e-13)


class Louder(VertexFunction):
    """Twice as much in training, as dropout would have it."""

    def __init__(self):
        self.layer = nn.Linear(3, 3, dtype=np.float64)

    def vertex(self, v):
        h = self.layer(v.pull("x")) + v.gather(0).h
        v.scatter(h=h * 2.0 if self.training else h)
        v.push(h=h * 2.0 if self.training else h)


@pytest.mark.parametrize("policy", ["level", "serial"])
def test_training_and_evaluation_have_plans_of_their_own(policy):
    passing = GraphPass({"step": Louder()}, {"h": 3}, policy=policy)
    passing.initialise(1)
    x = Tensor(np.ones((2, 3)))
    found = {mode: passing.train(mode)(chains([1, 1]), x=x).h.data.copy() for mode in (True, False, True, False)}
    np.testing.assert_array_equal(found[True], 2.0 * found[False])
    assert found[False].any()


def test_no_gradient_is_computed_that_nobody_wants():
    functions = {name: Named(name) for name in ("a", "b")}
    passing = GraphPass(functions, {"a": 3, "b": 3})
    for function in functions.values():
        function.initialise(1)
    graphs = Graphs([0, 2], [0, 1], [0, 0, 1], [0], [0], ("a", "b"))
    for wanted in (False, True):
        x = Tensor(np.ones((2, 3)), requires_grad=wanted)
        report = passing.report(lambda x=x: passing(graphs, x=x).h.sum().backward())
        assert ("pull_gradient" in report.operations()) == wanted
        assert (x.grad is not None) == wanted
