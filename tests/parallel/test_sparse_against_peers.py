"""benchmarks/sparse_against_peers.py: the arithmetic on made-up runs."""

import sys

import pytest
from launching import ROOT

sys.path.insert(0, str(ROOT / "benchmarks"))

import sparse_against_peers as comparison  # noqa: E402

pytestmark = pytest.mark.any_mpi


def ours(name, median, **ratio):
    return {"name": name, "median": median, "min": median - 1, "max": median + 1, "ratio": ratio}


def made_up():
    """Two rounds; in the second all programs are slow, and the peers' second variant wins only there."""
    runs = {"push": [], "push, peer": [], "aggregate": [], "aggregate, peer": []}
    for slow, second in ((1, 10), (2, 44)):
        machine = {"load_average": [slow, 0, 0], "cores": 2}
        results = [ours("step shared", 120 / slow), ours("pull shared", 9, gather=0.5 * slow)]
        runs["push"].append({"machine": machine, "results": results})
        peers = [
            {"params": {"update": "rows", "local_sum": local}, "median": median, "min": 1, "max": 99}
            for local, median in ((False, 30 / slow), (True, second / slow))
        ]
        runs["push, peer"].append({"version": "torch 2", "results": peers})
        runs["aggregate"].append({"results": [ours("hybridmpi, dim 64", 20), ours("hybridmpi, dim 512", 24)]})
        peers = [
            {"peer": peer, "params": {"width": width}, "median": 20, "min": 1, "max": 99}
            for width in (64, 512)
            for peer in ("torch_coalesce",)
        ]
        runs["aggregate, peer"].append({"results": peers})
    return runs


def test_the_best_variant_over_all_rounds_and_ratios_within_them():
    found = comparison.summarise(made_up())
    push = found["tables"]["push"]
    assert push["best"] == "torch rows" and push["ratio_by_round"] == [4.0, 4.0] and push["ratio"] == 4
    assert push["rows"]["hybridmpi"] == {"median": 90, "min": 59, "max": 121}
    assert set(push["rows"]) == {"hybridmpi", "torch rows", "torch rows, sums before"}
    assert found["pull_of_gather"] == {"median": 0.75, "by_round": [0.5, 1.0]}
    assert found["missed"] == ["aggregate, dim 512"]
    text = comparison.as_text(found)
    assert "4.00 x torch rows (4.00, 4.00)" in text and "targets missed: aggregate, dim 512 below 1.3" in text
