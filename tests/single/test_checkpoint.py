"""Checkpoints: what one number of servers wrote, any other reads; mismatches say what, where and what was expected."""

import pickle
import time
import tracemalloc
from pathlib import Path

import h5py
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hybridmpi import checkpoint
from hybridmpi.checkpoint import Checkpoint, TableShard, files, manifest, source
from hybridmpi.checkpoint.layout import Progression, overlap
from hybridmpi.errors import CheckpointError, DamageError


def share(rows: int, servers: int, kind: str, server: int) -> tuple[int, int, int]:
    """First, stride and count of the rows of one server."""
    if kind == "cyclic":
        return server, servers, len(range(server, rows, servers))
    first = rows * server // servers
    return first, 1, rows * (server + 1) // servers - first


def table(rows: int, dim: int = 3, dtype: str = "f4") -> np.ndarray:
    return np.arange(rows * dim, dtype=dtype).reshape(rows, dim)


def save(root: Path, step: int, servers: int, tables: dict, dense: dict | None = None, **rest) -> Path:
    """Write a generation; `tables` maps names to (values, kind); every table has the slots m and v."""
    directory = checkpoint.begin(root, step)
    records = []
    for server in range(servers):
        shards = []
        for name, (values, kind) in tables.items():
            first, stride, count = share(len(values), servers, kind, server)
            mine = values[first::stride][:count]
            state = {"m": mine + 1000, "v": -mine}
            shards.append(TableShard(name, *values.shape, kind, first, stride, mine, state))
        records.append(checkpoint.write_server(directory, server, servers, shards))
    dense = dense or {}
    state = {"m": {name: array * 2 for name, array in dense.items()}} if dense else {}
    meta = {"seed": 3, "job": {"rate": 0.5, "kinds": ["a", None]}}
    arguments = {"carried": {}, "meta": meta, "words": None} | rest
    records.append(checkpoint.write_dense(directory, dense, state, **arguments))
    return checkpoint.commit(directory, step, records, {"position": 17})


@given(
    rows=st.integers(0, 23),
    writers=st.integers(1, 5),
    readers=st.integers(1, 5),
    kinds=st.tuples(*[st.sampled_from(["block", "cyclic"])] * 2),
    dim=st.integers(0, 3),
)
@settings(deadline=None, max_examples=30)
def test_any_partition_reads_what_any_other_wrote(tmp_path_factory, rows, writers, readers, kinds, dim):
    root = tmp_path_factory.mktemp("any")
    values = table(rows, dim)
    save(root, 1, writers, {"e": (values, kinds[0])})
    opened = Checkpoint.open(root)
    for reader in range(readers):
        first, stride, count = share(rows, readers, kinds[1], reader)
        got, state = opened.read_rows("e", first, stride, count)
        expected = values[first::stride][:count]
        assert got.shape == (count, dim) and got.dtype == values.dtype
        np.testing.assert_array_equal(got, expected)
        np.testing.assert_array_equal(state["m"], expected + 1000)
        np.testing.assert_array_equal(state["v"], -expected)


@pytest.mark.parametrize("kind", ["block", "cyclic"])
@pytest.mark.parametrize("writers", [1, 2, 3])
@pytest.mark.parametrize("slab", [16, 100])
def test_slabs_of_any_size_give_the_same_rows(tmp_path, monkeypatch, kind, writers, slab):
    monkeypatch.setattr(files, "SLAB_BYTES", slab)
    monkeypatch.setattr("hybridmpi.checkpoint.source.SLAB_BYTES", slab)
    values = table(41, 2)
    save(tmp_path, 1, writers, {"e": (values, kind)})
    opened = Checkpoint.open(tmp_path)
    for first, stride, count in [(0, 1, 41), (3, 7, 5), (40, 1, 1), (5, 1, 0), (2, 38, 2)]:
        np.testing.assert_array_equal(opened.read_rows("e", first, stride, count)[0], values[first::stride][:count])
    assert checkpoint.verify(tmp_path) == []


progressions = st.builds(Progression, st.integers(0, 40), st.integers(1, 12), st.integers(0, 12))


