"""The border for arrays: every public entrance, with every kind of thing that users give."""

import array
import inspect

import h5py
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from hybridmpi import autograd, data, dynamic, graphs, inputs, nn
from hybridmpi.autograd import Parameter, Tensor
from hybridmpi.errors import HybridMPIError, SparseIndexError, UsageError
from hybridmpi.sparse.rows import distinct_row_ids

ROWS, DIM = 7, 3
IDS = np.array([3, 0, 3, 6])
X = np.random.default_rng(1).standard_normal((4, DIM)).astype(np.float32)


class Memory:
    """A store in memory, which reads no row that is not asked for rightly."""

    rows, dim, dtype, name = ROWS, DIM, np.dtype(np.float32), "words"
    values = np.arange(ROWS * DIM, dtype=np.float32).reshape(ROWS, DIM)

    def pull(self, ids):
        return self.values[distinct_row_ids(ids, ROWS, "words")]


def table(kind=nn.Embedding, dim=DIM):
    made = kind(ROWS, dim)
    made.store = Memory()
    made.store.dim, made.store.values = dim, Memory.values[:, :dim]
    return made


def ready(module):
    module.initialise(1)
    return module


LINEAR, LSTM = ready(nn.Linear(DIM, 2)), ready(nn.LSTM(DIM, 2))
LSTM_WEIGHTS = autograd.LSTMWeights(LSTM.weight_x, LSTM.weight_h, LSTM.bias)
ROWS_OF_TABLE = Tensor(Memory.values)
GRAPHS = graphs.chains([1, 1, 1, 1])


def value(result):
    """Return the numbers of whatever an entrance returns, as one array."""
    if isinstance(result, Tensor):
        return result.data
    if isinstance(result, graphs.Graphs):
        return np.concatenate([result.starts, result.types, result.child_starts, result.children, result.slots])
    if isinstance(result, (tuple, list)):
        return np.concatenate([np.ravel(value(part)) for part in result])
    return np.asarray(result)


def of_indexing(name, call, good=IDS):
    return name, (call, good)


# By the name of what is public: how it is called with integers, and integers that are right there.
INTEGERS = {
    "Embedding": (lambda ids: table()(ids), IDS),
    "Embedding.distinct": (lambda ids: table().distinct(ids), IDS),
    "Embedding.check": (lambda ids: table().check(ids), IDS),
    "Embedding.rows_of": (lambda ids: table().rows_of(ids), np.array([0, 3, 5, 6])),
    "Embedding.rows_at": (lambda ids: table().rows_at(ids), IDS),
    "EmbeddingBag": (lambda ids: table(nn.EmbeddingBag)(ids, [0, 1, 4]), IDS),
    "EmbeddingBag starts": (lambda starts: table(nn.EmbeddingBag)(IDS, starts), np.array([0, 1, 3, 4])),
    "nn.sampled_softmax targets": (
        lambda t: nn.sampled_softmax(Tensor(X), t, [1, 2], table(), table(dim=1), nn.LogUniform(ROWS, 2)),
        IDS,
    ),
    "nn.sampled_softmax candidates": (
        lambda c: nn.sampled_softmax(Tensor(X), IDS, c, table(), table(dim=1), nn.LogUniform(ROWS, 4)),
        IDS,
    ),
    "LogUniform.log_chance": (lambda ids: nn.LogUniform(ROWS, 3).log_chance(ids), IDS),
    "cross_entropy": (lambda t: nn.cross_entropy(Tensor(np.tile(X, 3)), t), IDS),
    "attention": (lambda n: autograd.attention(Tensor(X[:, None]), Tensor(X[:, None]), n), np.ones(4, np.int64)),
    "gather_rows": (lambda p: autograd.gather_rows(ROWS_OF_TABLE, p), IDS),
    "sum_bags": (lambda p: autograd.sum_bags(ROWS_OF_TABLE, p, [0, 2, 4]), IDS),
    "sum_bags starts": (lambda s: autograd.sum_bags(ROWS_OF_TABLE, IDS, s), np.array([0, 1, 3, 4])),
    "sampled_softmax": (
        lambda t: autograd.sampled_softmax(Tensor(X), ROWS_OF_TABLE, Tensor(Memory.values[:, :1]), t, None),
        IDS,
    ),
    "sampled_softmax candidates": (
        lambda c: autograd.sampled_softmax(Tensor(X), ROWS_OF_TABLE, Tensor(Memory.values[:, :1]), IDS, c),
        np.array([1, 0, 5, 6]),
    ),
    "lstm": (
        lambda p: autograd.lstm(ROWS_OF_TABLE, None, LSTM_WEIGHTS, p)[0],
        IDS.reshape(2, 2),
    ),
    "index": (lambda i: ROWS_OF_TABLE[i], IDS),
    "Graphs types": (lambda t: graphs.Graphs([0, 4], t, [0] * 5, [], [], ("a", "b")), np.array([0, 1, 1, 0])),
    "Graphs children": (
        lambda c: graphs.Graphs([0, 5], [0] * 5, [0, 0, 0, 0, 0, 4], c, [0, 1, 2, 3], ("a",)),
        np.array([3, 0, 2, 1]),
    ),
    "Graphs.select": (lambda n: graphs.chains([1, 2, 3, 4]).select(n), np.array([3, 0, 1, 1])),
    "chains": (graphs.chains, np.array([3, 0, 1, 2])),
    "from_parents": (lambda p: graphs.from_parents([p]), np.array([1, 3, 1, -1])),
    "from_edges": (lambda n: graphs.from_edges(n, [[], [], [], []]), np.array([3, 0, 1, 2])),
    "deal": (lambda sizes: data.deal(sizes, 2), np.array([3, 0, 1, 2])),
}

