"""One rank fails, all ranks end: soon, with one message that names the rank, and with an exit code that is not 0."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from launching import Outcome, processes_of, run_mpi, run_process, session_of

PROGRAM = str(Path(__file__).parent / "programs" / "faulty.py")
SECONDS_TO_END = 5.0
FAULTY_STEP = 5  # as in the program


def run_faulty(folder: Path, *arguments: object, ranks: int = 3) -> Outcome:
    return run_mpi(ranks, [PROGRAM, str(folder), *map(str, arguments)], timeout=60)


def seconds_since_fault(folder: Path, outcome: Outcome) -> float:
    struck = folder / "struck"
    assert struck.exists(), f"the fault never came\n{outcome}"
    return outcome.ended - float(struck.read_text())


def assert_all_gone(folder: Path, outcome: Outcome, ranks: int = 3) -> None:
    """Every rank has ended, within seconds of the fault, and none has trained to the end."""
    assert seconds_since_fault(folder, outcome) < SECONDS_TO_END, str(outcome)
    assert outcome.left == (), f"processes {outcome.left} are left\n{outcome}"
    noted = sorted(path.name for path in folder.glob("rank*"))
    assert noted == [f"rank{rank}" for rank in range(ranks)], str(outcome)
    for path in folder.glob("rank*"):
        assert session_of(int(path.read_text())) is None, f"{path.name} is left\n{outcome}"
    assert outcome.code != 0 and "trained to the end" not in outcome.output, str(outcome)


def message_of(outcome: Outcome) -> str:
    """Return hybridmpi's one message; the launcher may add words of its own, below it."""
    messages = re.findall(r"^hybridmpi: .*", outcome.output, re.MULTILINE)
    messages = [message for message in messages if "hybridmpi: this was rank" not in message]
    assert len(messages) == 1, f"{len(messages)} messages\n{outcome}"
    banner = re.search(r"MPI_ABORT|prterun|BAD TERMINATION", outcome.output)
    assert banner is None or outcome.output.index(messages[0]) < banner.start(), f"the launcher spoke first\n{outcome}"
    return messages[0]


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        ("exception 1", 1, ["rank 1 of 3 (compute 1", "ZeroDivisionError: a fault of the user's own", "step 5"]),
        ("exception 0 --servers 0", 1, ["rank 0 of 3 (compute 0", "ZeroDivisionError", "faulty.py"]),
        ("exception 1 --by with", 1, ["rank 1 of 3 (compute 1", "ZeroDivisionError"]),
        ("exception 1 --by world", 1, ["rank 1 of 3 (compute 1", "ZeroDivisionError"]),
        ("unpicklable 1", 1, ["rank 1 of 3 (compute 1", "LocalError: of a class"]),
        ("exception -1 --servers 0", 1, ["rank 0 of 3 (compute 0", "ZeroDivisionError"]),
        ("reader:exception 1", 1, ["rank 1 of 3 (compute 1", "ZeroDivisionError", "step 5"]),
        ("server:exception 2", 1, ["rank 2 of 3 (server 0", "ZeroDivisionError"]),
        ("server:exception 1 --servers 2 --by world", 1, ["rank 1 of 3 (server 0", "ZeroDivisionError"]),
        ("id 1", 2, ["rank 1 of 3 (compute 1", "rank 1, step 5: table 'rows': id 100 at position 11 of 16 "]),
        ("nan 1", 1, ["rank 0 of 3", "step 5: rank 1:", "in the gradient of 'linear.", "are not finite"]),
        ("exit3 1", 3, ["rank 1 of 3 (compute 1", "sys.exit(3)"]),
        ("exit3 1 --by world", 1, ["rank 1 of 3 (compute 1", "with its World still open"]),
        ("exit0 1", 1, ["rank 1, step 5", "sys.exit(0)"]),
        ("reader:exit3 2 --servers 0", 3, ["rank 2 of 3 (compute 2", "sys.exit(3)"]),
        ("interrupt 1", 1, ["rank 1 of 3 (compute 1", "KeyboardInterrupt"]),
        ("exception 1 --staleness inf", 1, ["rank 1 of 3 (compute 1", "ZeroDivisionError", "step 5"]),
        ("id 0 --staleness 2", 2, ["rank 0 of 3 (compute 0", "rank 0, step 5: table 'rows': id 100 at position 11"]),
        ("nan 1 --staleness 1 --servers 0", 1, ["rank 1 of 3", "step 5: rank 1:", "in the gradient of 'linear."]),
        ("reader:exit3 1 --staleness inf", 3, ["rank 1 of 3 (compute 1", "sys.exit(3)"]),
    ],
)
def test_a_fault_on_one_rank_ends_all(tmp_path, arguments, code, words):
    outcome = run_faulty(tmp_path, *arguments.split())
    assert_all_gone(tmp_path, outcome)
    message_of(outcome)
    for word in words:
        assert word in outcome.output, f"'{word}' is missing\n{outcome}"
    assert outcome.code == code, str(outcome)


@pytest.mark.parametrize("arguments", ["kill 0", "server:kill 2", "kill 1 --servers 0", "kill 1 --staleness 1"])
def test_a_killed_rank_ends_all(tmp_path, arguments):
    """Nobody is left to speak but the launcher, which names the rank."""
    outcome = run_faulty(tmp_path, *arguments.split())
    assert_all_gone(tmp_path, outcome)
    rank = arguments.split()[1]
    assert re.search(rf"process rank {rank} |RANK {rank} PID|rank {rank} in job", outcome.output), str(outcome)


