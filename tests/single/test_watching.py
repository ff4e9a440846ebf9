"""Reading metrics: the same values that were written, whatever happens to the file and however long it is."""

import json
import math
import os

import numpy as np
import pytest
from watched_runs import BYTES, PHASES, Run

from hybridmpi.errors import UsageError
from hybridmpi.training.job import default_job
from hybridmpi.training.run import describe_job
from hybridmpi.watching import bins, lines, reading
from hybridmpi.watching.evaluations import held_out_loss, score, told
from hybridmpi.watching.reading import MetricsReader, read_metrics


def curve(history, name):
    """Return (steps, values) of a curve, where there are any."""
    there = history.curves.count(name) > 0
    return history.curves.mean("step")[there], history.curves.mean(name)[there]


def same(first, second):
    for name in first.curves.names():
        np.testing.assert_array_equal(first.curves.mean(name), second.curves.mean(name), err_msg=name)
    assert first.evaluations == second.evaluations and first.notes == second.notes and first.end == second.end
    assert list(first.recent) == list(second.recent) and first.starts == second.starts and first.step == second.step


def test_what_is_written_is_read(tmp_path):
    run = Run(tmp_path / "metrics.jsonl", 10)
    run.steps(9)
    run.evaluate()
    run.write("note", step=9, text="parts moved")
    run.steps(1, seconds=0.5, notes=("table 'a' leaves ps",))
    run.end()
    history = read_metrics(tmp_path)
    steps, losses = curve(history, "loss")
    assert steps.tolist() == list(range(1, 11)) and losses == pytest.approx([10 / n for n in range(1, 11)])
    for section, values in (("phases", PHASES), ("bytes", BYTES)):
        for name, value in values.items():
            assert curve(history, f"{section}.{name}")[1].tolist() == [value] * 10
    assert history.curves.mean("clock")[:10] == pytest.approx([*(n / 10 for n in range(1, 10)), 3.4])
    assert history.step == history.steps == 10 and history.unit == "words" and history.end["step"] == 10
    assert list(history.notes) == [(9, "parts moved"), (10, "table 'a' leaves ps")]
    (found,) = history.evaluations
    assert found.step == 9 and held_out_loss(found.values) == pytest.approx(2.0)


def test_while_it_is_written(tmp_path):
    """A line is taken when it is whole; a file written anew begins from nothing."""
    path, written = tmp_path / "metrics.jsonl", tmp_path / "whole.jsonl"
    run = Run(written, 300)
    run.steps(300)
    run.end()
    content = written.read_bytes()
    reader = MetricsReader(path)
    assert not reader.poll()
    cuts = [0, 10, 500, 5000, 5001, 70000, len(content) - 3, len(content)]
    for first, last in zip(cuts, cuts[1:], strict=False):
        with open(path, "ab") as file:
            file.write(content[first:last])
        assert reader.poll() and not reader.poll()
        assert reader.history.step == content[:last].count(b'"kind": "step"', 0, content[:last].rfind(b"\n") + 1)
    same(reader.history, read_metrics(written))
    assert 0 <= reader.age() < 60

    # Written anew: shorter; as long, by another start; another file of that name.
    again = Run(path, 5, start=2000.0)
    again.steps(5)
    again.close()
    assert reader.poll() and reader.history.step == 5 and reader.history.end is None
    longer = Run(path, 500, start=3000.0)
    longer.steps(400)
    longer.close()
    assert reader.poll() and reader.history.step == 400 and reader.history.steps == 500
    os.replace(written, path)
    assert reader.poll() and reader.history.step == 300


@pytest.mark.parametrize("live", [True, False])
def test_steps_done_twice_count_once(tmp_path, live):
    """A job dies at 150, goes on from 100, dies at 180, goes on from 120: losses are those of the last."""
    path = tmp_path / "metrics.jsonl"
    reader = MetricsReader(path)
    for number, (first, last, loss) in enumerate([(0, 150, 1.0), (100, 180, 2.0), (120, 200, 3.0)]):
        run = Run(path, 200, append=number > 0, first=first, start=1000.0 + 1000 * number)
        run.steps(last - first - 1, loss=loss)
        run.evaluate(loss=loss, accuracy=0.5)
        run.write("note", step=run.step, text=f"note {loss}")
        run.steps(1, loss=loss)
        run.close()
        if live:
            assert reader.poll()
    history = reader.history if live else read_metrics(path)
    steps, losses = curve(history, "loss")
    assert steps.tolist() == list(range(1, 201))
    assert losses.tolist() == [1.0] * 100 + [2.0] * 20 + [3.0] * 80
    assert [found.step for found in history.evaluations] == [199] and list(history.notes) == [(199, "note 3.0")]
    assert [start.lost for start in history.starts] == [0, 50, 60]
    # 15 s and 2 s of an evaluation, 8 and 2, 8 and 2: what passed between the starts is no training.
    assert history.clock == pytest.approx(37.0) and history.starts[2].clock == pytest.approx(27.0)
    assert {line["loss"] for line in history.recent} <= {1.0, 2.0, 3.0} and history.recent[-1]["step"] == 200


