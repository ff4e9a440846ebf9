"""Graphs made of Python source: syntax trees, functions with shared variables; a small library in a folder."""

import numpy as np
import pytest

from hybridmpi.data import load_syntax_trees, load_variable_graphs, python_source
from hybridmpi.data.function_graphs import functions
from hybridmpi.data.python_source import NotPythonError
from hybridmpi.data.syntax_trees import trees
from hybridmpi.data.variable_graphs import MASK
from hybridmpi.data.vocabulary import Numbers, Provisional
from hybridmpi.errors import DataError, UsageError


def shown(text, longest=99):
    """Return the trees of Python source as (label child child ...)."""
    words, labels = Provisional(), Numbers()
    found = []
    for tree in trees(text, longest, words, labels):
        stack = []
        for word, label, arity in zip(*(np.frombuffer(column, np.int32) for column in tree), strict=True):
            below = [stack.pop() for _ in range(arity)][::-1]
            stack.append(f"({list(labels)[label]} {' '.join(below)})" if arity else list(words)[word])
            assert (word < 0) == (label >= 0) == (arity > 0)
        assert len(stack) == 1
        found += stack
    return found


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("x = f(1, *a, k=None)", "(Assign x (Call f <int> (Starred a) (keyword k None)))"),
        ("a < b <= c - 1.0", "(Compare a b (BinOp c <float>))"),
        ("{a: 'x', **b}", "(Dict a <str> b)"),
        ("not a[1:][...]", "(UnaryOp (Subscript (Subscript a (Slice <int>)) ...))"),
        ("import a.b as c, d", "(Import (alias a.b c) d)"),
        ("a.b = [], lambda: -1j", "(Assign (Attribute a b) (Tuple <empty> (Lambda (UnaryOp <complex>))))"),
        ("def f(a, *b: int):\n  '''doc'''\n  return", "(FunctionDef f (arguments a (arg b int)) <empty>)"),
        ("def f():\n  g()\n  pass", "(FunctionDef f (Call g) <empty>)"),
        ("for a in b:\n  c(d)\nelse:\n  e = 1", "(For a b (Call c d) (Assign e <int>))"),
        ("try:\n  a(b)\nexcept C as e:\n  raise", "(Try (Call a b) (ExceptHandler C e <empty>))"),
    ],
)
def test_statements_become_trees(source, expected):
    assert shown(source) == [expected]


def test_what_is_too_long_is_taken_apart():
    text = '"""doc"""\npass\nclass A(B):\n  def f(self, a):\n    if a > 1:\n      return 2 + a\n    try:\n      g(a)\n'
    text += "    except (B, C):\n      h(a, b)\n"
    assert shown(text, 11) == [
        "(ClassDef A B)",
        "(FunctionDef f (arguments self a))",
        "(If (Compare a <int>) (Return (BinOp <int> a)))",
        "(Call g a)",
        "(Call h a b)",
    ]
    assert len(shown(text)) == 1
    assert all(not s.startswith("(If (Compare a <int>) ") for s in shown(text, 5))
    with pytest.raises(NotPythonError):
        shown("x = (")


def test_a_deep_tree_needs_no_deep_stack():
    deep = "x" + " + y" * 900
    assert len(shown(deep, 5000)) == 1 and shown(deep, 100) == []


class Seen:
    """The one function of a source, its columns by name."""

    def __init__(self, text, longest=99):
        self.words, self.kinds = Provisional(), Provisional()
        (only,) = functions(text, longest, self.words, self.kinds)
        kind, word, variable, arity, children = (np.frombuffer(column, np.int32) for column in only)
        self.kind = [list(self.kinds)[number] for number in kind]
        self.word = [None if number < 0 else list(self.words)[number] for number in word]
        self.variable = variable.astype(bool)
        self.below = [part.tolist() for part in np.split(children, np.cumsum(arity)[:-1])]

    def text(self, v):
        """A vertex and what is below it; a variable by its name alone."""
        if self.variable[v]:
            return f"*{self.word[v]}"
        label = self.kind[v] + (f"={self.word[v]}" if self.word[v] else "")
        return f"{label}({' '.join(map(self.text, self.below[v]))})" if self.below[v] else label


def test_a_function_becomes_a_graph_with_shared_variables():
    seen = Seen("def f(a):\n  '''doc'''\n  b = a + a.c\n  return g(b)\n")
    assert seen.text(len(seen.kind) - 1) == (
        "FunctionDef=f(args:arguments(args:arg(*a)) "
        "body:Assign(targets:Name(*b) value:BinOp=<Add>(left:Name(*a) right:Attribute=c(value:Name(*a)))) "
        "body:Return(value:Call(func:Name=g args:Name(*b))))"
    )
    assert seen.variable.tolist() == [True, True] + [False] * (len(seen.kind) - 2)
    parents = np.bincount([child for below in seen.below for child in below])
    assert parents[:2].tolist() == [2, 3] or parents[:2].tolist() == [3, 2]
    assert (parents[2:] == 1).all() and len(parents) == len(seen.kind) - 1  # a tree but for the variables
    assert all(child < v for v, below in enumerate(seen.below) for child in below)


def test_variables_are_what_a_function_binds():
    text = (
        "class A:\n  def f(self, *, k=x):\n    global h\n    h = x\n    try:\n      i = [y for y in self]\n"
        "    except E as e:\n      def n(z): return z, e\n"
    )
    seen = Seen(text)
    assert {seen.word[v] for v in np.flatnonzero(seen.variable)} == {"self", "k", "i", "y", "e", "z"}
    others = {seen.word[v] for v in np.flatnonzero(~seen.variable)} - {None}
    assert others == {"f", "x", "h", "E", "n"}
    assert functions("def f(): pass\nx = lambda a: a\n", 99, Provisional(), Provisional()) == []
    assert functions(text, len(seen.kind) - 1, Provisional(), Provisional()) == []
    assert len(functions(text, len(seen.kind), Provisional(), Provisional())) == 1


