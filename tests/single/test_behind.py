"""Written behind: copies that nothing changes, memory that is kept, and word of every outcome."""

import threading
import weakref

import h5py
import numpy as np
import pytest

from hybridmpi.checkpoint import Behind, TableShard, behind, collect
from hybridmpi.errors import CheckpointError


def shard(values, name="t"):
    return TableShard(name, len(values), values.shape[1], "block", 0, 1, values, {"sum": values + 1})


def test_copies_stay_what_they_were_and_use_the_same_memory_again():
    arrays = {"a": np.arange(6.0).reshape(2, 3), "scalar": np.array(7), "none": np.empty((0, 3)), "b": np.ones(9)}
    writer = Behind()
    first = writer.copies("x", arrays)
    for name, array in arrays.items():
        assert first[name].dtype == array.dtype and first[name].shape == array.shape
        assert not np.shares_memory(first[name], array)
    arrays["a"] += 1
    assert first["a"].tolist() == [[0, 1, 2], [3, 4, 5]]
    writer.start(lambda: None)
    writer.result()
    again = writer.copies("x", {"a": arrays["a"], "b": np.ones(12)})
    assert np.shares_memory(first["a"], again["a"]) and not np.shares_memory(first["b"], again["b"])
    assert not np.shares_memory(writer.copies("y", arrays)["a"], again["a"])


def test_memory_that_a_checkpoint_no_longer_needs_is_given_back():
    """Tables that have left this owner since."""
    writer, alive = Behind(), []
    for names in (("a", "b"), ("b",), ("b", "c")):
        copies = writer.copies("x", {name: np.ones(1000) for name in names})
        alive.append({name: weakref.ref(copy.base) for name, copy in copies.items()})
        del copies
        writer.start(lambda: None)
        writer.result()
        assert all(found() is not None for found in alive[-1].values())
        assert alive[0]["a"]() is None or len(alive) == 1
    writer.close()
    assert not [name for found in alive for name, of in found.items() if of() is not None]


def test_what_strided_and_fortran_arrays_hold_is_copied():
    array = np.asfortranarray(np.arange(12).reshape(3, 4))
    found = Behind().copies("x", {"fortran": array, "strided": array[::2, 1:]})
    assert np.array_equal(found["fortran"], array) and np.array_equal(found["strided"], array[::2, 1:])


def test_the_file_holds_what_was_there_at_the_start(tmp_path):
    go = threading.Event()
    values = np.arange(8.0).reshape(4, 2)
    writer, write = Behind(), behind.write_server

    def slowly(*arguments):
        assert go.wait(10)
        return write(*arguments)

    behind.write_server = slowly
    try:
        writer.write_server(tmp_path, 0, 1, [shard(values)])
        assert not writer.done
        values[:] = -1
        go.set()
        (record,) = collect(tmp_path, 1, threading.Event())
    finally:
        behind.write_server = write
    writer.result()
    assert writer.done and [path.name for path in tmp_path.iterdir()] == ["server-000.h5"]
    assert record.name == "server-000.h5" and record == write(tmp_path, 0, 1, [shard(np.arange(8.0).reshape(4, 2))])
    with h5py.File(tmp_path / "server-000.h5") as file:
        assert file["/tables/t/values"][:].tolist() == [[0, 1], [2, 3], [4, 5], [6, 7]]


def test_a_failure_reaches_the_rank_that_commits(tmp_path):
    writer = Behind()
    (tmp_path / "server-001.h5").mkdir()  # in the way of the rename
    writer.write_server(tmp_path, 1, 2, [shard(np.ones((2, 2)))])
    entry = {"name": "server-000.h5", "size": 1, "sha256": "", "host": "", "marks": []}
    behind.leave(tmp_path, "server-000.h5", {"record": entry, "contents": {}})
    with pytest.raises(CheckpointError, match=r"server-001\.h5: cannot be written"):
        collect(tmp_path, 2, threading.Event())
    for _ in range(2):  # looking does not make it good
        with pytest.raises(CheckpointError, match="cannot be written"):
            writer.check()
    with pytest.raises(CheckpointError, match="cannot be written"):
        writer.result()
    assert writer.done
    writer.check()


def test_waiting_for_what_cannot_come_is_given_up(tmp_path):
    given_up = threading.Event()
    given_up.set()
    with pytest.raises(CheckpointError, match=r"given up: \.server-000\.h5\.record never came"):
        collect(tmp_path, 1, given_up)