# How what is public is called with an array of numbers [4, 3] in place of a Tensor, or beside one.
NUMBERS = {
    "Tensor": Tensor,
    "Linear": lambda x: LINEAR(x),
    "Dropout": lambda x: nn.Dropout(0.5).eval()(x),
    "LSTM": lambda x: LSTM(autograd.reshape(x, 2, 2, DIM))[0],
    "LSTM state": lambda x: LSTM(Tensor(X[:, None]), (autograd.reshape(x, 6, 2).data[:4], np.zeros((4, 2))))[0],
    "add": lambda x: autograd.add(Tensor(X), x),
    "add two": lambda x: autograd.add(x, x),
    "subtract": lambda x: autograd.subtract(x, Tensor(X)),
    "multiply": lambda x: x * Tensor(X) if type(x) is np.ndarray else Tensor(X) * x,
    "divide": lambda x: autograd.divide(x, 2.0),
    "negative": autograd.negative,
    "power": lambda x: autograd.power(x, 2),
    "exp": autograd.exp,
    "log": lambda x: autograd.log(autograd.multiply(x, Tensor(np.abs(X) + 1))),
    "tanh": autograd.tanh,
    "sigmoid": autograd.sigmoid,
    "relu": autograd.relu,
    "dropout": lambda x: autograd.dropout(Tensor(X), 0.5, x),
    "reshape": lambda x: autograd.reshape(x, 12),
    "transpose": autograd.transpose,
    "concatenate": lambda x: autograd.concatenate([Tensor(X), x]),
    "sum": lambda x: autograd.sum(x, axis=0),
    "mean": autograd.mean,
    "index": lambda x: autograd.index(x, 1),
    "linear": lambda x: autograd.linear(x, LINEAR.weight, LINEAR.bias),
    "matmul": lambda x: autograd.matmul(x, Tensor(X.T)),
    "matmul right": lambda x: autograd.matmul(Tensor(X.T), x),
    "attention": lambda x: autograd.attention(autograd.reshape(x, 4, 1, DIM), Tensor(X[:, None]), [1] * 4),
    "pairwise_dots": lambda x: autograd.pairwise_dots([x, Tensor(X)]),
    "cross_entropy": lambda x: nn.cross_entropy(x, [0, 1, 2, 0]),
    "gather_rows": lambda x: autograd.gather_rows(x, [0, 3]),
    "sum_bags": lambda x: autograd.sum_bags(x, [0, 3], [0, 2]),
    "pulled_rows": lambda x: autograd.pulled_rows(x, lambda gradient: None),
    "binary_cross_entropy": lambda x: nn.binary_cross_entropy(autograd.reshape(x, 12), np.ones(12)),
    "binary_cross_entropy labels": lambda x: nn.binary_cross_entropy(
        Tensor(X.reshape(12)), autograd.sigmoid(autograd.reshape(x, 12)).data
    ),
    "logistic_loss": lambda x: autograd.logistic_loss(x, np.ones((4, DIM))),
    "sampled_softmax hidden": lambda x: autograd.sampled_softmax(
        x, ROWS_OF_TABLE, Tensor(Memory.values[:, :1]), IDS, None
    ),
    "nn.sampled_softmax hidden": lambda x: nn.sampled_softmax(
        x, IDS, [1, 2], table(), table(dim=1), nn.LogUniform(ROWS, 2)
    ),
    "Parameter.assign": lambda x: assigned(x),
    "GraphPass": lambda x: PASS(GRAPHS, x=x).h,
}