@pytest.fixture
def library(tmp_path, monkeypatch):
    """Twelve files with some functions each, one that is no Python, and one that all others repeat."""
    names = ["name", "value", "size"]
    for number in range(12):
        lines = [
            f"def f{number}_{k}(self, {names[(number + k) % 3]}):\n    return {names[(number + k) % 3]}.a{k} + self.b\n"
            for k in range(3)
        ]
        (tmp_path / f"m{number}.py").write_text("pass\n" + "".join(lines))
    (tmp_path / "broken.py").write_text("def f(")
    monkeypatch.setattr(python_source.sysconfig, "get_paths", lambda: {"stdlib": str(tmp_path)})
    return tmp_path / "cache"


def test_syntax_trees_of_a_library(library):
    whole = load_syntax_trees(50, 30, 100, 0.2, True, library)
    assert len(whole.train) + len(whole.held_out) == 36 and len(whole.held_out) == 9  # three files, whole
    assert whole.labels == ["Attribute", "BinOp", "FunctionDef", "Return", "arguments"]
    leaf = whole.train.types == 0
    assert whole.train.type_names == ("leaf", "inner") and np.array_equal(leaf, whole.train.data["word"] >= 0)
    assert (whole.train.data["label"][leaf] == -1).all()
    # (FunctionDef f (arguments self a) (Return ..)) has a vertex in between.
    assert np.count_nonzero(whole.train.data["label"][~leaf] < 0) == len(whole.train)
    assert np.array_equal(whole.train.roots(), whole.train.starts[1:] - 1)
    # 2 attributes of 6 labelled; all can be told from the children but what stands over inner vertices alone.
    assert whole.baselines["the most frequent class"] == pytest.approx(2 / 6)
    assert whole.baselines["the most frequent class of roots, at roots"] == 1.0
    again = load_syntax_trees(50, 30, 100, 0.2, True, library)
    assert str(again) == str(whole) and np.array_equal(again.train.children, whole.train.children)
    wide = load_syntax_trees(50, 30, 100, 0.2, False, library)
    assert wide.train.vertices == whole.train.vertices - len(whole.train)
    assert np.diff(wide.train.child_starts).max() == 3
    assert len(load_syntax_trees(50, 30, 7, 0.0, False, library).train) == 7


def test_functions_of_a_library(library):
    whole = load_variable_graphs(50, 3, 60, 100, 0.2, library)
    assert len(whole.train) == 27 and len(whole.held_out) == 9
    assert sorted(whole.labels) == ["name", "size", "value"]
    mask = whole.vocabulary.encode([MASK])[0]
    for part in (whole.train, whole.held_out):
        label, word = part.data["label"], part.data["word"]
        assert np.array_equal(label >= 0, word == mask) and (part.types[label >= 0] == 1).all()
        assert np.count_nonzero(label >= 0) == len(part)  # the only one, since self is given
        assert part.type_names == ("node", "variable")
    assert whole.kinds.words[whole.train.data["kind"][whole.train.types == 1][0]] == "variable"
    assert set(whole.baselines) == {"the most frequent name", "a table of the kinds of a variable's occurrences"}
    again = load_variable_graphs(50, 3, 60, 100, 0.2, library)
    assert np.array_equal(again.train.data["label"], whole.train.data["label"])
    assert again.kinds.words == whole.kinds.words and str(again) == str(whole)
    # Names that are no class stay visible, and functions without a class are left out.
    few = load_variable_graphs(50, 1, 60, 100, 0.0, library)
    assert len(few.labels) == 1 and len(few.train) == 12 and set(few.train.data["label"]) == {-1, 0}


def test_what_loading_source_refuses(library):
    for wrong in ((1, 9, 9, 0.1), (9, 1, 9, 0.1), (9, 9, 0, 0.1), (9, 9, 9, 1.0), (9, 9, 9, -0.1)):
        with pytest.raises(UsageError, match="expected at least"):
            load_syntax_trees(*wrong, True, library)
    for wrong in ((2, 9, 9, 9, 0.1), (9, 0, 9, 9, 0.1), (9, 9, 1, 9, 0.1), (9, 9, 9, 0, 0.1), (9, 9, 9, 9, 1.0)):
        with pytest.raises(UsageError, match="expected at least"):
            load_variable_graphs(*wrong, library)
    with pytest.raises(DataError, match="no trees of up to 2"):
        load_syntax_trees(9, 2, 9, 0.1, True, library)
    with pytest.raises(DataError, match="no functions of up to 5"):
        load_variable_graphs(9, 9, 5, 9, 0.1, library)


def test_the_library_that_is_here(tmp_path):
    """That real files are read; few of them, for time."""
    syntax = load_syntax_trees(500, 40, 600, 0.1, True, tmp_path)
    assert len(syntax.train) + len(syntax.held_out) == 600 and 60 <= len(syntax.held_out) < 400
    most, table = (syntax.baselines[name] for name in ("the most frequent class", "a table of the children's words"))
    assert 0.1 < most < table < 0.9
    variables = load_variable_graphs(500, 200, 150, 300, 0.2, tmp_path)
    assert len(variables.train) + len(variables.held_out) <= 300 and len(variables.held_out) >= 10
    assert variables.train.sizes.max() <= 150 and variables.train.heights.max() > 4
