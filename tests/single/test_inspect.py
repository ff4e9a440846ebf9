"""`hybridmpi inspect`: what people read of a checkpoint, and what they read when they asked for the wrong thing."""

import json
import math
import shutil
import subprocess
import sys

import numpy as np
import pytest
from inspected import ROWS, WORDS, model, save

from hybridmpi import checkpoint
from hybridmpi.checkpoint import TableShard
from hybridmpi.cli.main import main
from hybridmpi.inspection.damage import check
from hybridmpi.inspection.text import ago, bars, counted, human_size
from hybridmpi.inspection.tree import grown
from hybridmpi.training.metrics import Metrics


@pytest.fixture
def inspect(capsys):
    """Return a function that runs a command line of inspect and returns (exit status, stdout, stderr)."""

    def run(*arguments):
        status = main(["inspect", *map(str, arguments)])
        found = capsys.readouterr()
        return status, found.out, found.err

    return run


@pytest.fixture
def as_json(inspect):
    def run(*arguments):
        status, out, err = inspect(*arguments, "--json")
        assert status == 0, err
        return json.loads(out, parse_constant=pytest.fail)

    return run


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    root = tmp_path_factory.mktemp("run")
    save(root, 1000)
    changed = model()
    changed.embedding[[1, 5]] += 1
    changed.weight = changed.weight * 2
    save(root, 2000, changed, servers=3)
    checkpoint.begin(root, 3000)
    metrics = Metrics(str(root / "metrics.jsonl"), None, "words")
    for step in (999, 1000, 2000, 2000):
        metrics.write("step", step=step, loss=1 / step, seconds=0.1)
    metrics.write("evaluation", step=2000, perplexity=12.5, words=9, seconds=1.5)
    metrics.close()
    with open(root / "metrics.jsonl", "a") as file:
        file.write('{"kind": "step", "step": 2000, "lo')
    return root


@pytest.mark.parametrize("which", ["", "step-00002000", "step-00002000/index.h5"])
def test_the_overview(root, inspect, as_json, which):
    found = as_json(root / which)
    assert (found["step"], found["servers"], found["words"]) == (2000, 3, ROWS)
    assert found["values"] == 8000 + 210 + 12 + 1
    assert found["size"] == sum(path.stat().st_size for path in (root / "step-00002000").glob("*.h5"))
    assert [parameter["name"] for parameter in found["parameters"]] == [
        "embedding",
        "lstm.bias",
        "lstm.weight_x",
        "users",
    ]
    assert found["parameters"][0] == {
        "name": "embedding",
        "kind": "table",
        "shape": [1000, 8],
        "dtype": "float32",
        "size": 32000,
        "partitions": 3,
        "partition": "cyclic",
        "slots": {"accumulator": 32000},
    }
    lines = [" ".join(line.split()) for line in inspect(root / which)[1].splitlines()]
    for line in [
        "step 2,000",
        "job lm: width 8",
        "optimizer adagrad: rate 0.2, initial 0.1, epsilon 1e-10",
        "vocabulary 1,000 words",
        "embedding table 1,000 x 8 float32 31.2 KiB 3 cyclic accumulator",
        "lstm 2 parameters 56 B",
        ".bias dense scalar float64 8 B - -",
        "carried/h 64 x 8 float32",
        "seed 7",
        "not whole, beside it (being written, or a write that was cut off): step-00003000",
    ]:
        assert line in lines, "\n".join(lines)
    written = next(line for line in lines if line.startswith("written"))
    assert "UTC, just now, by 3 compute ranks, 3 files of tables, on " in written