NO_ARRAYS = {
    "LSTMWeights", "Parameter", "draws", "is_recording", "needs_gradient", "no_grad", "operators", "record",
    "LogUniform", "Module", "Store", "clip_global_norm", "Graphs", "Node", "by_arity", "from_ast", "from_brackets",
    "from_nested", "plot", "root_nodes", "Batching", "Outputs", "Report", "Vertex", "VertexFunction", "push",
    "recursive",
}  # fmt: skip
"""What is public and takes no array of a user's, or objects only; `record` is for what operations have computed."""


class Twice(dynamic.VertexFunction):
    def vertex(self, v):
        v.push(h=v.pull("x") * 2.0)


PASS = dynamic.GraphPass({"step": Twice()})


def assigned(x):
    parameter = Parameter((4, DIM), ("constant", 0.0))
    parameter.assign(x)
    return parameter


def test_every_public_name_is_in_a_table():
    public = {name for module in (autograd, nn, graphs, dynamic) for name in module.__all__}
    covered = {part for name in (*INTEGERS, *NUMBERS) for part in (name, name.split()[0], name.split(".")[0])}
    assert public - covered - NO_ARRAYS == set(), "say in these tables how its arrays are given"
    assert public | {"by_arity"} >= NO_ARRAYS


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    with h5py.File(tmp_path_factory.mktemp("inputs") / "data.h5", "w") as opened:
        yield opened


def in_file(file, values):
    name = str(len(file))
    file[name] = values
    return file[name]


def on_disk(file, values):
    mapped = np.memmap(f"{file.filename}.{len(file)}.bin", values.dtype, "w+", shape=values.shape)
    in_file(file, 0)
    mapped[...] = values
    return mapped


def strided(file, values):
    wide = np.zeros((values.shape[0] * 2, *values.shape[1:]), values.dtype)
    wide[::2] = values
    return wide[::2]


class WithArray:
    def __init__(self, values):
        self.values = values

    def __array__(self, dtype=None, copy=None):
        return self.values


FORMS = {
    "list": lambda file, values: values.tolist(),
    "tuple": lambda file, values: tuple(values.tolist()),
    "other byte order": lambda file, values: values.astype(values.dtype.newbyteorder()),
    "strided": strided,
    "Fortran order": lambda file, values: np.asfortranarray(values),
    "read-only": lambda file, values: read_only(values),
    "memory map": on_disk,
    "data set": in_file,
    "no mask": lambda file, values: np.ma.masked_array(values),
    "a mask of nothing": lambda file, values: np.ma.masked_array(values, np.zeros(values.shape, bool)),
    "an object with __array__": lambda file, values: WithArray(values),
    "a subclass": lambda file, values: values.view(np.recarray),
    "a list of arrays": lambda file, values: list(values),
}


