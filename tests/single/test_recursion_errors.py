"""What recursive functions refuse, and in what words; and bodies that are written to be awkward."""

import asyncio
import re
from collections import namedtuple
from dataclasses import dataclass

import numpy as np
import pytest
from recursion_oracle import HIDDEN, WIDTH, WORDS, Cell, Node, assert_batched, prepared

from hybridmpi import nn
from hybridmpi.autograd import Parameter, Tensor
from hybridmpi.dynamic import push, recursive
from hybridmpi.dynamic.recursion import frames, types
from hybridmpi.errors import SparseIndexError, UsageError
from hybridmpi.graphs import Graphs

TREE = Node((Node((Node(), Node()), 1), Node((), 2)), 3)


def model_of(*functions):
    """Return a model whose recursive functions these are."""

    class Model(nn.Module):
        def __init__(self):
            self.words, self.cell = nn.Embedding(WORDS, WIDTH, dtype=np.float64), Cell()
            self.start = Parameter((1, HIDDEN), ("normal", 0.0, 1.0), np.float64)

        def h(self, node, below=None):
            return self.cell(self.words(node.word), below)

    for function in functions:
        function.__qualname__ = function.__name__
        setattr(Model, function.__name__, recursive(function))
    return prepared(Model())


def refused(function, expected, error=UsageError, nodes=(TREE,)):
    """Fail unless a run for these roots is refused, in these words."""
    with pytest.raises(error) as caught:
        model_of(function).f.over(list(nodes))
    told = str(caught.value) + "".join(f"\n{note}" for note in getattr(caught.value, "__notes__", ()))
    assert expected in told, told


def test_errors_of_bodies_name_the_path_of_calls():
    def f(self, node):
        if not node.kids:
            raise ValueError("a leaf of mine")
        return self.h(node, self.f(node.kids[0]))

    refused(f, "a leaf of mine\nin the call f[0] > f[0] > f[0]", ValueError)

    def f(self, node, depth=0):
        for _ in range(2):
            h = self.f(node, depth + 1) if depth < 20 else self.words(WORDS)
        return self.cell(h, None)

    refused(f, "in the call f[0] > f[0] > f[0] > f[0] > ... 13 calls ... > f[0] > f[0] > f[0] > f[", SparseIndexError)
    refused(f, f"table 'table': id {WORDS} at position 0", SparseIndexError)
    with pytest.raises(SparseIndexError, match=r"in the call f\[0\] > f\[0\]") as caught:
        model_of(f).f.over([TREE], policy="serial")
    assert str(caught.value).count("in the call") == 1


@pytest.mark.parametrize(
    ("what", "expected"),
    [
        (lambda h: 3.0, "f[0]: returns as number 0: 3.0: expected a tensor [1, width]"),
        (lambda h: (h, None), "returns as number 1: None: expected a tensor"),
        (lambda h: [h, (h, h)], "returns as number 1: (Value("),
        (lambda h: {"h": h}, "returns as number 0: {'h': Value("),
        (lambda h: namedtuple("State", "h c")(h, h), "returns as number 0: State(h=Value("),
        (lambda h: h.reshape(-1, 2, 2), "rows of shape (2, 2): expected vectors (reshape makes them)"),
        (lambda h: np.ones((1, 3)), "returns as number 0: array("),
        (lambda h: Parameter((3, 3), ("constant", 0.0)), "returns as number 0: Parameter("),
        (lambda h: (x for x in (h, h)), "returns as number 0: <generator object"),
    ],
)
def test_what_is_returned_is_a_tensor_or_several(what, expected):
    def f(self, node):
        return what(self.h(node))

    refused(f, expected)


def test_what_is_returned_is_always_the_same():
    def f(self, node):
        h = self.h(node)
        below = [self.f(kid) for kid in node.kids]
        return (h, h) if below else h

    refused(f, "f[0] > f[0]: returns a tuple of widths 4, 4, and an earlier call of it a tensor of width 4: expected")

    def f(self, node):
        return self.h(node) if node.kids else None

    refused(f, "returns nothing, and an earlier call of it a tensor of width 4", nodes=(TREE, Node()))

    def f(self, node):
        return self.h(node)[:, : 2 + len(node.kids)]

    refused(f, "returns a tensor of width 2, and an earlier call of it a tensor of width 4", nodes=(TREE, Node()))


def test_tensors_reach_a_call_as_arguments():
    def f(self, node):
        h = self.h(node, getattr(self, "kept", None))
        self.kept = h
        return sum((self.f(kid) for kid in node.kids), h)

    refused(f, "f[0] > f[0]: a tensor of another call is used: what a call computes with reaches it as an argument")

    def f(self, node, state=None):
        h = self.h(node, state["h"] if state else None)
        return sum((self.f(kid, {"h": h}) for kid in node.kids), h)

    refused(f, "alone or in a tuple or list (other objects are not looked into)")

    def f(self, node):
        return self.h(node) * (self.start * 2.0)

    refused(f, "computed from others before")