@given(progressions, progressions)
def test_overlap_is_set_intersection(a, b):
    def rows(p):
        return [p.first + i * p.stride for i in range(p.count)]

    shared = overlap(a, b)
    common = sorted(set(rows(a)) & set(rows(b)))
    if not common:
        assert shared is None
        return
    steps = range(shared.count)
    assert [rows(a)[shared.start + k * shared.step] for k in steps] == common
    assert [rows(b)[shared.other_start + k * shared.other_step] for k in steps] == common


def test_only_overlapping_shards_are_opened(tmp_path, monkeypatch):
    save(tmp_path, 1, 5, {"e": (table(50), "block")})
    opened = Checkpoint.open(tmp_path)
    seen = []
    real = source.opened_plainly
    monkeypatch.setattr(source, "opened_plainly", lambda path: seen.append(path.name) or real(path))
    opened.read_rows("e", 12, 1, 10)
    assert seen == ["server-001.h5", "server-002.h5"]


def test_everything_dense_comes_back(tmp_path):
    dense = {
        "lstm.weight_x": table(6, 4),
        "lstm.weight_x.transposed": table(6, 4).T,
        "strided": np.arange(40, dtype="f8")[::3],
        "scalar": np.array(2.5, "f4"),
        "empty": np.empty((0, 7), "f4"),
        "half": np.ones(3, "f2"),
        "swapped": np.arange(4, dtype=">f4"),
        "größe %b": np.ones((1, 1), "f4"),
    }
    carried = {"h": table(2, 5), "steps": np.arange(3), "done": np.array([True, False])}
    words = ["the", "", "naïve", "日本語", "a b"]
    save(tmp_path, 12, 0, {}, dense, carried=carried, words=words)
    opened = pickle.loads(pickle.dumps(Checkpoint.open(tmp_path)))  # one rank opens, and broadcasts
    parameters, state = opened.read_dense()
    assert parameters.keys() == dense.keys() and state.keys() == {"m"}
    for name, array in dense.items():
        assert parameters[name].dtype == array.dtype.newbyteorder("=") and parameters[name].shape == array.shape
        np.testing.assert_array_equal(parameters[name], array)
        np.testing.assert_array_equal(state["m"][name], array * 2)
    for name, array in opened.carried().items():
        np.testing.assert_array_equal(array, carried[name])
    assert opened.words() == words
    assert (opened.step, opened.servers) == (12, 0)
    assert opened.meta == {"seed": 3, "job": {"rate": 0.5, "kinds": ["a", None]}, "position": 17}


def test_no_words_no_tables_no_parameters(tmp_path):
    save(tmp_path, 0, 2, {})
    opened = Checkpoint.open(tmp_path)
    assert opened.words() is None and opened.tables == {} and opened.read_dense() == ({}, {}) and opened.carried() == {}


def test_same_content_same_bytes(tmp_path):
    for root, later in (("a", 0), ("b", 1.1)):
        time.sleep(later)  # HDF5 counts time in seconds: none of it is to be in the files
        save(tmp_path / root, 1, 2, {"e": (table(9), "cyclic")}, {"w": table(2)}, words=["x"])
    for name in ("dense.h5", "index.h5", "server-000.h5", "server-001.h5"):
        a, b = (tmp_path / root / "step-00000001" / name for root in ("a", "b"))
        assert a.read_bytes() == b.read_bytes(), name


@pytest.mark.parametrize("order", ["C", "F"])
def test_no_table_is_ever_copied_as_a_whole(tmp_path, monkeypatch, order):
    monkeypatch.setattr(files, "SLAB_BYTES", 1 << 16)
    monkeypatch.setattr("hybridmpi.checkpoint.source.SLAB_BYTES", 1 << 16)
    values = np.asarray(table(1 << 16, 32), order=order)  # 8 MiB
    directory = checkpoint.begin(tmp_path, 1)
    shard = TableShard("e", *values.shape, "block", 0, 1, values)
    tracemalloc.start()
    try:
        records = [checkpoint.write_server(directory, 0, 1, [shard]), checkpoint.write_dense(directory, {}, {}, {}, {})]
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
        checkpoint.commit(directory, 1, records, {})
        tracemalloc.reset_peak()
        got, _ = Checkpoint.open(directory).read_rows("e", 3, 8, 8192)
        assert tracemalloc.get_traced_memory()[1] < got.nbytes + (1 << 20)
    finally:
        tracemalloc.stop()
    np.testing.assert_array_equal(got, values[3::8])


