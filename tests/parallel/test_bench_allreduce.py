"""`hybridmpi bench allreduce`: which rows, what they count, what --explain and --plot give, and what is refused."""

import json
import re
import sys

import numpy as np
import pytest
from launching import run_mpi, run_process

from hybridmpi import kernels
from hybridmpi.bench import allreduce_plot
from hybridmpi.bench.allreduce import EXACT, whole_numbers
from hybridmpi.collectives.cost import Link, Network
from hybridmpi.errors import UsageError

QUICK = ["--repeats", "1", "--json"]
MESSAGES = {"naive", "recursive_doubling", "halving_doubling", "ring", "two_level"}


@pytest.fixture(autouse=True)
def _choices_of_its_own(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def bench(ranks, *arguments, program=("-m", "hybridmpi", "bench", "allreduce")):
    """Return (the JSON object, the rows by (name, bytes), all output) of a launch."""
    outcome = run_mpi(ranks, [*program, *arguments, *QUICK])
    assert outcome.code == 0, str(outcome)
    found = json.loads(outcome.output.splitlines()[-1])
    return found, {(row["name"], row["bytes"]): row for row in found["results"]}, outcome.output


@pytest.mark.mpi(ranks=[2, 3])
def test_rows_and_what_they_count(ranks):
    n = 4 * 6144
    found, rows, _ = bench(ranks, "--bytes", f"4,{n}")
    names = {"mpi", "auto", "shared", "copies"} | MESSAGES
    assert set(rows) == {(name, size) for name in names for size in (4, n)}
    assert found["params"]["auto"] == "shared" and found["params"]["wire"] == "float32"
    assert found["params"]["topology"] == f"{ranks} ranks on 1 node"
    for (name, size), row in rows.items():
        assert set(row["ratio"]) == {"auto": {"mpi", "copies"}, "mpi": set(), "copies": set()}.get(name, {"mpi"})
        assert ("bytes_by_level" in row) == (name not in ("mpi", "copies"))
        rate = size / row["median"] / 1e3
        assert row["GBps"]["algbw"] == pytest.approx(rate, rel=0.01)
        assert row["GBps"]["busbw"] == pytest.approx(rate * 2 * (ranks - 1) / ranks, rel=0.01)
    for name in ("auto", "shared", "ring", "two_level"):
        # 2 (p - 1) / p n of each rank.
        assert rows[name, n]["bytes_by_level"] == {"node": 2 * (ranks - 1) * n, "supernode": 0, "trunk": 0}
    assert rows["naive", n]["bytes_by_level"]["node"] == ranks * (ranks - 1) * n


@pytest.mark.mpi(ranks=[3])
def test_16_bits_on_the_wire_are_half_the_bytes(ranks):
    n = 4 * 6144
    _, rows, _ = bench(ranks, "--bytes", str(n), "--wire", "bfloat16", "--algorithms", "ring,halving_doubling")
    assert {name for name, _ in rows} == {"mpi", "ring", "halving_doubling", "copies"}
    assert rows["ring", n]["bytes_by_level"]["node"] == (ranks - 1) * n


# Four hosts of one rank each, dealt out badly: those of a supernode are not neighbours.
PRETENDED = """
import argparse, socket, sys
from hybridmpi.bench import allreduce
from hybridmpi.bench.measure import report
from hybridmpi.world import World, load_mpi

name = f"n{load_mpi().COMM_WORLD.Get_rank()}"
socket.gethostname = lambda: name
parser = argparse.ArgumentParser()
allreduce.add_arguments(parser)
parser.add_argument("--json", action="store_true")
options = parser.parse_args(sys.argv[1:])
with World(0, nodes_of_ranks=lambda rank: rank) as world:
    report(world, "allreduce", *allreduce.measure(world, options), options.json)
"""


@pytest.mark.mpi(ranks=[4])
def test_bytes_by_level_and_explanation_between_nodes(ranks):
    n = 4 * 4096
    arguments = ["--bytes", f"{n},{4 * n}", "--supernodes", "n[0,2]", "n[1,3]", "--explain"]
    found, rows, output = bench(ranks, *arguments, program=("-c", PRETENDED))
    assert found["params"]["topology"] == "4 ranks on 4 nodes in 2 supernodes (job file)"
    assert ("shared", n) not in rows and set(rows["auto", n]["ratio"]) == {"mpi"}
    # Of each rank near 2 (q - 1) / q n, across 2 (p - q) / (p q) n, with q = 2 of p = 4 (swCaffe, section V).
    assert rows["halving_doubling", n]["bytes_by_level"] == {"node": 0, "supernode": 4 * n, "trunk": 2 * n}
    # Of a ring's four hops two go across, with 2 (p - 1) / p n each.
    assert rows["ring", n]["bytes_by_level"] == {"node": 0, "supernode": 3 * n, "trunk": 3 * n}
    # Each chosen algorithm's row of a size is what auto sends.
    tables = explained(output)
    assert set(tables) == {n, 4 * n}
    for size, table in tables.items():
        assert set(table) == MESSAGES - {"naive"}
        (chosen,) = [name for name, (_, _, mark) in table.items() if mark]
        assert chosen in found["params"]["auto"].split(", ")
        assert rows["auto", size]["bytes_by_level"] == rows[chosen, size]["bytes_by_level"]
        assert all(predicted > 0 for predicted, _, _ in table.values())
    measured = [seconds for _, seconds, _ in tables[n].values()]
    assert sum(seconds is not None for seconds in measured) in (1, 2, 3)
    for link in ("link in a supernode", "link across the trunk", "additions"):
        assert re.search(rf"^  {link} .* GB/s$", output, re.MULTILINE), output
    assert "link in a node" not in output


def explained(output):
    """Return, by size and algorithm, (predicted us, measured us or None, whether it is chosen)."""
    tables, size = {}, None
    for line in output.splitlines():
        if found := re.fullmatch(r"\s+([\d,]+)?\s+([a-z_]+)\s+([\d.,e+-]+)\s+([\d.,e+]+|-)( *<- chosen)?", line):
            number, name, predicted, measured, mark = found.groups()
            size = int(number.replace(",", "")) if number else size
            seconds = None if measured == "-" else float(measured.replace(",", ""))
            tables.setdefault(size, {})[name] = (float(predicted.replace(",", "")), seconds, bool(mark))
    return tables


@pytest.mark.mpi(ranks=[2])
def test_explanation_on_one_node(ranks):
    found, _, output = bench(ranks, "--bytes", "4096", "--explain", "--algorithms", "auto")
    ((predicted, measured, chosen),) = explained(output)[4096].values()
    assert predicted > 0 and measured > 0 and chosen and found["params"]["auto"] == "shared"
    assert re.search(r"^  all-reduce in a node +latency .* us, .* GB/s$", output, re.MULTILINE)


def test_one_rank_has_nothing_to_explain_or_draw(tmp_path):
    command = [sys.executable, "-m", "hybridmpi", "bench", "allreduce", "--bytes", "64", "--repeats", "1"]
    outcome = run_process([*command, "--explain"], timeout=60)
    assert outcome.code == 0 and "1 rank on 1 node; nothing to choose" in outcome.output, str(outcome)
    outcome = run_process([*command, "--plot", str(tmp_path / "a.png")], timeout=60)
    assert outcome.failed_with(2) and "two ranks or more" in outcome.output, str(outcome)


@pytest.mark.any_mpi
@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--algorithms", "ring,pigeon"], "--algorithms pigeon: expected all or some of mpi, auto, shared, naive"),
        (["--algorithms", ""], "expected all or some of"),
        (["--wire", "int8"], "invalid choice: 'int8'"),
        (["--bytes", "4k"], "whole numbers from 1 up"),
        (["--supernodes", "nowhere"], "is in none of the lists"),
    ],
)
def test_wrong_arguments(arguments, text):
    outcome = run_process([sys.executable, "-m", "hybridmpi", "bench", "allreduce", *arguments], timeout=60)
    assert outcome.failed_with(2) and text in outcome.output, str(outcome)