def test_what_is_no_number_and_what_is_no_line(tmp_path):
    path = tmp_path / "metrics.jsonl"
    run = Run(path, 6)
    run.steps(1)
    run.steps(1, loss=math.nan, skipped=True)
    run.steps(1, loss=math.inf)
    run.close()
    with open(path, "a") as file:
        file.write('{"kind": "step", "step": 4, "loss": null}\n[1]\n"x"\n{"kind": 3}\n{"kind": "step"}\n\n\xff{"kin')
    run = Run(path, 6, append=True, first=4)
    run.steps(1)
    run.close()
    history = read_metrics(path)
    assert curve(history, "loss")[1].tolist() == [10.0, 2.0] and curve(history, "step")[1].tolist() == [1, 2, 3, 4, 5]
    assert history.skipped == 1 and history.step == 5


@pytest.mark.parametrize("chunk", [1 << 12, 1 << 22])
def test_a_long_run_in_little_memory(tmp_path, monkeypatch, chunk):
    """Of a run with many more steps than bins, means of bins are near those of all; all that is rare is there."""
    monkeypatch.setattr(bins, "BINS", 64)
    monkeypatch.setattr(reading, "CHUNK", chunk)
    path, count = tmp_path / "metrics.jsonl", 6000
    run = Run(path, count)
    for _ in range(0, count, 1000):
        run.steps(400)
        run.steps(1, loss=math.nan, skipped=True)
        run.steps(598)
        run.steps(1, notes=("changed",))
    run.end()
    history = read_metrics(path)
    assert history.curves.width == 128 and history.skipped == 6 and len(history.notes) == 6
    assert [line["step"] for line in history.recent] == list(range(count - lines.RECENT + 1, count + 1))
    steps, losses = curve(history, "loss")
    assert len(steps) == math.ceil(count / 128) and (np.diff(steps) > 0).all()
    assert losses[1:] == pytest.approx(10 / steps[1:], rel=0.1)
    assert curve(history, "phases.backward")[1] == pytest.approx(0.03)
    assert (history.curves.count("step").sum() == count) == (chunk > 1 << 20)  # in one chunk all are read


def test_a_file_without_times_runs_by_its_seconds(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text("".join(json.dumps({"kind": "step", "step": n, "loss": 1, "seconds": 0.5}) + "\n" for n in (1, 2)))
    history = read_metrics(path)
    assert history.clock == 1.0 and history.unit == "examples" and history.steps == 0 and history.job == {}


def test_paths_that_are_none(tmp_path):
    with pytest.raises(UsageError, match=r"lm/metrics.jsonl is not there: expected .* checkpoint.directory"):
        read_metrics(tmp_path / "lm")
    (tmp_path / "metrics.jsonl").touch()
    with pytest.raises(UsageError, match="is empty"):
        read_metrics(tmp_path)
    (tmp_path / "a.jsonl").mkdir()
    with pytest.raises(UsageError, match="cannot be read: Is a directory"):
        read_metrics(tmp_path / "a.jsonl")


def test_evaluations_of_every_kind():
    lm = {"perplexity": 20.0, "unigram_perplexity": 119.0, "words": 1000, "seconds": 8.0}
    assert told(lm) == {"perplexity": 20.0} and score(lm) is None and held_out_loss(lm) == pytest.approx(math.log(20))
    ctr = {"log_loss": 0.4, "auc": 0.77, "base_rate": 0.2, "best_auc": 0.8, "examples": 5}
    assert told(ctr) == {"log loss": 0.4, "AUC": 0.77} and score(ctr) == ("AUC", 0.77) and held_out_loss(ctr) == 0.4
    assert score({"loss": 1.0, "accuracy": 0.8, "root_accuracy": 0.4}) == ("accuracy at roots", 0.4)
    assert math.isnan(held_out_loss({})) and told({}) == {}


def test_a_real_job_is_described_as_expected():
    """What is looked up in a job's description has these names."""
    job = json.loads(json.dumps(describe_job(default_job("lm"))))
    assert {"steps", "evaluate", "staleness"} <= set(job["training"]) and job["model"]["kind"] == "lm"
    assert {"servers"} <= set(job["world"]) and "directory" in job["checkpoint"]
