"""The batches of a resumed run: of every kind of job those from a later step on, as if it had read the ones before."""

from dataclasses import fields
from itertools import islice

import numpy as np
import pytest

from hybridmpi.training.job import read_job
from hybridmpi.training.kinds import KINDS, task_of

TREES = "(3 (2 good) (3 (2 and) (4 warm)))\n(1 (0 bad) (2 day))\n(2 (2 a) (2 a) (2 a))\n" * 4
# Batches of a pass differ, and so do passes where they are shuffled; a pass has fewer than LAST batches.
LAST = 9
SETTINGS = {
    "lm": ["data.source=text", "data.streams=6", "data.steps=20", "data.vocabulary=50", "data.held_out=0.1"],
    "ctr": ["data.batch=6"],
    "nmt": ["data.source=text", "data.target=text", "data.sentences=12", "data.vocabulary=50", "data.held_out=0.1"],
    "trees": ["data.source=.", "data.graphs=5"],
    "top-down": ["data.source=.", "data.graphs=5"],
}


def content(batch):
    """Return all that is in a batch as text."""
    if batch is None:
        return "no batch"
    values = {field.name: getattr(batch, field.name) for field in fields(batch)}
    values |= {f"graph {name}": values["graphs"].data[name] for name in getattr(batch, "graphs", ()) and ["label"]}
    return str({n: np.asarray(v).tolist() if isinstance(v, np.ndarray) else str(v) for n, v in values.items()})


@pytest.mark.parametrize("kind", sorted({*KINDS} - {"graphs"}))  # whose batches come as those of trees do
def test_a_later_step_has_the_same_batch_as_if_all_before_had_been_read(kind, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("train.txt", "dev.txt"):
        (tmp_path / name).write_text(TREES)
    lines = [" ".join(f"w{(line * word) ** 2 % 41}" for word in range(3, 7 + line % 5)) for line in range(1, 90)]
    (tmp_path / "text").write_text("\n".join(lines))
    (tmp_path / "job.toml").write_text(f'[model]\nkind = "{kind}"\n')
    task = task_of(kind)(read_job("job.toml", SETTINGS[kind] + (["data.cache=cache"] if kind != "ctr" else [])))
    for rank, ranks in ((0, 1), (1, 3)):
        through = [content(batch) for batch in islice(task.batches(0, rank, ranks), LAST + 2)]
        assert len(set(through)) > 2
        for first in range(1, LAST + 1):
            found = [content(batch) for batch in islice(task.batches(first, rank, ranks), 2)]
            assert found == through[first : first + 2], (rank, ranks, first)