def test_read_rows_says_what_is_wrong(tmp_path):
    save(tmp_path, 1, 2, {"embedding": (table(10), "block")})
    opened = Checkpoint.open(tmp_path)
    with pytest.raises(CheckpointError, match=r"no table 'output'; expected one of: embedding"):
        opened.read_rows("output", 0, 1, 1)
    for rows in [(0, 1, 11), (9, 2, 2), (-1, 1, 2), (0, 0, 2), (0, 1, -1)]:
        with pytest.raises(CheckpointError, match=r"table 'embedding'.*rows 0 to 9"):
            opened.read_rows("embedding", *rows)


def test_check_lists_every_mismatch(tmp_path):
    save(tmp_path, 1, 1, {"e": (table(10), "block")}, {"w": table(4, 2), "b": table(1)})
    opened = Checkpoint.open(tmp_path)
    opened.check({"w": (4, 2), "b": (1, 3)}, {"e": (10, 3)})
    with pytest.raises(CheckpointError) as caught:
        opened.check({"w": (4, 5), "new": (1,)}, {"e": (11, 3)})
    text = str(caught.value)
    assert "'w': expected dense (4, 5), found dense (4, 2)" in text
    assert "'new': expected dense (1,), found nothing of that name" in text
    assert "'b': expected nothing of that name, found dense (1, 3)" in text
    assert "'e': expected table (11, 3), found table (10, 3)" in text
    with pytest.raises(CheckpointError, match=r"'e': expected optimiser slots \['m'\], found \['m', 'v'\]"):
        opened.check({"w": (4, 2), "b": (1, 3)}, {"e": (10, 3)}, slots=["m"])
    with pytest.raises(CheckpointError, match=r"'w': expected optimiser slots \['m', 'v'\], found \['m'\]"):
        opened.check({"w": (4, 2), "b": (1, 3)}, {"e": (10, 3)}, slots=["v", "m"])


def test_a_replaced_file_is_named(tmp_path):
    directory = save(tmp_path, 1, 1, {"e": (table(10), "block")}, {"w": table(4)})
    opened = Checkpoint.open(tmp_path)
    with h5py.File(directory / "dense.h5", "r+") as file:
        del file["/parameters/w"]
    with h5py.File(directory / "server-000.h5", "r+") as file:
        del file["/tables/e/values"]
        file["/tables/e/values"] = table(3)
    for read, name in ((opened.read_dense, "dense"), (lambda: opened.read_rows("e", 0, 1, 10), "server-000")):
        with pytest.raises(DamageError, match=rf"{name}\.h5: (bytes .* the HDF5 structure|expected \d+ bytes, found)"):
            read()
    (directory / "server-000.h5").write_bytes(b"not hdf5")
    with pytest.raises(DamageError, match=r"server-000\.h5: expected \d+ bytes, found 8: cut short"):
        opened.read_rows("e", 0, 1, 10)


@pytest.mark.parametrize(
    ("meta", "text"),
    [
        ({"a": (1, 2)}, r"meta\['a'\] does not survive"),
        ({"a": {1: 2}}, r"meta\['a'\] does not survive"),
        ({"a": np.float32(1)}, r"meta\['a'\] cannot be stored"),
        ({"a": float("nan")}, r"meta\['a'\] cannot be stored"),
        ({"a/b": 1}, r"meta name 'a/b'"),
    ],
)
def test_meta_must_survive_json(tmp_path, meta, text):
    with pytest.raises(CheckpointError, match=text):
        save(tmp_path, 1, 0, {}, meta=meta)
    assert checkpoint.newest(tmp_path) is None


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)


@given(st.dictionaries(st.text("abcé", min_size=1, max_size=4), json_values, max_size=5))
@settings(deadline=None, max_examples=20)
def test_any_json_meta_comes_back(tmp_path_factory, meta):
    root = tmp_path_factory.mktemp("meta")
    save(root, 1, 0, {}, meta=meta)
    assert Checkpoint.open(root).meta == meta | {"position": 17}