def test_rows(root, inspect, as_json):
    a = model()
    a.embedding[[1, 5]] += 1

    def rows(text, name="embedding", *more):
        return as_json(root, "--show", name, "--rows", text, *more)["rows"]

    for text, expected in [
        ("10:13", [10, 11, 12]),
        ("-3:", [997, 998, 999]),
        ("17", [17]),
        ("-1", [999]),
        ("5,17,-2", [5, 17, 998]),
        ("::400", [0, 400, 800]),
        ("2::-1", [2, 1, 0]),
        ("998:5000", [998, 999]),
        ("7,3,7", [7, 3, 7]),
    ]:
        assert rows(text) == expected
        found = as_json(root, "--show", "embedding", "--rows", text)
        assert np.array_equal(np.array(found["values"], "f4"), a.embedding[expected])
        assert found["words"] == [WORDS[row] for row in expected]
    found = as_json(root, "--show", "embedding", "--slot", "accumulator", "--rows", "3")
    assert np.array_equal(np.array(found["values"], "f4"), a.accumulator[[3]])
    assert as_json(root, "--show", "lstm.bias")["values"] == [[-3.0]]
    assert np.array_equal(as_json(root, "--show", "carried/h", "--rows", ":")["values"], a.hidden)
    lines = inspect(root, "--show", "embedding", "--rows", "3,1")[1].splitlines()
    assert lines[0] == "embedding: table, 1,000 x 8, float32"
    assert lines[2].split()[:3] == ["3", "'naïve'", f"{a.embedding[3, 0]:.5g}"]
    assert len(lines) == 4
    shown = inspect(root, "--show", "embedding")[1].splitlines()
    assert len(shown) == 2 + 5 + 1 + 5 and shown[7] == "..."


def test_columns_are_clipped_to_the_terminal(root, monkeypatch):
    from hybridmpi.inspection.contents import Contents
    from hybridmpi.inspection.rows import render, show

    found = show(Contents(root), "embedding", None, ":3")
    lines = render(found, 60).splitlines()
    assert max(map(len, lines[:-1])) <= 60 and lines[1].endswith("...")
    assert lines[-1].startswith("columns 0 to ") and "of 8" in lines[-1]
    assert "..." not in render(found, 500)


def test_near(root, inspect, as_json):
    embedding = model().embedding.astype("f8")
    embedding[[1, 5]] += 1
    unit = embedding / np.linalg.norm(embedding, axis=1, keepdims=True)
    order = np.argsort(-(unit @ unit[1]), kind="stable")
    order = order[order != 1][:4]
    (table,) = as_json(root, "--near", "return", "--top", "4")["tables"]
    assert (table["table"], table["row"], table["word"]) == ("embedding", 1, "return")
    assert [near["row"] for near in table["near"]] == order.tolist()
    assert [near["word"] for near in table["near"]] == [WORDS[row] for row in order]
    np.testing.assert_allclose([near["cosine"] for near in table["near"]], (unit @ unit[1])[order], atol=1e-6)
    users = as_json(root, "--near", "69", "--table", "users", "--top", "100")["tables"][0]
    assert len(users["near"]) == 69 and users["word"] is None
    assert "10 rows nearest to row 3, 'naïve'" in inspect(root, "--near", "naïve")[1]


def test_steps(root, inspect, as_json):
    for path in (root, root / "step-00001000", root / "step-00001000" / "index.h5"):
        found = as_json(path, "--steps")["generations"]
        assert [(g["step"], g["state"], g["newest"]) for g in found] == [
            (1000, "whole", False),
            (2000, "whole", True),
            (3000, "incomplete", False),
        ]
        assert [g["loss"] for g in found] == [1 / 1000, 1 / 2000, None]
        assert [g["held_out"] for g in found] == [None, {"perplexity": 12.5}, None]
    out = inspect(root, "--steps", "--verify")[1]
    assert "perplexity 12.5" in out and out.count("every byte verified") == 2 and "cut off" in out


@pytest.mark.parametrize("begun", [False, True])
def test_a_generation_that_goes_while_it_is_verified(tmp_path, inspect, monkeypatch, begun):
    save(tmp_path, 1)
    save(tmp_path, 2)

    def pruned_meanwhile(path):
        found = check(path) if begun else None
        shutil.rmtree(tmp_path / "step-00000001", ignore_errors=True)
        return found or check(path)

    monkeypatch.setattr("hybridmpi.inspection.steps.check", pruned_meanwhile)
    status, out, _ = inspect(tmp_path, "--steps", "--verify")
    assert status == 0 and "gone (removed or replaced while it was read)" in out and out.count("verified") == 1


