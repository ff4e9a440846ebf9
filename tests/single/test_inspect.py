"""`hybridmpi inspect`: what people and programs read of a checkpoint, and how it fails."""

import json
import subprocess
import sys

import h5py
import numpy as np
import pytest

from hybridmpi import checkpoint
from hybridmpi.checkpoint import TableShard, files
from hybridmpi.checkpoint.inspect import describe, human_size, render
from hybridmpi.cli.main import main

VALUES = np.random.default_rng(0).standard_normal((1000, 8)).astype("f4")


def save(root, step=1000, values=VALUES, state=None, weight=None):
    state = np.ones_like(VALUES) if state is None else state
    directory = checkpoint.begin(root, step)
    records = [
        checkpoint.write_server(
            directory,
            s,
            2,
            [TableShard("embedding", 1000, 8, "cyclic", s, 2, values[s::2], {"accumulator": state[s::2]})],
        )
        for s in range(2)
    ]
    weight = np.full((3, 4), 2, "f4") if weight is None else weight
    dense = {"lstm.weight_x": weight, "lstm.bias": np.array(-3.0)}
    slots = {"accumulator": {"lstm.weight_x": np.zeros((3, 4), "f4")}}
    records.append(
        checkpoint.write_dense(directory, dense, slots, {"h": np.zeros((64, 8), "f4")}, {"seed": 7}, ["a"] * 1234)
    )
    return checkpoint.commit(directory, step, records, {"optimizer": {"name": "adagrad", "rate": 0.2}})


def parameter(description, name):
    return next(found for found in description["parameters"] if found["name"] == name)


@pytest.mark.parametrize("which", ["root", "directory", "index.h5"])
def test_describe(tmp_path, which, monkeypatch):
    monkeypatch.setattr(files, "SLAB_BYTES", 1000)
    directory = save(tmp_path)
    found = describe({"root": tmp_path, "directory": directory, "index.h5": directory / "index.h5"}[which])
    assert found["step"] == 1000 and found["servers"] == 2 and found["words"] == 1234 and found["damage"] is None
    assert found["elements"] == 8000 + 12 + 1
    assert found["size"] == sum(path.stat().st_size for path in directory.glob("*.h5"))
    embedding = parameter(found, "embedding")
    assert embedding.pop("norm") == pytest.approx(np.linalg.norm(VALUES.astype("f8")), rel=1e-12)
    assert embedding == {
        "name": "embedding",
        "kind": "sparse",
        "shape": [1000, 8],
        "dtype": "float32",
        "partitions": "2 x cyclic",
        "slots": ["accumulator"],
        "nonfinite": {},
    }
    assert parameter(found, "lstm.bias")["norm"] == 3 and parameter(found, "lstm.bias")["shape"] == []
    assert found["meta"] == {"seed": 7, "optimizer": {"name": "adagrad", "rate": 0.2}}
    assert found["carried"] == [{"name": "h", "shape": [64, 8], "dtype": "float32"}]


def test_the_text(tmp_path, capsys):
    directory = save(tmp_path)
    checkpoint.begin(tmp_path, 2000)
    assert main(["inspect", str(tmp_path), "--verify"]) == 0
    lines = capsys.readouterr().out.splitlines()
    squeezed = [" ".join(line.split()) for line in lines]
    assert lines[0] == str(directory)
    norm = f"{np.linalg.norm(VALUES.astype('f8')):.6g}"
    for line in [
        "step 1,000",
        "vocabulary 1,234 words",
        "parameter kind shape dtype partitions slots norm finite",
        f"embedding sparse 1,000 x 8 float32 2 x cyclic accumulator {norm} yes",
        "lstm.weight_x dense 3 x 4 float32 - accumulator 6.9282 yes",
        "h 64 x 8 float32",
        "optimizer {'name': 'adagrad', 'rate': 0.2}",
        "incomplete beside it (a write that did not finish): step-00002000",
        "verified: every byte is what was written",
    ]:
        assert line in squeezed, "\n".join(lines)
    start = next(line for line in lines if line.startswith("parameter")).index("dtype")
    table = [line for line in lines if line.startswith(("embedding", "lstm."))]
    assert len(table) == 3 and all(line[start:].startswith("float") for line in table)