@pytest.mark.parametrize(
    "read", [float, bool, lambda h: h.data, lambda h: 1 if h else 2, lambda h: h.detach(), lambda h: h.backward()]
)
def test_values_are_read_by_await_only(read):
    def f(self, node):
        h = self.h(node)
        return h * read(h)

    refused(f, "f[0]: a recursive function read the values of a tensor, which are not there yet: to decide by them it")


@pytest.mark.parametrize(
    ("awaited", "error", "expected"),
    [
        (lambda self, node: asyncio.sleep(0), UsageError, "f[0]: awaits None: expected a tensor of this call"),
        (lambda self, node: self.start, UsageError, "awaits Parameter('start'"),
        (lambda self, node: self.pair(node), TypeError, "'await' expression\nin the call f[0]"),
    ],
)
def test_tensors_are_awaited_and_nothing_else(awaited, error, expected):
    def pair(self, node):
        h = self.h(node)
        return h, h

    async def f(self, node):
        await awaited(self, node)
        return self.h(node)

    with pytest.raises(error) as caught:
        model_of(f, pair).f.over([TREE])
    assert expected in str(caught.value) + "".join(f"\n{note}" for note in getattr(caught.value, "__notes__", ()))


@pytest.mark.parametrize(
    ("what", "error", "expected"),
    [
        (lambda self, h: h * np.ones(HIDDEN), UsageError, "f[0]: multiply in a recursive function: unhashable type"),
        (lambda self, h: np.sign(h), UsageError, "f[0]: a recursive function read the values of a tensor"),
        (lambda self, h: h + self.words(np.array([1])), UsageError, "expected one whole number (look several up"),
        (lambda self, h: h + self.words(True), UsageError, "a row of a table in a recursive function: True: expected"),
        (lambda self, h: h + self.words(-1), SparseIndexError, "f[0]: table 'table': id -1 at position 0 of 1 "),
        (lambda self, h: h > 0, UsageError, "f[0]: a recursive function read the values of a tensor"),
        (lambda self, h: h[0], UsageError, "expected x[:, first:stop]"),
    ],
)
def test_arrays_and_tables_in_bodies(what, error, expected):
    def f(self, node):
        return what(self, self.h(node))

    refused(f, expected, error)


def test_constants_made_in_each_call_are_noticed(monkeypatch):
    monkeypatch.setattr(types, "MOST_TYPES", 20)

    def f(self, node):
        return self.h(node) + Tensor(np.zeros((1, HIDDEN)))

    refused(f, "f: calls of more than 20 kinds: there is nothing to batch", nodes=[TREE] * 30)

    def f(self, node):
        return self.h(node) * float(node.label)

    refused(f, "must be rows of a table, or arguments, not numbers", nodes=[Node(label=n) for n in range(30)])


@pytest.mark.parametrize("waits", [False, True])
@pytest.mark.parametrize(
    ("pushes", "expected"),
    [
        (lambda h, n: push(label=1), "pushes label without a tensor: data go with the rows of a push"),
        (lambda h, n: (push(x=h), push(x=h)), "f[0]: pushes 'x' twice"),
        (lambda h, n: (push(x=h, label=1), push(y=h, label=2)), "f[0]: pushes 'label' twice"),
        (lambda h, n: push(x=h, label="noun"), "push(label=...) of 'noun': expected a tensor, or a number in every"),
        (lambda h, n: push(x=h, label=None), "push(label=...) of None: expected a tensor, or a number in every call"),
        (lambda h, n: push(x=h, label=np.ones(2)), "push(label=...) of array([1., 1.]): expected"),
        (lambda h, n: push(x=h, label=[1] * len(n.kids)), "push(label=...) of [1, 1]: expected"),
        (lambda h, n: push(results=h), "these names have another meaning"),
        (lambda h, n: push(x=h, roots=1), "these names have another meaning"),
        (lambda h, n: push(x=h) if n.kids else push(h=h, x=1), "push(x=...) of a tensor in one call, a number in"),
        (lambda h, n: push(x=h if n.kids else h[:, :2]), "f pushes 'x' of width"),
        (lambda h, n: push(x=h.reshape(-1, 2, 2)), "f[0]: pushes x: rows of shape (2, 2): expected vectors"),
    ],
)
def test_what_is_pushed(pushes, expected, waits):
    def plain(self, node):
        h = self.h(node)
        pushes(h, node)
        return sum((self.f(kid) for kid in node.kids), h)

    async def waiting(self, node):
        h = self.h(node)
        await h
        pushes(h, node)
        return sum((self.f(kid) for kid in node.kids), h)

    function = waiting if waits else plain
    function.__name__ = "f"
    refused(function, expected)


def test_pushes_belong_to_a_call():
    with pytest.raises(UsageError, match=re.escape("push(...) outside of a recursive function")):
        push(label=1)


