"""The metrics file: one JSON object a line."""

import json
import time

import pytest

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