@pytest.mark.mpi(ranks=[3])
def test_shared_memory_ends_at_the_node(ranks):
    outcome = run_mpi(ranks, ["-c", PRETENDED, "--algorithms", "shared"])
    assert outcome.failed_with(2) and "--algorithms shared: these ranks are on 3 nodes" in outcome.output, str(outcome)


# -- the numbers that are summed ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("wire", EXACT)
@pytest.mark.parametrize("ranks", [1, 2, 3, 5, 16, 100])
def test_whole_numbers_are_exact_in_their_wire(wire, ranks):
    found = [whole_numbers(5000, ranks, rank, wire) for rank in range(ranks)]
    total = np.zeros(5000, np.float32)
    for mine, expected in found:
        total += mine
        assert (np.diff(mine) != 0).all() and mine.min() >= 0
        assert np.array_equal(expected, found[0][1]) and mine.dtype == expected.dtype == np.float32
        if wire != "float32":
            narrow, wide = np.empty(5000, np.uint16), np.empty(5000, np.float32)
            getattr(kernels, f"to_{wire}")(total, narrow)
            getattr(kernels, f"from_{wire}")(narrow, wide)
            assert np.array_equal(wide, total)
    assert np.array_equal(total, found[0][1])
    assert ranks == 1 or not np.array_equal(found[0][0], found[1][0])