def test_roots_and_lowered_graphs_have_to_fit():
    def f(self, node, h=None):
        return self.h(node, h)

    async def g(self, node):
        await self.words(node.word)
        return self.h(node)

    model, other = model_of(f, g), model_of(f, g)
    rows = Tensor(np.ones((2, HIDDEN)))

    def says(expected, function, *arguments, **options):
        with pytest.raises(UsageError, match=re.escape(expected)):
            function(*arguments, **options)

    for function in (model.f, model.g):
        says("over no roots, before it ran for any: what it returns is not known yet", function.over, [])
    says("f.over: arguments for [1, 2] roots: expected as many of each", model.f.over, [TREE], rows)
    says("arguments for [] roots", model.f.over)
    says("f.over(Node): expected lists, with an item for each root", model.f.over, TREE)
    says("f.over(generator): expected lists", model.f.over, (node for node in [TREE]))
    says("f.over: a tensor (2,): expected [roots, width]", model.f.over, [TREE] * 2, Tensor(np.ones(2)))
    says("in a list or tuple: give each tensor as an argument of its own", model.f, TREE, (rows[:1], None))
    says("dtypes ['float32', 'float64']", model.f.over, [TREE], Tensor(np.ones((1, HIDDEN), np.float32)))
    says("policy 'other': expected 'batched' or 'serial'", model.f.over, [TREE], policy="other")
    says("g.lower: the call g[0] waits for computed values", model.g.lower, [TREE])

    lowered = model.f.lower([TREE] * 2, rows)
    says("was not lowered by this function of this object", other.f.over, lowered, rows)
    says("was not lowered by this function of this object", model.g.over, lowered, rows)
    says("was not lowered by this", model.f.over, Graphs([0, 1], [0], [0, 0], [], [], ("leaf",)))
    says("calls lowered with 1 tensors or more: 0 given", model.f.over, lowered)
    says("calls lowered with rows of 4 as tensor 0: given (2, 3)", model.f.over, lowered, Tensor(np.ones((2, 3))))
    says("expected [2, width], a row a root", model.f.over, lowered, rows[:1])
    says("expected [2, width], a row a root", model.f.over, lowered, rows.data[:1])
    says("policy 'serial' with lowered calls", model.f.over, lowered, rows, policy="serial")
    assert model.f.over(lowered.select([]), rows[:0]).results.shape == (0, HIDDEN)


def test_recursion_without_end(monkeypatch):
    monkeypatch.setattr(frames, "DEEPEST", 3000)

    def f(self, node):
        return self.f(node)

    refused(
        f, "2993 calls ... > f[0] > f[0] > f[0] > f[0]: calls within calls, 3000 deep: does every branch of it end?"
    )

    def f(self, node, h=None):
        h = self.h(node, h)
        return self.f(node, h) + self.f(node, h)

    refused(f, "calls within calls, 3000 deep")


def test_objects_that_can_keep_nothing():
    @dataclass
    class Compared:
        at: int

        @recursive
        def f(self, node):
            """Never runs."""

    class Slots:
        __slots__ = ()
        f = Compared.f

    for thing in (Compared(1), Slots()):
        with pytest.raises(UsageError, match=f"a {type(thing).__name__} cannot be hashed, or has no attributes"):
            thing.f.over([TREE])


def test_bodies_that_catch_what_is_not_theirs():
    """A callee's result is not known in the first call; to catch that changes nothing."""

    def plain(self, node):
        h = self.h(node)
        for kid in node.kids:
            try:
                h = h + self.f(kid)
            except:  # noqa: E722 - on purpose
                h = h * 2.0
            finally:
                self.count = 1
        return h

    async def waiting(self, node):
        h = self.h(node)
        for kid in node.kids:
            try:
                h = h + self.f(kid)
                if await h[:, :1] > 0.3:
                    h = h * self.start
            except:  # noqa: E722 - on purpose
                h = h * 2.0
        return h

    for function in (plain, waiting):
        function.__name__ = "f"
        model = model_of(function)
        for _ in range(2):
            assert_batched(model, model.f, [TREE, TREE.kids[0]])


def test_bodies_that_begin_anew_and_do_something_else():
    drawn = iter([0, 1, 1, 1, 1])

    async def f(self, node):
        h = self.h(node)
        await h
        return self.left(h) if next(drawn) else self.right(h)[0]

    async def left(self, h):
        await h
        return h

    async def right(self, h):
        await h
        return h, h

    with pytest.raises(UsageError, match=r"f\[0\]: calls left where it called right when it first ran: .*begins anew"):
        model_of(f, left, right).f.over([TREE])


def test_an_error_leaves_nothing_behind():
    def f(self, node):
        if node.act:
            raise ValueError("once")
        push(h=self.h(node), label=node.label)
        return sum((self.f(kid) for kid in node.kids), self.h(node))

    async def g(self, node):
        h = self.h(node)
        await h
        return h + self.f(node)

    model = model_of(f, g)
    broken = Node((Node(), Node((), act=1)))
    for function in (model.f, model.g):
        for _ in range(2):
            with pytest.raises(ValueError, match="once"):
                function.over([TREE, broken])
            assert_batched(model, function, [TREE, TREE.kids[1]])
