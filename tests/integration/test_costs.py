"""What a run costs beside its work: processor time of those who wait, memory of those who compute, time to start.

Figures of processor time come from the scheduler's books and hold on a busy machine. Wall times do not: that test takes
turns within one run, compares medians, tries again, and skips with its figures where others keep the cores busy.
"""

import json
import os
import re
import shutil
import sys
from pathlib import Path

import pytest
from launching import run_mpi, run_process
from runs import TIMEOUT, arguments, write_job

PROGRAM = str(Path(__file__).parent / "programs" / "costs.py")
GB = 1 << 30


def measure(name: str) -> dict:
    outcome = run_mpi(3, [PROGRAM, name], timeout=180)
    assert outcome.code == 0 and outcome.left == (), str(outcome)
    return json.loads(outcome.output.strip().splitlines()[-1])


def test_those_who_wait_use_little_of_a_core():
    """An idle server below 5 % of a core, and a compute rank that waits for a slow one too."""
    ranks = measure("idle")["ranks"]
    assert all(figures["server"] < 0.05 for figures in ranks), ranks
    sleeping, waiting = (figures["self"] for figures in ranks)
    assert sleeping < waiting < 0.05, ranks


def test_a_rank_that_waits_does_not_slow_the_one_that_works():
    """Forward and backward of the rank that the other waits for, against those while the other sleeps: within 10 %."""
    tries = []
    for _ in range(3):
        load, cores = os.getloadavg()[0], len(os.sched_getaffinity(0))
        working = measure("waiting")["ranks"][1]
        tries.append(working["waiting"] / working["asleep"])
        if tries[-1] < 1.10:
            return
    text = f"waiting / asleep = {', '.join(f'{ratio:.2f}' for ratio in tries)}"
    if load > cores / 2:
        pytest.skip(f"{text}: not judged, others keep this machine busy (load {load:.1f} on {cores} cores)")
    raise AssertionError(text)


def available_memory() -> int:
    (line,) = re.findall(r"MemAvailable:\s+(\d+) kB", Path("/proc/meminfo").read_text())
    return int(line) * 1024


def test_memory_of_a_compute_rank_does_not_grow_with_the_table():
    """A table of 1 GB, with as much optimiser state, on one server: compute ranks stay below 600 MB, the pages of the
    table that are mapped into them for reading included."""
    if available_memory() < 6 * GB:
        pytest.skip(f"{available_memory() / GB:.1f} GB of memory are available; expected 6")
    if shutil.disk_usage("/dev/shm").free < 2 * GB:
        pytest.skip(f"/dev/shm has {shutil.disk_usage('/dev/shm').free / GB:.1f} GB of room; expected 2")
    measured = measure("large-table")
    assert measured["server"]["VmHWM"] > 2 * measured["ranks"][0]["table"], "the server has held table and state"
    for rank in measured["ranks"]:
        before, largest = rank["before"], rank["largest"]
        assert rank["rows_touched"] > 50_000
        assert largest["VmHWM"] < 600, rank
        assert largest["RssAnon"] - before["RssAnon"] < 0.1 * rank["table"], rank


def test_import_is_quick_and_loads_nothing_heavy():
    """Below half a second with warm caches; the heavy packages come with what needs them."""
    code = "import hybridmpi, sys; print(*[n for n in ('numba', 'h5py', 'mpi4py', 'cupy') if n in sys.modules], 'end')"
    seconds = []
    for _ in range(3):
        outcome = run_process([sys.executable, "-X", "importtime", "-c", code], TIMEOUT)
        assert outcome.code == 0 and outcome.output.splitlines()[-1].split() == ["end"], str(outcome)
        (cumulated,) = re.findall(r"^import time:\s+\d+ \|\s+(\d+) \| hybridmpi$", outcome.output, re.MULTILINE)
        seconds.append(int(cumulated) / 1e6)
    assert min(seconds) < 0.5, seconds


def test_kernels_are_compiled_once(tmp_path):
    """numba's own report: what a first run compiled and saved, a second run loads, all of it."""
    job = write_job(tmp_path)
    command = [
        sys.executable,
        *arguments(job, "run", "training.steps=2", "training.evaluate=1", "model.softmax=sampled"),
    ]
    environment = {"NUMBA_DEBUG_CACHE": "1"}
    assert run_process(command, TIMEOUT, environment).code == 0
    second = run_process([*command, "--fresh"], TIMEOUT, environment)
    assert second.code == 0, str(second)
    assert second.output.count("[cache] data loaded from") >= 5, str(second)
    assert "[cache] data saved to" not in second.output and "[cache] index saved to" not in second.output, str(second)