def read_only(values):
    copy = values.copy()
    copy.flags.writeable = False
    return copy


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", INTEGERS)
def test_integers_of_every_form_mean_the_same(name, form, file):
    call, good = INTEGERS[name]
    if (name, form) == ("index", "tuple"):
        return  # one index for each axis
    np.testing.assert_array_equal(value(call(FORMS[form](file, good))), value(call(good)))


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int16, np.int32, np.uint32, np.uint64])
@pytest.mark.parametrize("name", INTEGERS)
def test_integers_of_every_width_mean_the_same(name, dtype):
    call, good = INTEGERS[name]
    if good.min() < 0 and np.dtype(dtype).kind == "u":
        return
    np.testing.assert_array_equal(value(call(good.astype(dtype))), value(call(good)))


def masked(values):
    return np.ma.masked_array(values, np.arange(values.size).reshape(values.shape) == 1)


WRONG = {
    "masked": masked,
    "masked and out of range": lambda good: np.ma.masked_array(
        np.where(good == good.flat[0], 1 << 40, good), good >= 0
    ),
    "a list of masked arrays": lambda good: [masked(good)],
    "floats that are whole": lambda good: good.astype(np.float64),
    "floats": lambda good: good + 0.5,
    "NaN": lambda good: np.full(good.shape, np.nan),
    "truth values": lambda good: good > 0,
    "objects": lambda good: good.astype(object),
    "texts": lambda good: good.astype(str),
    "complex": lambda good: good.astype(complex),
    "times": lambda good: good.astype("datetime64[s]"),
    "structured": lambda good: np.zeros(good.shape, [("a", np.int64)]),
    "None": lambda good: None,
    "a text": lambda good: "0123",
    "bytes": lambda good: b"0123",
    "a dict": lambda good: {"ids": good},
    "a set": lambda good: {0, 1, 2, 3},
    "a generator": lambda good: (int(i) for i in good.flat),
    "ragged": lambda good: [[0, 1], [2]],
    "large uint64": lambda good: np.full(good.shape, 2**64 - 1, np.uint64),
    "large integers": lambda good: [2**70] * 4,
    "a float": lambda good: 1.5,
    "a tensor of floats": lambda good: Tensor(good.astype(np.float32)),
}


@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.parametrize("name", INTEGERS)
def test_what_are_no_integers_is_refused_by_name(name, wrong):
    call, good = INTEGERS[name]
    if (name, wrong) in {("index", "truth values"), ("index", "None"), ("sampled_softmax candidates", "None")}:
        return  # these mean something
    with pytest.raises(HybridMPIError) as caught:
        call(WRONG[wrong](good))
    assert caught.value.exit_code == 2 and len(str(caught.value)) > 20


IN_RANGE = [name for name in INTEGERS if name not in ("index", "chains", "from_edges", "deal")]


@pytest.mark.parametrize("bad", [-2, 99, -(2**63), 2**62])
@pytest.mark.parametrize("name", IN_RANGE)
def test_integers_out_of_range_are_refused_with_one_exit_code(name, bad):
    call, good = INTEGERS[name]
    if name == "Embedding.rows_at" and bad < 0:
        return  # below 0 there is no row
    wrong = good.copy()
    wrong.flat[1] = bad
    with pytest.raises(HybridMPIError) as caught:
        call(wrong)
    assert caught.value.exit_code == 2 and str(bad) in str(caught.value)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", NUMBERS)
def test_numbers_of_every_form_mean_the_same(name, form, file):
    if (name, form) == ("GraphPass", "tuple"):
        return  # rows and positions
    with np.errstate(invalid="ignore"):
        found, expected = value(NUMBERS[name](FORMS[form](file, X))), value(NUMBERS[name](X.copy()))
    np.testing.assert_allclose(found, expected, rtol=1e-6)


