"""benchmarks/allreduce_against_peers.py: the arithmetic on made-up launches, one real launch, nothing left behind."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest
from launching import ROOT, processes_of, run_process

sys.path.insert(0, str(ROOT / "benchmarks"))

import allreduce_against_peers as comparison  # noqa: E402
import programs  # noqa: E402

pytestmark = pytest.mark.any_mpi
MIB = 1 << 20
PROGRAM = str(ROOT / "benchmarks" / "allreduce_against_peers.py")


def launch(load=1.0, **medians):
    """Return what `hybridmpi bench allreduce --json` prints; medians: name=[us by size]."""
    machine = {"processor": "x86_64", "cores": 2, "mpi": "MPICH Version:      5.0.2", "load_average": [load, 0, 0]}
    machine |= {"python": "3.11", "numpy": "2", "numba": "0.68", "blas_threads": 1, "host": "h", "compute_ranks": 2}
    rows = [
        {"name": name, "bytes": size, "median": median, "unit": "us"}
        for name, found in medians.items()
        for size, median in zip((4, 64 * MIB), found, strict=False)
    ]
    return {"machine": machine, "results": rows}


def gloo(*medians):
    """Return what peers/allreduce_gloo.py prints."""
    rows = zip((4, 64 * MIB), medians, strict=True)
    return {
        "version": "torch 2.13.0",
        "results": [{"params": {"bytes": size}, "median": median, "unit": "us"} for size, median in rows],
    }


def made_up(ranks=2):
    # The second launch is three times as slow as a whole, the third lets MPI win at 4 bytes.
    ours = [
        launch(1.5, auto=[2, 100], mpi=[4, 140], copies=[1, 60], ring=[9, 9]),
        launch(2.5, auto=[6, 300], mpi=[9, 450], copies=[3, 240]),
        launch(1.0, auto=[4, 100], mpi=[2, 140], copies=[1, 65]),
    ]
    theirs = [gloo(8, 150), gloo(4, 190), gloo(30, 900)]
    return {("hybridmpi", ranks): ours, ("gloo", ranks): theirs}


def test_ratios_are_taken_within_launches_and_times_over_them():
    found = comparison.summarise(made_up(), [4, 64 * MIB])
    (table,) = found["tables"]
    small, large = table["rows"]
    assert (table["mpi"], table["ranks"], table["launches"]) == ("MPICH 5.0.2", 2, 3)
    assert table["load_average_by_launch"] == [1.5, 2.5, 1.0]
    assert small["us"] == {"auto": 4, "mpi": 4, "copies": 1, "gloo": 8}
    assert small["ratio"]["MPI"] == {"median": 1.5, "min": 0.5, "max": 2.0}
    assert small["ratio"]["gloo"] == {"median": 2.0} and small["missed"] == []
    assert large["us"] == {"auto": 100, "mpi": 140, "copies": 65, "gloo": 190}
    assert large["ratio"]["MPI"] == {"median": 1.4, "min": 1.4, "max": 1.5}
    assert large["ratio"]["limit"] == {"median": 0.65, "min": 0.6, "max": 0.8}
    assert large["missed"] == ["below 0.7 of the limit", "below 1.5 x MPI", "below 2 x gloo"]
    assert found["machine"]["torch"] == "torch 2.13.0" and len(found["launches"]) == 2


def test_tables_show_what_was_measured_and_no_more():
    found = comparison.summarise(made_up(), [4, 64 * MIB])
    plain, markdown = comparison.as_text(found), comparison.as_text(found, markdown=True)
    assert "MPICH 5.0.2, 2 ranks (3 launches, load average 1 to 2.5)\n" in plain and "targets missed: 3" in plain
    assert "| bytes | auto, us | MPI, us | x MPI (by launch) | x gloo | of the limit | target |\n|---|" in markdown
    assert "| 4 | 4.0 | 4.0 | 1.50 (0.50 to 2.00) | 2.00 | 0.50 |  |" in markdown
    assert (
        "| 64 MiB | 100 | 140 | 1.40 (1.40 to 1.50) | 1.90 | 0.65 | missed: below 0.7 of the limit, below" in markdown
    )

    alone = {("hybridmpi", 2): [launch(auto=[2, 10], mpi=[2, 30])]}
    text = comparison.as_text(comparison.summarise(alone, [4, 64 * MIB]))
    assert "gloo" not in text and "limit" not in text and "torch" not in text and "targets missed: none" in text


@pytest.mark.parametrize(
    ("size", "ranks", "ratios", "words"),
    [
        (4, 2, {"MPI": 0.95, "gloo": 0.1, "limit": 0.1}, []),
        (4, 3, {"MPI": 0.949}, ["below 0.95 x MPI"]),
        (4 * MIB, 4, {"MPI": 0.5}, ["below 1.2 x MPI"]),
        (64 * MIB, 2, {"MPI": 1.5, "gloo": 2, "limit": 0.7}, []),
        (64 * MIB, 2, {"MPI": 1.5, "limit": 0.69}, ["below 0.7 of the limit"]),
        (64 * MIB, 4, {"MPI": 1.5, "limit": 0.1}, []),
        (MIB, 4, {"MPI": 1, "gloo": 1.99}, ["below 2 x gloo"]),
        (MIB // 4, 4, {"MPI": 1, "gloo": 1}, []),
    ],
)
def test_targets(size, ranks, ratios, words):
    assert comparison.missed(size, ranks, ratios) == words


def test_a_launch_without_a_row_is_an_error():
    with pytest.raises(SystemExit, match="no time of 'mpi' at 4 bytes"):
        comparison.summarise({("hybridmpi", 2): [launch(auto=[2])]}, [4])


@pytest.mark.mpi(ranks=[2])
def test_a_real_launch(ranks, tmp_path):
    argv = [sys.executable, PROGRAM, "--ranks", str(ranks), "--launches", "1", "--bytes", "4096,4"]
    outcome = run_process([*argv, "--json", str(tmp_path / "all.json")], timeout=120)
    assert outcome.code == 0 and not outcome.left, str(outcome)
    found = json.loads((tmp_path / "all.json").read_text())
    (table,), (launched,) = found["tables"], found["launches"]
    assert found["validated"] and found["machine"]["cores"] and table["ranks"] == ranks
    assert [row["bytes"] for row in table["rows"]] == [4, 4096]
    printed = {(row["name"], row["bytes"]): row["median"] for row in launched["printed"][0]["results"]}
    for row in table["rows"]:
        ours, theirs = printed["auto", row["bytes"]], printed["mpi", row["bytes"]]
        assert row["us"]["auto"] == ours > 0 and row["us"]["mpi"] == theirs > 0
        assert row["ratio"]["MPI"]["median"] == pytest.approx(theirs / ours, rel=1e-3)
        assert f"{theirs / ours:.2f} (" in outcome.output or theirs / ours >= 10, str(outcome)


def test_a_failing_program_ends_all_with_what_it_last_said(tmp_path):
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\nseq 100 >&2\necho no such module >&2\nexit 3\n")
    python.chmod(0o755)
    argv = [sys.executable, PROGRAM, "--python", str(python), "--json", str(tmp_path / "all.json")]
    outcome = run_process(argv, timeout=60)
    assert (
        outcome.code == 1 and "launch 1 of 5: hybridmpi, 2 ranks: exit status 3; nothing is reported" in outcome.output
    )
    assert outcome.output.endswith("\n99\n100\nno such module\n") and "\n50\n" not in outcome.output
    assert not (tmp_path / "all.json").exists()


@pytest.mark.parametrize(
    ("program", "text"),
    [("print('fine')", "expected a JSON object on the last line"), ("pass", "expected a JSON object")],
)
def test_a_program_without_a_result_is_an_error(program, text):
    with pytest.raises(SystemExit, match=text):
        programs.run("it", [sys.executable, "-c", program], 60)


def test_a_program_that_cannot_start_is_an_error():
    with pytest.raises(SystemExit, match="cannot start /no/python: No such file"):
        programs.run("it", ["/no/python"], 60)


HANGS = """
import subprocess, sys, time
print("about to hang", file=sys.stderr, flush=True)
subprocess.run([sys.executable, "-c", "import time; time.sleep(600)"])
"""
RUNS = (
    "import sys; sys.path.insert(0, sys.argv[1]); import programs; programs.run('it', sys.argv[3:], float(sys.argv[2]))"
)


def run_hanging(seconds, argv):
    """Start a process, in a session of its own, that runs a program by programs.run."""
    program = [sys.executable, "-c", RUNS, str(ROOT / "benchmarks"), str(seconds), *argv]
    return subprocess.Popen(program, stderr=subprocess.PIPE, text=True, start_new_session=True)


def test_a_program_that_hangs_is_killed_with_its_children():
    outcome = run_process([sys.executable, "-c", RUNS, str(ROOT / "benchmarks"), "1", sys.executable, "-c", HANGS], 60)
    assert outcome.code == 1 and not outcome.left, str(outcome)
    assert "it: no end after 1 s; nothing is reported. It last said:\nabout to hang" in outcome.output


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_comparison_that_is_stopped_leaves_nothing(number):
    process = run_hanging(60, [sys.executable, "-c", HANGS])
    wait_until(lambda: len(processes_of(process.pid)) == 3)
    process.send_signal(number)
    assert process.wait(10)
    wait_until(lambda: not processes_of(process.pid))


@pytest.mark.mpi(ranks=[2])
def test_ranks_that_hang_are_killed_with_their_launcher(ranks, tmp_path):
    hang = f"import os, pathlib, time; pathlib.Path({str(tmp_path)!r}, str(os.getpid())).touch(); time.sleep(600)"
    ranked = [sys.executable, "-m", "hybridmpi", "launch", "-n", str(ranks), "--", "python", "-c", hang]
    process = run_hanging(600, ranked)
    wait_until(lambda: len(list(tmp_path.iterdir())) == ranks)
    pids = [int(path.name) for path in tmp_path.iterdir()]
    assert all(map(runs, pids))
    process.send_signal(signal.SIGTERM)
    assert process.wait(10) == 128 + signal.SIGTERM
    wait_until(lambda: not any(map(runs, pids)))


def runs(process):
    """Return whether a process runs; MPICH's ranks have sessions of their own."""
    try:
        with open(f"/proc/{process}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def wait_until(holds, seconds=30):
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--bytes", "6"], "multiples of 4"),
        (["--bytes", "4k"], "whole numbers from 1 up"),
        (["--ranks", "0"], "whole numbers from 1 up"),
        (["--launches", "0"], "at least 1"),
        (["--json", "/no/such/folder/file"], "no such folder"),
    ],
)
def test_wrong_arguments(arguments, text, capsys):
    with pytest.raises(SystemExit) as ended:
        comparison.main(arguments)
    assert ended.value.code == 2 and text in capsys.readouterr().err


def test_all_sizes_are_judged():
    assert comparison.SIZES[0] == 4 and comparison.SIZES[-1] == 256 * MIB and os.path.exists(comparison.GLOO)
    assert all(comparison.missed(size, 2, {"MPI": 0.9}) for size in comparison.SIZES)
