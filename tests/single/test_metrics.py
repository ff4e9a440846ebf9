"""The metrics file: one JSON object a line."""

import json
import os
import resource
import threading
import time

import pytest

from hybridmpi.errors import UsageError
from hybridmpi.training.metrics import Metrics
from hybridmpi.training.results import StepResult


def test_a_step_that_something_was_changed_after(tmp_path):
    path = tmp_path / "metrics.jsonl"
    metrics = Metrics(str(path), None, "words")
    for step, notes in ((1, ()), (2, ("table 'a' leaves ps: because", "8 bytes of rows moved"))):
        metrics.step(StepResult(step, 0.5, 10, False, 0.1, 0.0, {"forward": 0.1}, {"push_rows": 4}, notes))
    metrics.close()
    first, second = map(json.loads, path.read_text().splitlines())
    assert "notes" not in first and second["notes"] == ["table 'a' leaves ps: because", "8 bytes of rows moved"]
    assert second["words_per_s"] == 100.0
    assert abs(time.time() - first["time"]) < 60


STEPS = [
    {"kind": "run", "step": 0},
    *({"kind": "step", "step": n} for n in (1, 2, 3)),
    {"kind": "evaluation", "step": 3},
]


def lines_of(path):
    """Return the lines, without the times at which they were written."""
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    return [{key: value for key, value in line.items() if key != "time"} for line in lines]


@pytest.mark.parametrize("rest", ["", '{"kind": "step", "st', "no JSON\n", "\0\0\0\0", "[1]\n", '{"step": null}\n'])
@pytest.mark.parametrize(("after", "left"), [(0, 1), (2, 3), (3, 5), (9, 5)])
def test_a_run_that_goes_on_writes_each_step_once(tmp_path, after, left, rest):
    """What a run that broke off wrote after its last checkpoint is done again, also a line that is cut in two."""
    path = tmp_path / "metrics.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in STEPS) + rest)
    metrics = Metrics(str(path), after, "words")
    metrics.write("run", step=after)
    metrics.close()
    assert lines_of(path) == [*STEPS[:left], {"kind": "run", "step": after}]


def test_a_run_that_goes_on_elsewhere_begins_a_file(tmp_path):
    path = tmp_path / "new" / "metrics.jsonl"
    metrics = Metrics(str(path), 7, "words")
    metrics.write("run", step=7)
    metrics.close()
    assert lines_of(path) == [{"kind": "run", "step": 7}]


def test_a_run_that_goes_on_may_write_to_a_device():
    metrics = Metrics("/dev/null", 7, "words")
    metrics.write("run", step=7)
    metrics.close()


def test_a_line_that_is_no_json_takes_nothing_with_it(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"kind": "step", "step": 1}\n\nwhat?\n{"kind": "step", "step": 2}\n{"kind": "step", "step": 3}\n')
    Metrics(str(path), 2, "words").close()
    assert path.read_text() == '{"kind": "step", "step": 1}\n\nwhat?\n{"kind": "step", "step": 2}\n'


def test_a_disk_that_fills_and_has_room_again(tmp_path, capsys):
    """One warning, with the file's name; no half line is left, and lines go on when there is room."""
    path = tmp_path / "metrics.jsonl"
    metrics = Metrics(str(path), None, "words")
    metrics.write("note", step=0, text="")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 20, hard))  # half of a line has room
    try:
        metrics.write("note", step=1, text="")
        metrics.write("note", step=2, text="")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    metrics.write("note", step=3, text="")
    metrics.close()
    assert [line["step"] for line in lines_of(path)] == [0, 3]
    (warning,) = capsys.readouterr().err.splitlines()
    assert warning.startswith(f"hybridmpi: warning: metrics file '{path}' cannot be written (File too large)")


def test_a_file_that_is_removed(tmp_path, capfd):
    path = tmp_path / "folder" / "metrics.jsonl"
    metrics = Metrics(str(path), None, "words")
    path.unlink()
    path.parent.rmdir()
    for step in (1, 2):
        metrics.write("note", step=step, text="")
    metrics.close()
    assert f"metrics file '{path}' cannot be written (it was removed)" in capfd.readouterr().err


def test_a_pipe_that_nobody_reads_for_long(tmp_path, capfd):
    """A pipe without a reader is refused; one that is full takes no line, and the next reader no half of one."""
    path = tmp_path / "pipe"
    os.mkfifo(path)
    with pytest.raises(UsageError, match="pipe' cannot be written: No such device or address; set metrics.path"):
        Metrics(str(path), None, "words")
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    metrics = Metrics(str(path), None, "words")
    for step in range(1000):
        metrics.write("note", step=step, text="x" * 3000)
    os.set_blocking(reader, True)
    data, thread = [], threading.Thread(target=lambda: data.extend(os.fdopen(reader, "rb")))
    thread.start()
    time.sleep(0.1)
    metrics.write("note", step=1000, text="")
    metrics.close()
    thread.join(5)
    steps = [json.loads(line)["step"] for line in data if line.startswith(b"{") and line.endswith(b"}\n")]
    assert steps[:2] == [0, 1] and steps[-1] == 1000 and len(steps) < 500
    assert len(data) - len(steps) <= 2, "more than the line that was cut, and the end of it"
    assert "Resource temporarily unavailable" in capfd.readouterr().err


@pytest.mark.parametrize("path", ["x" * 400, "a\0b", "{folder}", "{folder}/file/metrics.jsonl"])
def test_what_is_no_path(tmp_path, path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="cannot be written: .*; set metrics.path"):
        Metrics(path.format(folder=tmp_path), None, "words")
