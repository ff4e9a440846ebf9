"""`hybridmpi bench` at tiny sizes: it ends, its last line is one JSON object, and a wrong result is an error."""

import importlib.util
import json
import sys

import pytest
from launching import ROOT, run_mpi, run_process

from hybridmpi.bench.measure import numbers
from hybridmpi.cli.main import main
from hybridmpi.errors import UsageError
from hybridmpi.sparse.wire import HEADER_BYTES, PIECE_BYTES

TINY = {
    "allreduce": ["--bytes", "4,4096", "--repeats", "2"],
    "sparse": ["--rows", "50", "--dim", "3", "--table", "400", "--repeats", "2"],
    "aggregate": ["--rows", "500", "--dim", "1,7", "--table", "300", "--repeats", "2"],
    "lm": [
        *("--vocab", "500", "--width", "8", "--hidden", "16", "--samples", "32", "--batch", "16", "--steps", "10"),
        *("--repeats", "2", "--steps-per-repeat", "40"),
    ],
    "checkpoint": ["--mb", "1", "--repeats", "2"],
    "dynamic": ["--model", "tree-fc", "--batch", "1", "8", "--leaves", "8", "--hidden", "16", "--repeats", "2"],
}
NAMES = {
    "allreduce": {
        *("mpi", "auto", "shared", "copies"),
        *("naive", "recursive_doubling", "halving_doubling", "ring", "two_level"),
    },
    "sparse": {f"{kind} {path}" for kind in ("pull", "push", "step") for path in ("shared", "message", "get")}
    | {"gather"},
    "aggregate": {f"{way}, dim {dim}" for way in ("hybridmpi", "numpy add.at", "numpy reduceat") for dim in (1, 7)},
    "lm": {"words"},
    "checkpoint": {"plain write, fsync", "checkpoint at once", "copy in memory", "behind: training stops"},
    "dynamic": {f"{what}, batch {batch}" for what in ("vertex", "scheduling") for batch in (1, 8)},
}


@pytest.fixture(autouse=True)
def _choices_of_its_own(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def result_of(outcome, name):
    """Return the JSON object of a run, whose form DESIGN.md fixes."""
    assert outcome.code == 0, str(outcome)
    found = json.loads(outcome.output.splitlines()[-1])
    assert found["bench"] == name and found["validated"] is True and found["params"] and found["machine"]
    assert NAMES[name] <= {row["name"] for row in found["results"]}
    for row in found["results"]:
        assert 0 < row["min"] <= row["median"] <= row["max"] and row["repeats"] >= 2 and row["unit"]
        assert row.get("bytes", row.get("n", 0)) > 0
        assert all(ratio > 0 for ratio in row.get("ratio", {}).values())
    return found


@pytest.mark.mpi(ranks=[2, 3])
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in ("allreduce", "sparse") else pytest.mark.any_mpi) for name in TINY]
)
def test_last_line_is_a_validated_result(ranks, name):
    # Open MPI may pass a rank's stderr on at any time: only stdout counts.
    found = result_of(run_mpi(ranks, ["-m", "hybridmpi", "bench", name, *TINY[name], "--json"]), name)
    servers = 1 if name in ("sparse", "lm", "checkpoint", "dynamic") else 0
    assert found["machine"]["servers"] == servers and found["machine"]["compute_ranks"] == ranks - servers
    if name == "lm":
        check_time_and_bytes_of_a_step(found["results"][0], ranks - 1)


def check_time_and_bytes_of_a_step(row, compute):
    sent, phases = row["bytes_per_step"], row["phases_ms"]
    # Each parameter starts at a multiple of 16 elements: bias 64, projection 8 x 16, weight_h and weight_x 64 x 8.
    dense = 4 * (64 + 128 + 512 + 512)
    assert sent["allreduce"] == 2 * (compute - 1) * dense // compute
    # One server, in shared memory: rows are pulled without asking, and all that is pulled gets a gradient.
    assert sent["pull_ids"] == 0 and sent["pull_rows"] == sent["push_rows"] > 0 and sent["push_ids"] > 0
    assert sent["control"] == HEADER_BYTES + 3 * PIECE_BYTES
    assert row["n"] == compute * 16 * 10
    assert {"pull", "forward", "backward", "wait", "push", "allreduce", "update", "server busy"} <= set(phases)
    assert min(phases.values()) > -1e-3 and phases["forward"] > 0 and phases["server busy"] > 0


@pytest.mark.any_mpi
@pytest.mark.parametrize("name", ["aggregate", "lm"])
def test_a_single_process_needs_no_mpirun(name):
    outcome = run_process([sys.executable, "-m", "hybridmpi", "bench", name, *TINY[name], "--json"], timeout=120)
    assert result_of(outcome, name)["machine"]["compute_ranks"] == 1


@pytest.mark.mpi(ranks=[3])
def test_rows_on_the_compute_ranks(ranks):
    program = ["-m", "hybridmpi", "bench", "sparse", *TINY["sparse"], "--servers", "0", "--json"]
    found = result_of(run_mpi(ranks, program), "sparse")
    assert found["machine"]["servers"] == 0 and found["machine"]["compute_ranks"] == ranks


