"""How many examples a batch has: by its weight, or by the kind of its container."""

import dataclasses
from collections import OrderedDict, deque, namedtuple
from fractions import Fraction
from types import SimpleNamespace

import h5py
import numpy as np
import pytest

from hybridmpi import graphs
from hybridmpi.autograd import Tensor
from hybridmpi.errors import UsageError
from hybridmpi.training.batches import examples, iterator_of

X, Y = np.zeros((3, 2), np.float32), np.zeros(3, np.int64)
Pair = namedtuple("Pair", "x y")


@dataclasses.dataclass
class Columns:
    x: object
    y: object


@dataclasses.dataclass
class Weighted:
    x: object
    weight: object = None


class Sized:
    def __len__(self):
        return 3


class SparseMatrix:
    shape = (3, 7)

    def __len__(self):
        raise TypeError("sparse matrix length is ambiguous")


COUNTED = {
    "array": X,
    "masked array": np.ma.masked_array(Y, [True, False, False]),
    "tensor": Tensor(X),
    "object array": np.array([{}, [], None], object),
    "sparse matrix": SparseMatrix(),
    "tuple": (X, Y),
    "tuple of lists": ([1, 2, 3], [0, 1, 0]),
    "tuple of one": (X,),
    "nested": ((X, X), {"y": Y}),
    "named tuple": Pair(X, Y),
    "dict": {"x": X, "y": Y},
    "dict of lists": OrderedDict(x=[1, 2, 3], y=["a", "b", "c"]),
    "dict with columns of weights": {"x": X, "weight": np.ones(3)},
    "dict with a weight": {"x": X, "start": 0, "weight": 3},
    "dataclass": Columns(X, Y),
    "dataclass without a weight": Columns(Weighted([1, 2, 3], Y), Y),
    "list of pairs of arrays": [(np.zeros((1, 2)), np.zeros(1))] * 3,
    "list of pairs of scalars": [(0.5, 1), (1.5, 0), (2.5, 1)],
    "list of named tuples": [Pair(X, Y)] * 3,
    "list of dicts": [{"x": X, "y": Y}] * 3,
    "list of lists": [[1, 2], [3], []],
    "list of numbers": [1, 2, 3],
    "list of scalars": list(np.arange(3)),
    "list of texts": ["a", "bc", "def"],
    "list of nodes": graphs.root_nodes(graphs.chains([1, 2, 3])),
    "graphs": graphs.chains([4, 5, 6]),
    "an object with a length": Sized(),
    "queue": deque([1, 2, 3]),
    "weight": Weighted(X, 3),
    "weight of numpy": Weighted(None, np.float32(3)),
    "weight in an array": Weighted(None, np.array(3)),
    "fraction": Weighted(None, Fraction(3)),
    "named space": SimpleNamespace(ids=[1, 2], starts=[0, 1, 1, 2], weight=3),
}


@pytest.mark.parametrize("name", COUNTED)
def test_examples_by_container(name):
    assert examples(COUNTED[name]) == 3


def test_no_examples_are_examples_too():
    for batch in ([], np.zeros((0, 4)), (np.zeros((0, 4)), []), {"x": []}, Weighted(None, 0), graphs.chains([])):
        assert examples(batch) == 0


def test_a_data_set_of_a_file_is_an_array(tmp_path):
    with h5py.File(tmp_path / "data.h5", "w") as file:
        file["x"], file["y"], file["empty"], file["one"] = X, Y, h5py.Empty("f4"), 5
        assert examples(file["x"]) == examples((file["x"], file["y"])) == 3
        for name in ("empty", "one"):
            with pytest.raises(UsageError, match="weight"):
                examples(file[name])


REFUSED = {
    "list of arrays": [X, Y],
    "list with an array": [(X, Y), X],
    "unequal columns": (Y, np.zeros(5), np.zeros(4)),
    "unequal entries": {"x": X, "y": np.zeros(4)},
    "unequal fields": Columns(X, [1, 2]),
    "unequal in a named tuple": Pair(X, np.zeros((2, 3))),
    "unequal in a record in a record": (X, (Y, [1])),
    "number in a tuple": (X, 3),
    "scalar of numpy in a tuple": (X, np.float64(3)),
    "array of no axis in a tuple": (X, np.array(3)),
    "array of no axis": np.array(3.0),
    "tensor of no axis": Tensor(np.float32(3)),
    "None in a tuple": (X, None),
    "None in a dict": {"x": X, "mask": None},
    "text in a dict": {"x": X, "name": "train"},
    "set in a tuple": (X, {1, 2, 3}),
    "generator in a tuple": (X, (i for i in range(3))),
    "tuples in a tuple": ((1, 2), (3, 4)),
    "empty tuple": (),
    "empty dict": {},
    "text": "abc",
    "bytes": b"abc",
    "set": {1, 2, 3},
    "generator": (i for i in range(3)),
    "iterator": iter([1, 2, 3]),
    "number": 3,
    "scalar": np.float32(3),
    "class": Columns,
    "object": object(),
    "named space without a weight": SimpleNamespace(x=X),
    "list in itself": ([],),
}
REFUSED["list in itself"][0].append(REFUSED["list in itself"])
REFUSED["list in itself"] = {"x": X, "again": REFUSED["list in itself"]}


@pytest.mark.parametrize("name", REFUSED)
def test_what_has_no_plain_number_of_examples_is_refused_with_the_remedy(name):
    with pytest.raises(UsageError, match="weight"):
        examples(REFUSED[name])


@pytest.mark.parametrize(
    "weight",
    [
        np.nan,
        np.inf,
        -np.inf,
        -1,
        -0.5,
        1e300,
        2**53,
        True,
        np.True_,
        "3",
        b"3",
        10**400,
        1j,
        [3],
        (3,),
        np.ones(3),
        Tensor([3.0]),
    ],
    ids=repr,
)
def test_a_weight_is_a_finite_number_from_zero_up(weight):
    with pytest.raises(UsageError, match=r"weight is .*expected the number of its examples"):
        examples(Weighted(X, weight))
    if not isinstance(weight, (list, tuple, np.ndarray, Tensor)):
        with pytest.raises(UsageError, match=r"weight is .*expected the number of its examples"):
            examples({"x": X, "weight": weight})


def test_a_fault_in_a_property_is_shown_and_a_method_is_told():
    class Faulty(tuple):
        @property
        def weight(self):
            return self.missing

    class Method(tuple):
        def weight(self):
            return 3

    with pytest.raises(AttributeError, match="missing"):
        examples(Faulty((X, Y)))
    with pytest.raises(UsageError, match="make the method a property"):
        examples(Method((X, Y)))


@pytest.mark.parametrize("batches", [None, 3, "abc", {"x": X}, object()], ids=lambda value: type(value).__name__)
def test_batches_are_iterable(batches):
    with pytest.raises(UsageError, match="an iterable of batches"):
        iterator_of(batches)
    assert next(iterator_of([X])) is X