def test_numbers_that_are_not_finite_are_shown(tmp_path, capsys):
    values, state, weight = VALUES.copy(), np.ones_like(VALUES), np.ones((3, 4), "f4")
    values[3, 2] = values[4, 0] = np.nan
    state[5, 5] = np.inf
    weight[0, 0] = -np.inf
    save(tmp_path, values=values, state=state, weight=weight)
    found = describe(tmp_path)
    assert parameter(found, "embedding")["nonfinite"] == {"values": 2, "accumulator": 1}
    assert parameter(found, "embedding")["norm"] is None
    assert parameter(found, "lstm.weight_x")["nonfinite"] == {"values": 1}
    assert parameter(found, "lstm.bias")["nonfinite"] == {}
    assert "NO: 2 of values, 1 of accumulator" in render(found)
    assert main(["inspect", str(tmp_path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out, parse_constant=pytest.fail)["step"] == 1000


def test_large_float64_values_are_finite(tmp_path):
    save(tmp_path, weight=np.full((3, 4), 1e200))
    assert parameter(describe(tmp_path), "lstm.weight_x")["nonfinite"] == {}


def test_damage(tmp_path, capsys):
    directory = save(tmp_path)
    path = directory / "server-001.h5"
    with h5py.File(path) as file:
        offset = file["/tables/embedding/state/accumulator"].id.get_offset()
    data = bytearray(path.read_bytes())
    data[offset + 5] ^= 1
    path.write_bytes(data)
    assert main(["inspect", str(tmp_path), "--verify"]) == 1
    text = capsys.readouterr().out
    assert (
        "DAMAGED server-001.h5: bytes " in text
        and "/tables/embedding/state/accumulator" in text
        and "verified" not in text
    )
    assert main(["inspect", str(tmp_path), "--verify", "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert [damage["file"] for damage in found["damage"]] == ["server-001.h5"]


def test_errors(tmp_path, capsys):
    def fails(path, *texts):
        assert main(["inspect", str(path)]) == 1
        text = capsys.readouterr().err
        assert all(part in text for part in texts), text

    fails(tmp_path / "absent", "no such file or directory")
    fails(tmp_path, "is not a checkpoint", "manifest.json")
    (tmp_path / "alone.h5").write_bytes(b"x")
    fails(tmp_path / "alone.h5", "is not a checkpoint")
    checkpoint.begin(tmp_path, 3)
    fails(tmp_path, "no whole checkpoint", "step-00000003", "no manifest.json")
    directory = save(tmp_path, 4)
    (directory / "server-001.h5").write_bytes(b"")
    fails(tmp_path, "server-001.h5: expected", "found 0")
    (directory / "server-001.h5").unlink()
    fails(directory, "server-001.h5: expected", "found no file")
    (directory / "manifest.json").write_text("{}")
    fails(directory, "manifest.json: unreadable or damaged")


def test_inspect_loads_neither_mpi_nor_numba(tmp_path):
    save(tmp_path)
    program = (
        "import sys; from hybridmpi.cli.main import main\n"
        "status = main(['inspect', sys.argv[1], '--verify', '--json'])\n"
        "print([name for name in ('mpi4py', 'numba', 'cupy') if name in sys.modules]); sys.exit(status)"
    )
    done = subprocess.run([sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "[]"


def test_human_size():
    assert [human_size(n) for n in (0, 1023, 1536, 5 << 20, 3 << 30, 2 << 40, 4 << 50)] == [
        "0 B",
        "1023 B",
        "1.5 KiB",
        "5.0 MiB",
        "3.0 GiB",
        "2.0 TiB",
        "4096.0 TiB",
    ]
