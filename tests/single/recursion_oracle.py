"""Trees for tests of recursive functions, tables in memory, and everything that a run gives, by name."""

import numpy as np
from hypothesis import strategies as st

from hybridmpi import autograd, nn
from hybridmpi.autograd import Tensor
from hybridmpi.dynamic import push, recursive

WIDTH, HIDDEN, WORDS, TAGS = 3, 4, 9, 5


class Node:
    """A vertex of a tree: its children, a word, a label, and a number that says what a body does with it."""

    def __init__(self, kids=(), word=0, label=0, act=0):
        self.kids, self.word, self.label, self.act = list(kids), word, label, act


class Store:
    """Rows of a table in memory."""

    def __init__(self, rows, dim, dtype):
        self.values = np.random.default_rng(rows).standard_normal((rows, dim)).astype(dtype)
        self.rows, self.dim, self.dtype, self.name = rows, dim, np.dtype(dtype), "table"

    def pull(self, ids):
        """Return rows, as copies: who writes to them changes nothing here."""
        return self.values[ids]


@st.composite
def forests(draw, acts=9, most=14, trees=4, arity=4, least=1):
    """Draw some trees of `least` to `most` vertices: mixed arity, single vertices, high and flat ones."""
    sizes = draw(st.lists(st.integers(least, most), min_size=1, max_size=trees))
    near = draw(st.sampled_from([1, 3, 100]))  # small: high trees
    random = np.random.default_rng(draw(st.integers(0, 2**16)))
    return [tree(random, size, acts, arity, near) for size in sizes]


def tree(random, size, acts, arity=4, near=3):
    """Return the root of a random tree of so many vertices."""
    made = []
    for _ in range(size):
        words, label, act = int(random.integers(WORDS)), int(random.integers(4)), int(random.integers(acts))
        node = Node((), words, label, act)
        free = [other for other in made[-near:] if len(other.kids) < arity]
        if made:
            parents = free or [other for other in made if len(other.kids) < arity]
            parents[int(random.integers(len(parents)))].kids.append(node)
        made.append(node)
    return made[0]


def chain(length, **options):
    """Return the root of vertices one below the other."""
    node = Node(**options)
    for _ in range(length - 1):
        node = Node((node,), **options)
    return node


def prepared(model, seed=5):
    """Give a model its parameters, and its tables rows in memory; return it."""
    model.initialise(seed)
    for _, table in model.named_tables():
        table.store = Store(table.rows, table.dim, table.dtype)
    return model


def results_of(outputs):
    """Return the tensors that roots return, by name."""
    results = outputs.results
    if results is None:
        return {}
    listed = results if isinstance(results, (tuple, list)) else [results]
    return {f"{type(results).__name__} result {number}": tensor for number, tensor in enumerate(listed)}


def measured(model, run, given=()):
    """Return all that `run()` gives, tensors, data and owners by name, and the gradients of a sum over all of it."""
    for parameter in model.parameters():
        parameter.begin_step()
    outputs = run()
    named = {name: value for name, value in vars(outputs).items() if name not in ("results", "roots")}
    tensors = {name: value for name, value in named.items() if isinstance(value, Tensor)}
    tensors |= results_of(outputs)
    found = {f"data {name}": np.asarray(value) for name, value in named.items() if name not in tensors}
    found |= {f"roots {name}": owners for name, owners in outputs.roots.items()}
    loss = Tensor(np.zeros(()))
    for name, tensor in tensors.items():
        found[name] = tensor.data
        weights = np.random.default_rng([*name.encode()]).standard_normal(tensor.shape)
        loss = loss + (autograd.tanh(tensor) * Tensor(weights)).sum()
    if loss.requires_grad:
        loss.backward()
    for name, parameter in model.named_parameters():
        parameter.finish_step()
        found[f"gradient {name}"] = parameter.grad.copy()
    for name, table in model.named_tables():
        found[f"gradient {name}"] = table.take_gradient().to_dense()
    for number, tensor in enumerate(given):
        found[f"gradient of argument {number}"] = np.zeros(tensor.shape) if tensor.grad is None else tensor.grad.copy()
        tensor.grad = None
    return found