@pytest.mark.parametrize("dtype", [np.float64, ">f4", np.float16, np.int64, np.int8, bool])
@pytest.mark.parametrize("name", sorted(set(NUMBERS) - {"Tensor", "dropout", "logistic_loss", "pulled_rows"}))
def test_numbers_of_other_dtypes_are_taken_as_what_they_are_used_as(name, dtype):
    whole = np.array([[1, 2, 1], [1, 1, 1], [2, 1, 1], [1, 1, 2]]).astype(dtype)
    expected = value(NUMBERS[name](whole.astype(np.float32)))
    np.testing.assert_allclose(value(NUMBERS[name](whole)), expected, rtol=2e-3)


NO_NUMBERS = {
    "masked": masked,
    "a list with a masked array": lambda good: [masked(row) for row in good],
    "complex": lambda good: good.astype(complex),
    "objects": lambda good: good.astype(object),
    "texts": lambda good: good.astype(str),
    "times": lambda good: np.zeros(good.shape, "datetime64[s]"),
    "structured": lambda good: np.zeros(good.shape, [("a", np.float32)]),
    "None": lambda good: None,
    "a text": lambda good: "numbers",
    "a dict": lambda good: {"x": good},
    "a generator": lambda good: (row for row in good),
    "ragged": lambda good: [[1.0, 2.0], [3.0]],
    "tensors in a list": lambda good: [Tensor(row) for row in good],
}


@pytest.mark.parametrize("wrong", NO_NUMBERS)
@pytest.mark.parametrize("name", NUMBERS)
def test_what_are_no_numbers_is_refused_by_name(name, wrong):
    with pytest.raises(UsageError):
        NUMBERS[name](NO_NUMBERS[wrong](X))


def test_numbers_that_become_infinite_where_they_are_used_are_refused():
    for call in (LINEAR, lambda x: Tensor(X) + x, assigned):
        with pytest.raises(UsageError, match=r"1 of 12 numbers are too large for float32, which ends at 3.4e\+38"):
            call(np.where(np.arange(12).reshape(4, 3) == 5, 1e39, 0.0))
        with np.errstate(invalid="ignore"):
            assert not np.isfinite(value(call(np.full((4, 3), np.inf)))).any()  # what is infinite shows in the loss


def test_the_layer_is_named():
    model = nn.Module()
    model.head = [nn.Linear(DIM, 2)]
    model.initialise(1)
    with pytest.raises(UsageError, match=r"the input of layer 'head.0': 2 of 12 entries are masked.*filled"):
        model.head[0](np.ma.masked_array(X, X > 0.6))


def test_nobody_changes_ids_between_the_check_and_the_use():
    ids, classes = IDS.copy(), np.array([0, 1, 2, 0])
    rows = Tensor(Memory.values.copy(), requires_grad=True)
    loss = nn.cross_entropy(autograd.gather_rows(rows, ids), classes) + rows[ids].mean()
    loss = loss + autograd.sampled_softmax(Tensor(X), rows, Tensor(Memory.values[:, :1]), ids, ids[:2])
    ids[:], classes[:] = 1 << 40, 1 << 40
    loss.backward()
    assert np.isfinite(rows.grad).all()


def test_other_things_that_are_arrays():
    layer = table()
    for ids in (3, np.int32(3), np.array(3), range(3, 4), array.array("i", [3]), memoryview(np.array([3])), []):
        found = layer(ids).data
        assert found.shape == (*np.shape(ids), DIM) and (found == Memory.values[3]).all()
    assert layer(np.empty((0, 2), np.float32)).shape == (0, 2, DIM)
    with pytest.raises(UsageError, match="float32: expected integers"):
        layer(Tensor(IDS))
    assert autograd.exp(0.0).data == 1 and (Tensor(2.0) + 3).data == 5


def test_tensors_of_torch_are_arrays():
    torch, layer = pytest.importorskip("torch"), table()
    np.testing.assert_array_equal(layer(torch.tensor(IDS)).data, layer(IDS).data)
    with pytest.raises(UsageError, match="numpy makes no array"):
        LINEAR(torch.zeros(4, DIM, requires_grad=True))


