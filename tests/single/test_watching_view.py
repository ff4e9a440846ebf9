"""`hybridmpi watch`: the view of a run, on a terminal that redraws, in a log, once."""

import io
import math
import os
import pty
import re
import subprocess
import sys
import textwrap
import time

import numpy as np
import pytest
from watched_runs import Run

from hybridmpi.cli.main import main
from hybridmpi.watching import follow as following
from hybridmpi.watching import present, view, words
from hybridmpi.watching.follow import fitting, follow
from hybridmpi.watching.reading import MetricsReader, read_metrics


def shown(path, age=0.0, width=120, of=words.BLOCKS):
    return view.view(read_metrics(path), age, width, of, "runs/lm")


def test_the_view_of_a_run(tmp_path):
    path = tmp_path / "metrics.jsonl"
    run = Run(path, 1000, training={"evaluate": 250})
    run.steps(250)
    run.evaluate(perplexity=30.0, unigram_perplexity=99.0, words=7)
    run.steps(250, notes=())
    run.evaluate(perplexity=20.5, unigram_perplexity=99.0, words=7)
    run.steps(1, notes=("table 'a' leaves ps: because",))
    run.write("checkpoint", step=501, seconds=0.25, behind=True)
    run.steps(99, rows={"wanted": 100, "used": 50, "unchanged": 25})
    run.close()
    text = "\n".join(shown(path))
    # 400 steps of 0.1 s and two evaluations of 2 s are to come.
    assert "step 600 of 1,000" in text and "60%  64 s so far, about 44 s left" in text
    assert "lm: 2 compute ranks, 1 server, 1 node, here" in text
    mean, before = (np.mean([10 / n for n in range(first, first + 100)]) for first in (501, 401))
    assert f"mean of the last 100 steps {mean:.4g}, {1 - mean / before:.1%} less than the 100 before" in text
    assert "1,000 words/s, 100 ms a step" in text
    assert "step 500: perplexity 20.5\n" in text and "step 250: perplexity 30\n" in text
    assert re.search(r"backward +30\.0 ms +30%", text) and re.search(r"other +30\.0 ms +30%", text)
    assert "1.00 ms of sums went on while backward computed" in text
    assert "bytes of a step: 2.00 kB, of rank 0" in text and re.search(r"rows pushed +550 B +28%", text)
    assert "of 100 rows wanted of other nodes 75% were here already" in text
    assert "last checkpoint: step 501; training stood still for 250 ms" in text
    assert "step 501: table 'a' leaves ps: because" in text and text.endswith("last line just now")


@pytest.mark.parametrize("width", [40, 80, 104, 200])
@pytest.mark.parametrize("of", [words.BLOCKS, words.ASCII], ids=["blocks", "ascii"])
def test_no_line_is_longer_than_the_terminal(tmp_path, width, of):
    run = Run(tmp_path / "metrics.jsonl", 1000, unit="examples")
    run.steps(300, notes=("x" * 300,))
    run.close()
    lines = shown(tmp_path, width=width, of=of)
    assert max(map(len, lines)) <= width
    assert of is words.BLOCKS or "".join(lines).isascii()


def test_how_a_run_ends_or_does_not(tmp_path):
    path = tmp_path / "metrics.jsonl"
    run = Run(path, 40, training={"evaluate": 20})
    assert shown(path)[-1] == "started, no step yet"
    assert (
        shown(path, age=30)[-1] == "started 30 s ago, no step yet: the first compiles what no job here has used before"
    )
    assert shown(path, age=400)[-1].startswith("NO LINE FOR 7 min: it may be ")
    run.steps(19)
    run.metrics.flush()
    assert shown(path, age=3.2)[-1] == "last line 3.2 s ago"
    assert shown(path, age=40)[-1].startswith("NO LINE FOR 40 s, steps take 100 ms: it may be writing a checkpoint")
    run.steps(1)
    run.metrics.flush()
    assert "an evaluation is due" in shown(path, age=40)[-1]
    run.evaluate()
    run.steps(5)
    run.end(stopped=True)
    assert shown(path, age=4000)[-1] == "stopped by a signal after step 25 of 40, in 4.5 s; --resume continues it"
    run = Run(path, 40, append=True, first=20, start=5000.0)
    run.steps(20)
    run.end()
    *_, starts, _, last = shown(path, age=4000)
    assert starts == "started 2 times, last from step 20, 5 steps done again" and last == "done: 40 steps in 6.5 s"


def test_a_view_of_next_to_nothing(tmp_path):
    path = tmp_path / "metrics.jsonl"
    run = Run(path, 0, phases={})
    run.steps(1, loss=math.nan, skipped=True, phases={})
    run.close()
    text = "\n".join(shown(path))
    assert "nan now; mean of the last 1 step nan" in text and "1 step skipped: something was not finite" in text
    path.write_text('{"kind": "step", "step": 3, "loss": null}\n')
    assert "step 3" in "\n".join(shown(path)) and view.plain(read_metrics(path)).startswith("step 3  loss nan")


def test_notes_are_told_once_and_steer_no_terminal(tmp_path):
    path = tmp_path / "metrics.jsonl"
    run = Run(path, 40)
    run.steps(1, notes=["table '日本語\x1b[31m' leaves ps"])
    for _ in range(9):
        run.steps(1, notes=["nothing to gain"])
    run.close()
    lines = shown(path, width=38)
    assert [line for line in lines if "leav" in line or "gain" in line] == [
        r"step 1: table '日本語\x1b[31m' leav...",
        "step 10: nothing to gain",
    ]