@pytest.mark.parametrize("servers", [0, 1])
def test_a_bad_id_changes_nothing_and_says_the_same_everywhere(tmp_path, servers):
    """Ranks that survive the error have the parameters of the step before, and train on together."""
    outcome = run_faulty(tmp_path, "id", 1, "--servers", servers, "--steps", 9, "--report")
    assert outcome.code == 0, str(outcome)
    reports = {p.name: json.loads(p.read_text()) for p in tmp_path.glob("report*.json")}
    assert len(reports) == 3 - servers
    errors = {name: report["error"] for name, report in reports.items()}
    assert errors.pop("report1.json")[0] == "SparseIndexError"
    texts = {text for _, text in [*errors.values(), reports["report1.json"]["error"]]}
    assert {kind for kind, _ in errors.values()} == {"RemoteError"} and len(texts) == 1, str(reports)
    (text,) = texts
    for word in ("rank 1, step 5", "table 'rows'", "id 100", "position 11", "[0, 100)"):
        assert word in text
    (digests,) = {tuple(report["digests"]) for report in reports.values()}
    assert digests[FAULTY_STEP - 1] == digests[FAULTY_STEP - 2], "the refused step changed something"
    others = digests[: FAULTY_STEP - 1] + digests[FAULTY_STEP:]
    assert len(set(others)) == len(others) == 8, "a step in good order changed nothing"


@pytest.mark.parametrize("servers", [0, 1])
def test_a_step_that_is_not_finite_can_be_skipped_by_all(tmp_path, servers):
    outcome = run_faulty(tmp_path, "nan", 1, "--servers", servers, "--steps", 9, "--nonfinite", "skip", "--report")
    assert outcome.code == 0, str(outcome)
    reports = [json.loads(p.read_text()) for p in tmp_path.glob("report*.json")]
    assert len(reports) == 3 - servers
    assert all(report["skipped"] == [FAULTY_STEP] and report["error"] is None for report in reports)
    (digests,) = {tuple(report["digests"]) for report in reports}
    assert len(digests) == 9
    assert digests[FAULTY_STEP - 1] == digests[FAULTY_STEP - 2], "the skipped step changed something"
    assert len(set(digests)) == 8


def test_the_wrong_pmi_of_slurm_is_refused(tmp_path):
    """srun with a PMI that MPI does not speak: every task believes that it is alone."""
    environment = {"SLURM_STEP_NUM_TASKS": "4", "SLURM_PROCID": "0"}
    outcome = run_process([sys.executable, PROGRAM, str(tmp_path), "exception", "0"], 60, environment)
    assert outcome.code != 0 and "Slurm started 4 tasks" in outcome.output, str(outcome)
    job = tmp_path / "job.toml"
    job.write_text("")
    outcome = run_process([sys.executable, "-m", "hybridmpi", "train", str(job)], 60, environment)
    assert outcome.code == 2, str(outcome)
    (line,) = outcome.output.splitlines()
    assert line.startswith("hybridmpi: error: Slurm started 4 tasks in this step, but MPI sees one rank")
    assert "srun --mpi=pmix" in line and "--mpi=pmi2" in line


def train(tmp_path: Path, *overrides: str, text: bytes | None = b"some words\n" * 1000, ranks: int = 3) -> Outcome:
    source, job = tmp_path / "text.txt", tmp_path / "job.toml"
    if text is not None:
        source.write_bytes(text)
    job.write_text(
        f"[data]\nsource = '{source}'\ncache = '{tmp_path / 'cache'}'\nstreams = 4\nsteps = 5\n"
        f"[checkpoint]\ndirectory = '{tmp_path / 'run'}'\n[metrics]\npath = ''\n[training]\nsteps = 3\n"
    )
    sets = [part for override in overrides for part in ("--set", override)]
    return run_mpi(ranks, ["-m", "hybridmpi", "train", str(job), *sets], timeout=60)


@pytest.mark.parametrize(
    ("text", "overrides", "words"),
    [
        (None, [], "no such file"),
        (b"", [], "is empty"),
        (b"words\0words\n", [], "is binary: a zero byte at offset 5"),
        (b"ten words " * 5, [], "words are too few for 4 streams of 5 steps"),
        (b"some words\n" * 1000, ["training.stepz=4"], "--set training.stepz: unknown key; did you mean 'steps'?"),
        (b"some words\n" * 1000, ["world.servers=3"], "3 servers were asked for and MPI started 3 ranks"),
    ],
)
def test_wrong_input_is_refused_by_one_message(tmp_path, text, overrides, words):
    outcome = train(tmp_path, *overrides, text=text)
    assert words in message_of(outcome), str(outcome)
    assert outcome.code == 2 and outcome.left == (), str(outcome)
    assert "Traceback" not in outcome.output, str(outcome)
    assert not (tmp_path / "run").exists(), "a run that was refused has left something"


def test_a_single_rank_ends_with_a_traceback(tmp_path):
    """Without a launcher an error is what it always is in Python."""
    outcome = run_process([sys.executable, PROGRAM, str(tmp_path), "exception", "0", "--servers", "0"], 60)
    assert outcome.code == 1 and outcome.output.rstrip().endswith("hybridmpi: this was rank 0 in step 5"), str(outcome)
    assert "\nZeroDivisionError: a fault of the user's own\n" in outcome.output


def test_survivors_are_seen():
    """The check itself: a child that stays behind in the session is found."""
    parent = subprocess.Popen(["sh", "-c", "sleep 60 & echo $!"], stdout=subprocess.PIPE, start_new_session=True)
    child = int(parent.stdout.readline())
    parent.wait()
    try:
        assert processes_of(parent.pid) == (child,)
    finally:
        os.kill(child, 9)