@pytest.mark.parametrize(
    ("dense", "words", "text"),
    [
        ({"a/b": table(1)}, None, "'a/b' cannot be stored"),
        ({"": table(1)}, None, "'' cannot be stored"),
        ({"o": np.array([object()])}, None, "/parameters/o: dtype object"),
        ({"c": np.ones(2, "c8")}, None, "/parameters/c: dtype complex64"),
        ({}, ["a", "b\0"], "vocabulary word 1"),
        ({}, ["\ud800"], "not valid UTF-8"),
    ],
)
def test_what_cannot_be_stored_is_named_and_leaves_nothing(tmp_path, dense, words, text):
    directory = checkpoint.begin(tmp_path, 1)
    with pytest.raises(CheckpointError, match=text):
        checkpoint.write_dense(directory, dense, {}, {}, {}, words)
    assert list(directory.iterdir()) == []


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"first": 9}, "rows 9 to 11, the table has rows 0 to 9"),
        ({"kind": "hash"}, "kind 'hash'"),
        ({"stride": 2}, "kind 'block' with stride 2"),
        ({"dim": 4}, r"values: expected shape \(3, 4\), found \(3, 3\)"),
        ({"state": {"m": table(2)}}, r"m: expected shape \(3, 3\), found \(2, 3\)"),
        ({"name": "a/b"}, "table name 'a/b'"),
    ],
)
def test_a_wrong_shard_is_refused(change, text):
    right = {"name": "e", "rows": 10, "dim": 3, "kind": "block", "first": 0, "stride": 1, "values": table(3)}
    with pytest.raises(CheckpointError, match=text):
        TableShard(**(right | change))


def test_a_server_may_hold_several_parts_of_a_table(tmp_path):
    values = table(11)
    directory = checkpoint.begin(tmp_path, 1)
    records = []
    for server, parts in enumerate([(0, 3), (1,), (2,)]):
        shards = [TableShard("e", 11, 3, "cyclic", p, 4, values[p::4], {"m": -values[p::4]}) for p in parts]
        records.append(checkpoint.write_server(directory, server, 3, shards))
    records.append(checkpoint.write_dense(directory, {}, {}, {}, {}))
    checkpoint.commit(directory, 1, records, {})
    saved = Checkpoint.open(directory)
    for first, stride, count in ((0, 1, 11), (1, 2, 5), (3, 4, 2)):
        rows, state = saved.read_rows("e", first, stride, count)
        assert np.array_equal(rows, values[first::stride][:count]) and np.array_equal(state["m"], -rows)
    with h5py.File(directory / "index.h5") as file:
        assert np.array_equal(file["/parameters/e"][:], values) and np.array_equal(file["/optimizer/e/m"][:], -values)


def test_a_row_lies_in_one_shard_only(tmp_path):
    shard = TableShard("e", 10, 3, "block", 0, 1, table(5))
    directory = checkpoint.begin(tmp_path, 1)
    records = [
        checkpoint.write_server(directory, 0, 1, [shard, shard]),
        checkpoint.write_dense(directory, {}, {}, {}, {}),
    ]
    with pytest.raises(CheckpointError, match="hold the same rows"):
        checkpoint.commit(directory, 1, records, {})


def test_a_checkpoint_of_the_earlier_format_is_read_and_held_against_its_digests(tmp_path, monkeypatch):
    """Its marks have digests of what lies before them only: a file is then verified as a whole, once."""
    values = table(50)
    with monkeypatch.context() as patch:
        patch.setattr(files, "MARK_BYTES", 100)
        directory = save(tmp_path, 1, 2, {"e": (values, "cyclic")}, {"w": table(4)}, words=["a", "b"])
        content = manifest.read_manifest(directory)
        for entry in content["files"]:
            entry["marks"] = [mark[:3] for mark in entry["marks"]]
        manifest.write_manifest(directory, content | {"format": 2})
    opened = Checkpoint.open(tmp_path)
    np.testing.assert_array_equal(opened.read_rows("e", 3, 2, 20)[0], values[3::2][:20])
    assert opened.words() == ["a", "b"] and checkpoint.verify(tmp_path) == []
    path = directory / "server-001.h5"
    data = bytearray(path.read_bytes())
    data[data.index(values[1].tobytes())] ^= 1
    path.write_bytes(data)
    with pytest.raises(DamageError, match=r"server-001\.h5: bytes \d+ to \d+ are not what was written: /tables/e/val"):
        Checkpoint.open(tmp_path).read_rows("e", 49, 1, 1)
    np.testing.assert_array_equal(Checkpoint.open(tmp_path).read_rows("e", 0, 2, 20)[0], values[::2][:20])