def test_steps_whose_loss_is_no_number(tmp_path, inspect, as_json):
    save(tmp_path, 7)
    for loss, as_text in ((math.nan, "nan"), (math.inf, "inf")):
        metrics = Metrics(str(tmp_path / "metrics.jsonl"), None, "words")
        metrics.write("step", step=7, loss=loss)
        metrics.write("evaluation", step=7, perplexity=loss)
        metrics.close()
        found = as_json(tmp_path, "--steps")["generations"][0]
        assert (found["loss"], found["held_out"]) == (as_text, {"perplexity": as_text})
        assert f"{as_text}  perplexity {as_text}  whole" in inspect(tmp_path, "--steps")[1]


@pytest.mark.parametrize(
    "arguments, expected",
    [
        (["--show", "embeding"], "did you mean 'embedding'?"),
        (["--show", "embedding", "--slot", "acumulator"], "did you mean 'accumulator'?"),
        (["--show", "users", "--slot", "x"], "it has no optimiser state"),
        (["--show", "embedding", "--rows", "1000"], "there is no row 1000; rows go from 0 to 999"),
        (["--show", "embedding", "--rows", "a:b"], "'a:b' is no row: expected such as 17"),
        (["--show", "embedding", "--rows", "::0"], "a step of 0"),
        (["--statistics", "--parameters", "lstm.q*"], "no parameter is called 'lstm.q*'"),
        (["--near", "retrun"], "did you mean 'return'"),
        (["--near", "RETURN"], "did you mean 'return'"),
        (["--near", "return", "--table", "lstm.bias"], "no table is called 'lstm.bias'"),
        (["--near", "return", "--top", "0"], "--top 0: expected 1 or more"),
        (["--near", "70", "--table", "users"], "has no vocabulary; expected a row from 0 to 69"),
        (["--rows", "3"], "--rows belongs to --show"),
        (["--force"], "--force belongs to --export"),
        (["--verify", "--statistics"], "ask for one at a time"),
        (["--export", "model.txt"], "ends in .h5, .hdf5, .npz"),
        (["--export", "nowhere/model.npz"], "there is no folder 'nowhere'"),
        (["--diff", "a", "b"], "--diff compares two checkpoints, not 3"),
    ],
)
def test_wrong_questions(root, inspect, arguments, expected):
    status, out, err = inspect(root, *arguments)
    assert (status, out) == (2, "") and expected in err, err


def test_wrong_paths(tmp_path, inspect):
    def fails(path, *texts):
        for more in ([], ["--verify"], ["--statistics"]):
            status, _, err = inspect(path, *more)
            assert status == 1 and all(text in err for text in texts), err

    fails(tmp_path / "absent", "no such file or directory")
    fails(tmp_path, "is not a checkpoint", "manifest.json")
    (tmp_path / "alone.h5").write_bytes(b"x")
    fails(tmp_path / "alone.h5", "is not a checkpoint")
    assert "no step-NNNNNNNN directories" in inspect(tmp_path, "--steps")[2]
    checkpoint.begin(tmp_path, 3)
    fails(tmp_path, "no whole checkpoint", "step-00000003", "no manifest.json")
    directory = save(tmp_path, 4)
    (directory / "server-001.h5").unlink()
    assert "server-001.h5: expected" in inspect(tmp_path)[2]
    (directory / "manifest.json").write_text("{}")
    fails(directory, "manifest.json: unreadable or damaged")
    assert "which checkpoint?" in inspect()[2]