@given(
    arrays.arrays(
        st.sampled_from([np.int8, np.uint8, np.int32, np.int64, np.uint64, ">i4", ">u8"]),
        arrays.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4),
    ),
    st.integers(0, 300),
)
def test_integers_are_what_was_given_or_refused(ids, bound):
    inside = bool(((ids >= 0) & (ids < bound)).all())
    try:
        found = inputs.integers(ids, "ids", 0, bound, SparseIndexError)
    except SparseIndexError as error:
        assert not inside
        place = np.flatnonzero(((ids < 0) | (ids >= bound)).reshape(-1))[0]
        assert f"ids {int(ids.reshape(-1)[place])} " in str(error)
    else:
        assert inside and found.dtype == np.int64 and found.flags.c_contiguous and not np.shares_memory(found, ids)
        np.testing.assert_array_equal(found, ids)


def test_ids_whose_differences_wrap_round_are_no_rise():
    with pytest.raises(UsageError):
        inputs.ascending(np.array([0, 1 << 62, -(1 << 63), -(1 << 62), 0]), "ids", ROWS)


@given(arrays.arrays(np.int64, st.integers(0, 6), elements=st.integers(-2, 8)))
def test_ascending_ids_are_distinct_and_in_range(ids):
    right = bool((np.diff(ids) > 0).all()) and (not len(ids) or (ids[0] >= 0 and ids[-1] < ROWS))
    try:
        assert inputs.ascending(ids, "ids", ROWS) is ids and right
    except UsageError:
        assert not right


def test_gradients_and_sentences_go_through_the_border():
    x = Tensor(X, requires_grad=True)
    (x * 2.0).backward(X.tolist())
    np.testing.assert_allclose(x.grad, 2 * X)
    for wrong in (masked(X), X[:1], X.astype(complex), "ones"):
        with pytest.raises(UsageError, match="gradient given to backward"):
            (x * 2.0).backward(wrong)
    assert data.Sentences.of([[1, 2], IDS, []]).words.tolist() == [1, 2, 3, 0, 3, 6]
    for wrong in (masked(IDS), IDS + 0.5, IDS + (1 << 31), "text"):
        with pytest.raises(UsageError, match="a sentence: word"):
            data.Sentences.of([IDS, wrong])
    for wrong in ([3.0, 4.0], IDS, masked(X), 1.0):
        with pytest.raises(UsageError, match="clip_global_norm"):
            nn.clip_global_norm([X.copy(), wrong], 1.0)


def test_tokens_are_integers():
    for tokens in (masked(np.arange(100)), np.arange(100.0), np.zeros((10, 10), int), "text", None):
        with pytest.raises(UsageError, match="tokens"):
            data.Streams(tokens, 2, 3)
    np.testing.assert_array_equal(data.Streams(list(range(50)), 2, 3).batch(0).inputs, [[0, 1, 2], [24, 25, 26]])


def test_data_of_graphs_may_be_anything_but_masked():
    assert GRAPHS.with_data(name=["a", "b", "c", "d"]).data["name"].tolist() == ["a", "b", "c", "d"]
    with pytest.raises(UsageError, match=r"data 'word': 1 of 4 entries are masked"):
        GRAPHS.with_data(word=masked(IDS))


def test_every_operation_names_its_arguments():
    """An operation that takes an array by another name than these is to be added to the tables above."""
    known = {
        "a", "axes", "axis", "b", "backward", "bias", "candidate_offsets", "candidates", "data", "deliver", "exponent",
        "hidden", "keepdims", "labels", "lengths", "logits", "memory", "parents", "parts", "positions", "queries",
        "rate", "rows", "shape", "source", "starts", "state", "target_offsets", "targets", "uniform", "values",
        "vectors", "weight", "weights", "where", "x",
    }  # fmt: skip
    functions = [getattr(autograd, name) for name in autograd.__all__]
    names = {n for f in functions if inspect.isfunction(f) for n in inspect.signature(f).parameters}
    assert names <= known, names - known