@pytest.mark.any_mpi
@pytest.mark.mpi(ranks=[3])
def test_rows_drawn_as_the_peer_draws_them(ranks):
    program = ["-m", "hybridmpi", "bench", "sparse", *TINY["sparse"], "--zipf", "1.1", "--json"]
    found = result_of(run_mpi(ranks, program), "sparse")
    assert found["params"]["zipf"] == 1.1 and 2 * 10 < found["params"]["distinct"] < 2 * 50
    assert all("gather" in row["ratio"] for row in found["results"] if row["name"].startswith("pull"))


BROKEN = """
import sys
from hybridmpi import collectives, kernels
from hybridmpi.cli.main import main
from hybridmpi.optim import Adagrad

def spoil_ring(group, buffer, wire):
    buffer += 1
    yield from ()

def spoil_aggregate(ids, values, rows, scale=None):
    unique, sums = right(ids, values, rows, scale)
    return unique, sums * 1.001

def spoil_adagrad(self, table, state, positions, gradients, step):
    table[positions] -= 0.01 * gradients

right = kernels.aggregate
collectives.ALGORITHMS["ring"] = spoil_ring
kernels.aggregate = spoil_aggregate
Adagrad.update_rows = spoil_adagrad
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.any_mpi
@pytest.mark.parametrize("name", ["allreduce", "aggregate", "sparse"])
def test_a_wrong_result_is_an_error_and_no_row(name):
    outcome = run_process([sys.executable, "-c", BROKEN, "bench", name, *TINY[name], "--json"], timeout=120)
    assert outcome.failed_with(1) and "nothing is reported" in outcome.output, str(outcome)
    assert '"results"' not in outcome.output


BROKEN_PUSH = """
import sys
import numpy as np
from hybridmpi.cli.main import main
from hybridmpi.sparse.client import Client

def push(self, gradients, weight):
    right(self, [(t, ids, values * np.float32(1 + self.world.rank)) for t, ids, values in gradients], weight)

right, Client.push = Client.push, push
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.any_mpi
@pytest.mark.mpi(ranks=[3])
def test_a_model_that_ends_elsewhere_than_one_process_is_an_error(ranks):
    outcome = run_mpi(ranks, ["-c", BROKEN_PUSH, "bench", "lm", *TINY["lm"], "--json"])
    assert outcome.failed_with(1) and "does not end where one process ends" in outcome.output, str(outcome)
    assert '"results"' not in outcome.output


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["lm", "--vocab", "0"], "whole number from 1 up"),
        (["lm", "--servers", "some"], "number of servers"),
        (["aggregate", "--rows", "many"], "whole number from 1 up"),
        (["speed"], "invalid choice"),
    ],
)
def test_wrong_arguments(arguments, text, capsys):
    with pytest.raises(SystemExit) as ended:
        main(["bench", *arguments])
    assert ended.value.code == 2 and text in capsys.readouterr().err


@pytest.mark.parametrize("text", ["", "0", "4k", "8,-8", "8,,8"])
def test_wrong_lists_of_numbers(text):
    with pytest.raises(UsageError, match="whole numbers from 1 up"):
        numbers(text)


@pytest.mark.any_mpi
@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--rows", "500", "--table", "400"], "only 400 rows"),
        (["--paths", "pigeon"], "shared, message, get"),
        (["--zipf", "-1"], "expected a number, at least 0"),
    ],
)
def test_impossible_sparse_benchmarks(arguments, text):
    outcome = run_process([sys.executable, "-m", "hybridmpi", "bench", "sparse", *arguments], timeout=60)
    assert outcome.failed_with(2) and text in outcome.output, str(outcome)


def test_comparison_with_torch_finds_the_best_variant_and_its_ratio(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    where = importlib.util.spec_from_file_location("lm_against_torch", ROOT / "benchmarks" / "lm_against_torch.py")
    program = importlib.util.module_from_spec(where)
    where.loader.exec_module(program)

    def peer(median):
        return {"median": median, "min": median - 1, "max": median + 1, "version": "torch 2"}

    def ours(median):
        result = peer(median) | {"phases_ms": {"forward": median / 10}, "bytes_per_step": {"allreduce": 8}}
        machine = {"load_average": [0.5], "cores": 2}
        return {"params": {}, "machine": machine, "results": [result]}

    rates = {"torch dense": (1, 9, 2), "torch sparse": (10, 20, 40), "torch allgather": (30, 10, 11)}
    runs = {"hybridmpi": [ours(40), ours(60), ours(100)]} | {n: [peer(m) for m in r] for n, r in rates.items()}
    found = program.summarise(runs)
    first = found["results"][0]
    assert found["best"] == "torch sparse" and first["ratio"] == {"torch sparse": 3.0}
    assert first["ratio_by_round"] == [4.0, 3.0, 2.5] and (first["min"], first["median"], first["max"]) == (39, 60, 101)
    assert found["phases_ms"] == {"forward": 6.0}
    assert "3.00 (4.00, 3.00, 2.50)" in program.as_table(found)