def test_too_many_ranks_for_a_wire_are_refused():
    whole_numbers(10, 128, 0, "bfloat16")
    with pytest.raises(UsageError, match="129 ranks .* 128 ranks at most"):
        whole_numbers(10, 129, 0, "bfloat16")


# -- the picture -------------------------------------------------------------------------------------------------------

WITHOUT_MATPLOTLIB = """
import sys
sys.modules["matplotlib"] = None
from hybridmpi.cli.main import main
sys.exit(main(["bench", "allreduce", *sys.argv[1:]]))
"""


@pytest.mark.mpi(ranks=[2])
def test_a_plot_that_cannot_be_drawn_is_refused_before_anything_is_measured(ranks, tmp_path):
    for file, text in (
        (tmp_path / "a.png", "pip install matplotlib"),
        (tmp_path / "a.txt", "ends in .png, .svg, .pdf"),
        (tmp_path / "no" / "a.png", "there is no folder"),
    ):
        outcome = run_mpi(ranks, ["-c", WITHOUT_MATPLOTLIB, "--bytes", "64", "--plot", str(file)])
        assert outcome.failed_with(2) and text in outcome.output, str(outcome)
        assert "calibration" not in outcome.output and not file.exists()


@pytest.mark.mpi(ranks=[2])
def test_a_picture_of_a_run(ranks, tmp_path):
    pytest.importorskip("matplotlib")
    file = tmp_path / "busbw.png"
    bench(ranks, "--bytes", "64,4096", "--algorithms", "auto,ring", "--plot", str(file))
    assert file.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"


def made_up(names):
    return [{"name": name, "bytes": 4**k, "GBps": {"busbw": k}} for name in names for k in (10, 3, 1)]


def machine(nodes):
    return {"compute_ranks": 4, "nodes": nodes, "cores": 8, "processor": "x86_64", "mpi": "Some MPI 1.0"}


def test_a_picture_names_lines_limits_and_machine(tmp_path):
    pytest.importorskip("matplotlib").rcParams["svg.fonttype"] = "none"
    file = tmp_path / "busbw.svg"
    rows = made_up(["mpi", "auto", "ring", "copies"])
    allreduce_plot.draw(file, rows, machine(1), None, 4)
    text = file.read_text()
    assert all(
        f">{word}<" in text for word in ("mpi", "auto", "ring", "memory limit (copies)", "1 MiB", "Some MPI 1.0")
    )
    assert "4 ranks on 1 node, 8 cores (x86_64)" in text and "link, " not in text

    links = {"supernode": Link(1e-6, 1e-9), "trunk": Link(1e-6, 8e-9)}
    allreduce_plot.draw(file, rows, machine(2), Network([(0, 0), (1, 1)], links, 1e-10), 4)
    text = file.read_text()
    # A byte takes 1 ns, near, and a node has four lanes.
    assert "link, supernode: 4 GB/s" in text and "link, trunk: 0.5 GB/s" in text and "copies" not in text

    (tmp_path / "folder.svg").mkdir()
    with pytest.raises(UsageError, match="cannot be written"):
        allreduce_plot.draw(tmp_path / "folder.svg", rows, machine(1), None, 1)