def test_a_low_terminal_shows_how_the_run_is():
    lines = ["a", "", "b", "", "c"]
    assert fitting(lines, 5) == lines and fitting(lines, 4) == ["a", "", "b", "c"]
    assert fitting(lines, 3) == ["a", "b", "c"] and fitting(lines, 2) == ["a", "c"]


def test_numbers_as_people_read_them():
    seconds = {4e-5: "40 us", 0.0691: "69.1 ms", 0.99: "990 ms", 2.71: "2.7 s", 45.2: "45 s", 720: "12 min"}
    seconds |= {12000: "3 h 20 min", 180000: "2 d 2 h", 9.96: "10 s", 0.9997: "1.0 s", math.inf: "?"}
    assert {value: words.duration(value) for value in seconds} == seconds
    sizes = {0: "0 B", 512: "512 B", 1500: "1.50 kB", 999_600: "1.00 MB", 3.42e6: "3.42 MB", 2e12: "2.00 TB"}
    assert {value: words.size(value) for value in sizes} == sizes
    assert words.sparkline([1, 2, 3, np.nan], 4, words.BLOCKS) == "▁▅█ "
    assert words.sparkline([5, 5.0001], 9, words.ASCII) == "++"  # not a rise
    assert words.sparkline([np.nan], 4, words.BLOCKS) == "" and words.bar(0.5, 4, words.ASCII) == "##.."
    assert words.glyphs("utf-8") is words.BLOCKS and words.glyphs("ascii") is words.glyphs(None) is words.ASCII


def test_bytes_that_are_new_have_a_place():
    assert present.by_way({"pull_ids": 1, "pull_rows": 2, "letters": 5})["letters"] == 5


def test_a_log_gets_lines(tmp_path, monkeypatch):
    """What happens is said once, in order, and the exit code tells how the run ended."""
    path = tmp_path / "metrics.jsonl"
    reader, out = MetricsReader(path), io.StringIO()
    run = []

    def go_on(steps):
        run[0].steps(steps)
        run[0].metrics.flush()

    acts = iter(
        [
            lambda: run.append(Run(path, 100)),
            lambda: go_on(10),
            lambda: run[0].evaluate(),
            lambda: go_on(30),
            lambda: run[0].end(stopped=True),
        ]
    )
    monkeypatch.setattr(following, "LINE_SECONDS", 0.0)
    monkeypatch.setattr(following.time, "sleep", lambda _: next(acts)())
    assert follow(reader, "runs/lm", out) == 75
    said = out.getvalue().splitlines()
    assert said[0] == f"waiting for {path}"
    assert said[1].startswith("step 10 of 100 (10%)  loss 2.929  1,000 words/s  100 ms a step, about ")
    assert said[2] == "step 10: perplexity 7.389" and said[3].startswith("step 40 of 100")
    assert said[4] == "stopped by a signal after step 40 of 100, in 6.0 s; --resume continues it" and len(said) == 5


WRITER = """
    import sys, time
    from watched_runs import Run
    run = Run(sys.argv[1], 60, start=time.time())
    for _ in range(6):
        run.clock = time.time()
        run.steps(10)
        run.metrics.flush()
        time.sleep(0.2)
    run.end()
"""


def test_on_a_terminal_while_a_job_writes(tmp_path):
    """Without the job's MPI; the view is drawn over the last one, and the command ends when the run does."""
    path = tmp_path / "metrics.jsonl"
    terminal, theirs = pty.openpty()
    command = "import sys; from hybridmpi.cli.main import main; s = main(['watch', sys.argv[1]]); "
    command += "sys.exit(9 if 'mpi4py' in sys.modules else s)"
    environment = os.environ | {"COLUMNS": "100", "LINES": "50", "PYTHONIOENCODING": "utf-8"}
    watch = subprocess.Popen([sys.executable, "-c", command, str(path)], stdout=theirs, env=environment)
    time.sleep(0.4)
    writer = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(WRITER), str(path)],
        env=os.environ | {"PYTHONPATH": os.path.dirname(__file__)},
    )
    assert writer.wait(60) == 0 and watch.wait(60) == 0
    os.close(theirs)
    drawn = b""
    while chunk := _read(terminal):
        drawn += chunk
    os.close(terminal)
    views = re.split(r"\x1b\[\d+F", drawn.decode())
    assert views[0].startswith("waiting for ") and len(views) >= 3
    assert "step 60 of 60" in views[-1] and "done: 60 steps" in views[-1] and "█" in views[-1]
    counts = [int(found[1]) for text in views if (found := re.search(r"step (\d+) of 60", text))]
    assert counts == sorted(counts) and len(set(counts)) >= 2


def _read(terminal):
    try:
        return os.read(terminal, 1 << 16)
    except OSError:  # nobody has the other end
        return b""


def test_the_command(tmp_path, capsys, monkeypatch):
    assert main(["watch", "--once", str(tmp_path / "lm")]) == 2
    assert "lm/metrics.jsonl is not there: expected the metrics file of a run" in capsys.readouterr().err
    run = Run(tmp_path / "metrics.jsonl", 5)
    run.steps(5)
    run.end()
    assert main(["watch", "--once", str(tmp_path)]) == 0 and "done: 5 steps" in capsys.readouterr().out

    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(following.time, "sleep", interrupt)
    assert main(["watch", str(tmp_path / "later")]) == 0
    assert capsys.readouterr().err == ""
