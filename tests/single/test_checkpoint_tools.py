"""index.h5 shows the whole model to any HDF5 tool: h5py, and h5ls and h5dump where they are installed."""

import json
import shutil
import subprocess

import h5py
import numpy as np
import pytest

from hybridmpi import checkpoint
from hybridmpi.checkpoint import TableShard

needs_h5ls = pytest.mark.skipif(
    shutil.which("h5ls") is None or shutil.which("h5dump") is None, reason="h5ls, h5dump absent: install hdf5-tools"
)

EMBEDDING = np.arange(33, dtype="f4").reshape(11, 3)
OUTPUT = np.arange(14, dtype="f8").reshape(7, 2)
WEIGHT = np.arange(6, dtype="f4").reshape(2, 3) / 2


@pytest.fixture(params=[1, 2, 3, 15])
def directory(request, tmp_path):
    servers = request.param
    directory = checkpoint.begin(tmp_path / "written", 40)
    records = []
    for server in range(servers):
        begin, end = 7 * server // servers, 7 * (server + 1) // servers
        rows = EMBEDDING[server::servers]
        shards = [
            TableShard("embedding", 11, 3, "cyclic", server, servers, rows, {"accumulator": rows + 1}),
            TableShard("output%b", 7, 2, "block", begin, 1, OUTPUT[begin:end], {"accumulator": OUTPUT[begin:end] * 2}),
            TableShard("nothing", 0, 5, "cyclic", server, servers, np.empty((0, 5), "f4"), {}),
        ]
        records.append(checkpoint.write_server(directory, server, servers, shards))
    state = {"accumulator": {"lstm.weight_x": WEIGHT * 3}}
    meta = {
        "step": 40,
        "rate": 0.25,
        "resumed": False,
        "job": {"kind": "lm"},
        "note": "größe",
        "huge": 2**70,
        "none": None,
    }
    records.append(
        checkpoint.write_dense(directory, {"lstm.weight_x": WEIGHT}, state, {"h": WEIGHT}, meta, words=["a", "é"])
    )
    checkpoint.commit(directory, 40, records, {})
    (tmp_path / "written").rename(tmp_path / "moved")  # file names in the index are relative
    return tmp_path / "moved" / directory.name


def test_h5py_sees_the_whole_model(directory):
    with h5py.File(directory / "index.h5") as file:
        parameters, optimizer = file["parameters"], file["optimizer"]
        assert sorted(parameters) == ["embedding", "lstm.weight_x", "nothing", "output%b"]
        np.testing.assert_array_equal(parameters["embedding"], EMBEDDING)
        np.testing.assert_array_equal(parameters["output%b"], OUTPUT)
        np.testing.assert_array_equal(parameters["lstm.weight_x"], WEIGHT)
        assert parameters["nothing"].shape == (0, 5)
        np.testing.assert_array_equal(optimizer["embedding/accumulator"], EMBEDDING + 1)
        np.testing.assert_array_equal(optimizer["output%b/accumulator"], OUTPUT * 2)
        np.testing.assert_array_equal(optimizer["lstm.weight_x/accumulator"], WEIGHT * 3)
        np.testing.assert_array_equal(file["carried/h"], WEIGHT)
        assert list(file["vocabulary/words"].asstr()) == ["a", "é"]
        meta = file["meta"]
        scalars = {"step": 40, "rate": 0.25, "resumed": False, "note": "größe"}
        assert {key: meta.attrs[key] for key in meta.attrs} == scalars
        texts = {key: json.loads(meta[key].asstr()[()]) for key in meta}
        assert texts == {"job": {"kind": "lm"}, "huge": 2**70, "none": None}
        assert file.attrs["step"] == 40
        assert parameters["embedding"].attrs["kind"] == "cyclic"


def test_a_lost_shard_shows_as_nan_not_as_numbers(directory):
    (directory / "server-000.h5").unlink()
    with h5py.File(directory / "index.h5") as file:
        assert np.isnan(file["parameters/embedding"][0]).all()


@needs_h5ls
def test_h5ls_and_h5dump_see_the_whole_model(directory, tmp_path):
    index = str(directory / "index.h5")

    def tool(*command):
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd="/")
        assert done.returncode == 0, done.stderr
        return done.stdout

    listed = tool("h5ls", "-r", index)
    for line in [
        "/parameters/embedding Dataset {11, 3}",
        "/parameters/nothing Dataset {0, 5}",
        "/parameters/output%b Dataset {7, 2}",
        "/parameters/lstm.weight_x External Link {dense.h5//parameters/lstm.weight_x}",
        "/optimizer/embedding/accumulator Dataset {11, 3}",
    ]:
        assert line in [" ".join(row.split()) for row in listed.splitlines()], listed
    assert "Dataset {2, 3}" in tool("h5ls", "-E", "-r", index)
    for name, expected in [
        ("/parameters/embedding", EMBEDDING),
        ("/parameters/output%b", OUTPUT),
        ("/parameters/lstm.weight_x", WEIGHT),
        ("/optimizer/embedding/accumulator", EMBEDDING + 1),
    ]:
        out = tmp_path / "numbers.bin"
        tool("h5dump", "-d", name, "-b", "NATIVE", "-o", str(out), index)
        np.testing.assert_array_equal(np.fromfile(out, expected.dtype).reshape(expected.shape), expected, err_msg=name)
    for name in ("dense.h5", "server-000.h5"):
        assert "HDF5" in tool("h5dump", "-H", str(directory / name))
