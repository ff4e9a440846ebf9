"""`hybridmpi bench overlap` at small sizes: what it reports, and that it refuses a sum that overlap changes."""

import json
import sys

import pytest
from launching import run_mpi, run_process

from hybridmpi.cli.main import main

pytestmark = pytest.mark.any_mpi
WIDTH = 32
SMALL = [
    *("--width", str(WIDTH), "--batch", "8", "--vocab", "1024", "--repeats", "2", "--steps-per-repeat", "4"),
    *("--bucket-mib", "0.002,1", "--first-bucket-mib", "0.001"),
]
COMMAND = ["-m", "hybridmpi", "bench", "overlap", *SMALL, "--json"]


def result_of(outcome):
    assert outcome.code == 0, str(outcome)
    found = json.loads(outcome.output.splitlines()[-1])
    assert found["bench"] == "overlap" and found["validated"] is True
    return found, {row["name"]: row for row in found["results"]}


@pytest.mark.mpi(ranks=[2, 3])
def test_both_models_with_two_sizes_of_buckets(ranks):
    found, rows = result_of(run_mpi(ranks, COMMAND))
    assert found["machine"]["servers"] == 0 and found["machine"]["compute_ranks"] == ranks
    expected = [
        f"{m} 0.001+{size} MiB {how}" for m in ("mlp", "lm") for size in (0.002, 1) for how in ("overlap", "no overlap")
    ]
    assert list(rows) == expected
    for name, row in rows.items():
        phases = row["phases_ms"]
        assert 0 < row["min"] <= row["median"] <= row["max"] and row["unit"] == "ms" and row["repeats"] == 2
        assert phases["exposed"] > 0 and phases["forward"] > 0 and phases["backward"] > 0
        if name.endswith("no overlap"):
            assert phases["hidden"] == 0
        else:
            assert row["ratio"]["no overlap"] > 0 and phases["in backward"] > 0
            assert all(share > 0 for share in row["exposed"].values())
            assert phases["hidden"] <= phases["backward"] + phases["in backward"]
    # A weight and a bias for each layer, which fill a bucket of the first limit and of the small one; with the large
    # one all other layers share a bucket.
    mlp = [rows[f"mlp 0.001+{size} MiB overlap"] for size in (0.002, 1)]
    assert [row["bytes"] for row in mlp] == [8 * (WIDTH * WIDTH + WIDTH) * 4] * 2
    layer = 4 * (WIDTH * WIDTH + WIDTH)
    assert [row["buckets"] for row in mlp] == [{"number": 8, "first": layer}, {"number": 2, "first": layer}]


@pytest.mark.mpi(ranks=[3])
def test_tables_on_a_server(ranks):
    found, rows = result_of(run_mpi(ranks, [*COMMAND, "--model", "lm", "--servers", "per-node"]))
    assert found["machine"]["servers"] == 1 and found["machine"]["compute_ranks"] == ranks - 1
    assert {name.split()[0] for name in rows} == {"lm"}


def test_one_process_has_nothing_to_sum():
    outcome = run_process([sys.executable, *COMMAND], timeout=60)
    assert outcome.failed_with(2) and "hybridmpi launch -n 2 -- bench overlap" in outcome.output, str(outcome)


BROKEN = """
import sys
from hybridmpi.cli.main import main
from hybridmpi.training.dense import DenseExchange

def written(self, parameter):
    right(self, parameter)
    self.buckets[0].gradients *= 1.001  # while others may read it

right, DenseExchange._written = DenseExchange._written, written
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.mpi(ranks=[2])
def test_sums_that_overlap_changes_are_an_error_and_no_row(ranks):
    outcome = run_mpi(ranks, ["-c", BROKEN, *COMMAND[2:], "--model", "mlp"])
    assert outcome.failed_with(1) and "with overlap other dense parameters than without it" in outcome.output, str(
        outcome
    )
    assert '"results"' not in outcome.output


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--model", "gru"], "invalid choice"),
        (["--bucket-mib", "0"], "list of sizes in MiB"),
        (["--bucket-mib", "4,,8"], "list of sizes in MiB"),
        (["--first-bucket-mib", "inf"], "list of sizes in MiB"),
        (["--width", "8"], "whole number from 16 up"),
    ],
)
def test_wrong_arguments(arguments, text, capsys):
    with pytest.raises(SystemExit) as ended:
        main(["bench", "overlap", *arguments])
    assert ended.value.code == 2 and text in capsys.readouterr().err


@pytest.mark.mpi(ranks=[2])
def test_lists_of_different_lengths(ranks):
    arguments = ["-m", "hybridmpi", "bench", "overlap", "--bucket-mib", "1,2,3", "--first-bucket-mib", "1,2"]
    outcome = run_mpi(ranks, arguments)
    assert outcome.failed_with(2) and "--first-bucket-mib has 2 sizes and --bucket-mib 3" in outcome.output, str(
        outcome
    )