def test_it_loads_neither_mpi_nor_numba(root):
    """A laptop has no MPI; and compiling or loading numba would take longer than all the rest."""
    program = (
        "import sys; from hybridmpi.cli.main import main\n"
        "root = sys.argv[1]\n"
        "for more in ([], ['--verify'], ['--steps'], ['--statistics'], ['--near', 'return'], ['--show', 'lstm.bias'],\n"
        "             ['--diff', root], ['--export', root + '/x.npz', '--force']):\n"
        "    assert main(['inspect', root, *more, '--json']) == 0\n"
        "print([name for name in ('mpi4py', 'numba', 'cupy', 'scipy') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program, str(root)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "[]"


def test_plain_terminals(root):
    """Where the output's encoding has no blocks there are other signs; words show as escapes."""
    command = [sys.executable, "-m", "hybridmpi", "inspect", str(root)]
    for more in (["--statistics"], ["--diff", str(root / "step-00001000")], ["--show", "embedding", "--rows", "3"]):
        done = subprocess.run([*command, *more], capture_output=True, timeout=60, env={"PYTHONIOENCODING": "ascii"})
        assert done.returncode == 0, done.stderr
        text = done.stdout.decode("ascii")
    assert r"'na\xefve'" in text


def test_no_disk_and_no_reader(root):
    """What cannot be written is an error in one line; a pipe whose reader has gone is none at all."""
    command = [sys.executable, "-m", "hybridmpi", "inspect", str(root), "--show", "embedding", "--rows", ":"]
    with open("/dev/full", "w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (
        1,
        "hybridmpi: error: No space left on device, where this command writes to\n",
    )
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        process.stdout.close()
        assert process.wait(60) == 1 and process.stderr.read() == ""


def test_odd_names_and_words(tmp_path, inspect):
    """Control characters do not reach the terminal, wide characters keep columns in line."""
    arrays = {"esc\x1b[31m": np.ones((2, 2)), "日本": np.ones((2, 2)), "one": np.array(2.5), "two": np.arange(3.0)}
    directory = checkpoint.begin(tmp_path, 1)
    words = ["日本語", "\x1b[31mred", *(f"w{i}" for i in range(28))]
    table = np.zeros((30, 2), "f4")
    table[:, 0] = np.arange(30)
    shards = [TableShard(name, 30, 2, "block", 0, 1, table * (name == "b")) for name in "ab"]
    records = [
        checkpoint.write_server(directory, 0, 1, shards),
        checkpoint.write_dense(directory, arrays, {}, {}, {"note": "x\x1by"}, words),
    ]
    checkpoint.commit(directory, 1, records, {})
    out = inspect(tmp_path)[1]
    assert "\x1b" not in out and r"esc\x1b[31m  dense" in out and "日本         dense" in out and r"x\x1by" in out
    lines = inspect(tmp_path, "--show", "b")[1].splitlines()[2:4]
    assert lines == [" 0  '日本語'        0  0", r" 1  '\x1b[31mred'   1  0"]
    assert inspect(tmp_path, "--show", "one", "--rows", "5:") == (0, "one: dense, scalar, float64\nno rows\n", "")
    assert (
        "..." in inspect(tmp_path, "--show", "b")[1]
        and "..." not in inspect(tmp_path, "--show", "b", "--rows", "::3")[1]
    )
    status, out, _ = inspect(tmp_path, "--near", "w3")
    assert status == 0 and "a: row 5, 'w3', is zero" in out and "b: 10 rows nearest" in out
    status, _, err = inspect(tmp_path, "--near", "w3", "--table", "a")
    assert status == 2 and "it points nowhere" in err


def test_texts():
    sizes = (0, 1023, 1536, 5 << 20, 3 << 30, 2 << 40, 4 << 50)
    assert [human_size(n) for n in sizes] == ["0 B", "1023 B", "1.5 KiB", "5.0 MiB", "3.0 GiB", "2.0 TiB", "4096.0 TiB"]
    assert bars([0, 1, 500, 1000], plain=False) == " ▁▄█" and bars([0, 1, 1000], plain=True) == " .#"
    assert [counted(n, 1000) for n in (0, 1000, 250, 999)] == ["-", "1,000 (100 %)", "250 (25 %)", "999"]
    assert ago("2020-01-01T00:00:00+00:00").endswith("days ago")
    assert "clock" in ago("2999-01-01T00:00:00+00:00")
    assert [branch.label for branch in grown(["a.b.c", "a.b.d", "a.b", "e", "f.g", "x.", "x"])] == [
        "a.b",
        "  (itself)",
        "  .c",
        "  .d",
        "e",
        "f.g",
        "x",
        "  (itself)",
        "  .",
    ]
