"""The metrics file: one JSON object a line."""

import json
import time

from hybridmpi.training.metrics import Metrics
from hybridmpi.training.results import StepResult


def test_a_step_that_something_was_changed_after(tmp_path):
    path = tmp_path / "metrics.jsonl"
    metrics = Metrics(str(path), False, "words")
    for step, notes in ((1, ()), (2, ("table 'a' leaves ps: because", "8 bytes of rows moved"))):
        metrics.step(StepResult(step, 0.5, 10, False, 0.1, 0.0, {"forward": 0.1}, {"push_rows": 4}, notes))
    metrics.close()
    first, second = map(json.loads, path.read_text().splitlines())
    assert "notes" not in first and second["notes"] == ["table 'a' leaves ps: because", "8 bytes of rows moved"]
    assert second["words_per_s"] == 100.0
    assert abs(time.time() - first["time"]) < 60


def test_a_line_that_a_killed_job_left_torn_stays_alone(tmp_path):
    path = tmp_path / "metrics.jsonl"
    for left in ('{"kind": "run"}\n{"kind": "st', '{"kind": "run"}\n', ""):
        path.write_text(left)
        metrics = Metrics(str(path), True, "words")
        metrics.write("run", step=7)
        metrics.close()
        *before, last = path.read_text().splitlines()
        assert json.loads(last)["step"] == 7 and before == left.splitlines()