def assert_alike(found, expected, tolerance=1e-11):
    """Fail unless two measurements agree; what has no rows may be missing in one of them."""
    for name in sorted({*found, *expected}):
        mine, theirs = found.get(name), expected.get(name)
        if mine is None or theirs is None:
            assert not len(theirs if mine is None else mine), f"{name} is missing"
            continue
        assert mine.shape == theirs.shape, name
        if mine.dtype.kind == "f":
            scale = 1 + np.abs(theirs).max(initial=0)
            np.testing.assert_allclose(mine, theirs, rtol=0, atol=tolerance * scale, err_msg=name)
        else:
            np.testing.assert_array_equal(mine, theirs, name)


def assert_batched(model, function, *arguments):
    """Fail unless a function gives for many roots what one call after the other does."""
    given = [argument for argument in arguments if isinstance(argument, Tensor)]
    expected = measured(model, lambda: function.over(*arguments, policy="serial"), given)
    assert_alike(measured(model, lambda: function.over(*arguments), given), expected)


def slope_is_right(model, value, extra=()):
    """Fail unless backward of `value()` gives the slopes of finite differences, for every parameter, table and more."""
    for parameter in model.parameters():
        parameter.begin_step()
    value().backward()
    random = np.random.default_rng(2)
    arrays = []
    for name, parameter in model.named_parameters():
        parameter.finish_step()
        arrays.append((name, parameter.data, parameter.grad.copy()))
    for name, table in model.named_tables():
        arrays.append((name, table.store.values, table.take_gradient().to_dense()))
    arrays += [(f"argument {number}", tensor.data, tensor.grad) for number, tensor in enumerate(extra)]
    for name, array, gradient in arrays:
        direction = random.standard_normal(array.shape)
        sides = []
        for sign in (1, -1):
            array[...] += sign * 1e-6 * direction
            sides.append(float(value()))
            array[...] -= sign * 1e-6 * direction
        slope = (sides[0] - sides[1]) / 2e-6
        assert abs(slope - float((gradient * direction).sum())) < 1e-6 * (1 + abs(slope)), name
        assert np.abs(gradient).max() > 0, f"{name} has no gradient"


class Cell(nn.Module):
    """A layer of its own: what a vertex computes from its word and from the sum over its children."""

    def __init__(self, dtype=np.float64):
        self.own = nn.Linear(WIDTH, HIDDEN, dtype=dtype)
        self.below = nn.Linear(HIDDEN, HIDDEN, bias=False, dtype=dtype)

    def forward(self, x, below):
        h = self.own(x) if below is None else self.own(x) + self.below(below)
        return autograd.tanh(h)


class TreeLSTM(nn.Module):
    """The Tree-LSTM of two children, in recursive form."""

    def __init__(self, dtype=np.float64):
        self.words = nn.Embedding(WORDS, WIDTH, dtype=dtype)
        self.leaf = nn.Linear(WIDTH, 3 * HIDDEN, dtype=dtype)
        self.inner = nn.Linear(2 * HIDDEN, 5 * HIDDEN, dtype=dtype)

    @recursive
    def encode(self, node):
        if node.kids:
            h, c = inner_lstm(self.inner, *(self.encode(kid) for kid in node.kids))
        else:
            h, c = leaf_lstm(self.leaf, self.words(node.word))
        push(h=h, label=node.label)
        return h, c


def leaf_lstm(gates, x):
    """Return (h, c) of a leaf."""
    i, o, u = parts(gates(x), 3)
    c = autograd.sigmoid(i) * autograd.tanh(u)
    return autograd.sigmoid(o) * autograd.tanh(c), c


def inner_lstm(gates, left, right):
    """Return (h, c) of a vertex with two children, each (h, c)."""
    i, o, u, first, second = parts(gates(autograd.concatenate([left[0], right[0]], axis=1)), 5)
    c = autograd.sigmoid(i) * autograd.tanh(u)
    c = c + autograd.sigmoid(first) * left[1] + autograd.sigmoid(second) * right[1]
    return autograd.sigmoid(o) * autograd.tanh(c), c


def parts(gates, count):
    """Return a row of gates as its parts."""
    return [gates[:, k * HIDDEN : (k + 1) * HIDDEN] for k in range(count)]
