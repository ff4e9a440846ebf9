"""`hybridmpi bench dynamic` on trees of a file: options, what it refuses, and that a wrong gradient is no figure."""

import json
import sys

import pytest
from launching import run_mpi, run_process

pytestmark = pytest.mark.any_mpi
TREES = ["(3 (2 It) (4 (2 works) (2 well)))", "(1 (2 It) (1 fails))", "(2 nothing)", "(0 (1 (0 no) (2 It)) (1 fails))"]
SMALL = ["--batch", "1", "16", "--width", "6", "--hidden", "5", "--repeats", "2"]


@pytest.fixture
def data(tmp_path):
    file = tmp_path / "trees.txt"
    file.write_text("\n".join(TREES * 128), encoding="utf-8")
    return ["--data", str(file)]


def command(*arguments):
    return [sys.executable, "-m", "hybridmpi", "bench", "dynamic", *arguments]


def result_of(outcome):
    assert outcome.code == 0, str(outcome)
    return json.loads(outcome.output.splitlines()[-1])


def test_every_way_of_batching(data):
    off = ["--no-eager", "--no-lazy", "--no-fusion"]
    outcome = run_process(command(*data, *SMALL, *off, "--cell", "sum", "--report", "--json"), timeout=120)
    found = result_of(outcome)
    assert found["params"]["without"] == "eager, lazy, fusion" and found["params"]["cell"] == "sum"
    assert found["machine"]["blas_threads"] == found["params"]["threads"] == 1
    assert [(row["n"], row["unit"]) for row in found["results"]] == [
        (batch, unit) for batch in (1, 16) for unit in ("trees/s", "% of a step")
    ]
    # 512 trees, 16 at a time.
    assert "batch 16, a repetition on rank 0:\n32 passes" in outcome.output and "sigmoid" in outcome.output


@pytest.mark.mpi(ranks=[3])
def test_trees_are_dealt_to_ranks(ranks, data):
    found = result_of(run_mpi(ranks, ["-m", "hybridmpi", "bench", "dynamic", *data, *SMALL, "--json"]))
    assert found["machine"]["compute_ranks"] == 2 and found["machine"]["servers"] == 1
    alone = result_of(run_process(command(*data, *SMALL, "--json"), timeout=120))
    for ours, theirs in zip(found["results"], alone["results"], strict=True):
        if "loss" in ours:  # the same trees in the same steps
            assert ours["loss"] == pytest.approx(theirs["loss"], rel=1e-4)


def test_trees_that_every_machine_has(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert result_of(run_process(command(*SMALL, "--json"), timeout=120))["params"]["data"] == "stdlib"


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--data", "/nowhere/trees"], "no such file"),
        (["--model", "tree-fc", "--threads", "1000"], "--threads 1000: BLAS has"),
    ],
)
def test_what_it_refuses(arguments, text):
    outcome = run_process(command(*arguments), timeout=60)
    assert outcome.failed_with(2) and text in outcome.output, str(outcome)


def test_too_few_trees(tmp_path):
    file = tmp_path / "trees.txt"
    file.write_text("\n".join(TREES), encoding="utf-8")
    outcome = run_process(command("--data", str(file)), timeout=60)
    assert outcome.failed_with(2) and "has 4 trees; batches of 1 are timed on 128" in outcome.output, str(outcome)


BROKEN = """
import sys
from hybridmpi.cli.main import main
from hybridmpi.dynamic.run import Run

def spoil(self, gradients):
    right(self, {name: gradient * 1.01 for name, gradient in gradients.items()})

right, Run.backward = Run.backward, spoil
sys.exit(main(sys.argv[1:]))
"""


def test_a_wrong_gradient_is_an_error_and_no_row(data):
    outcome = run_process([sys.executable, "-c", BROKEN, "bench", "dynamic", *data, *SMALL, "--json"], timeout=60)
    assert outcome.failed_with(1) and "nothing is reported" in outcome.output, str(outcome)
    assert '"results"' not in outcome.output
