"""What the README and the pages of docs/ say, and a copy of the tree in which their commands run."""

import os
import re
import shutil
import sys
from pathlib import Path

import pytest
from launching import ROOT, run_process

NOT_COPIED = shutil.ignore_patterns(".*", "*.egg-info", "runs", "build", "dist")
SMALL = {
    "model.width": "16",
    "model.hidden": "16",
    "model.samples": "64",
    "data.source": '"my.txt"',
    "data.held_out": "0.1",
    "data.streams": "12",
    "data.steps": "5",
    "training.steps": "100",
}
WORDS = ["the", "a", "row", "rank", "table", "sends", "takes", "holds", "every", "server", "\n"]
AS_ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"} if os.geteuid() == 0 else {}


def blocks(text, language):
    """Return the blocks of code of a page in one language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)


def lines_of(block):
    """Return the commands of a block, those on several lines as one."""
    return re.sub(r"\\\n *", "", block).splitlines()


def copy_of_the_tree(folder, changes):
    """Copy what a clone would have to `folder`, and kernels compiled here, with some values of jobs/lm.toml changed."""
    shutil.copytree(ROOT, folder, ignore=NOT_COPIED)
    job, section, lines = folder / "jobs" / "lm.toml", "", []
    changes = dict(changes)
    for line in job.read_text(encoding="utf-8").splitlines():
        section = line.strip("[]") if line.startswith("[") else section
        key = f"{section}.{line.split(' = ')[0]}"
        lines.append(f"{line.split(' = ')[0]} = {changes.pop(key)}" if key in changes else line)
    assert not changes, f"jobs/lm.toml has no {', '.join(changes)}"
    job.write_text("\n".join(lines), encoding="utf-8")
    return folder


def small_clone(folder):
    """Copy the tree to `folder` as if `make run` had been there, on a small text; its environment is this one."""
    if not (Path(sys.prefix) / "bin" / "activate").exists():
        pytest.skip(f"{sys.prefix} is no virtual environment: the commands of the pages expect one")
    copy_of_the_tree(folder, SMALL)
    for name in (".venv", ".venv-mpich"):
        (folder / name).symlink_to(sys.prefix)
    text = (WORDS[i * i % 101 % len(WORDS)] for i in range(3000))
    (folder / "my.txt").write_text(" ".join(text), encoding="utf-8")
    run(folder, "hybridmpi launch -n 3 -- train jobs/lm.toml")
    return folder


def run(folder, line, code=0, **environment):
    """Run one line of a page as a user with an active environment would; return what it printed."""
    outcome = run_process(
        ["bash", "-c", f"source .venv/bin/activate && {line}"], 240, {**AS_ROOT, **environment}, cwd=folder
    )
    assert outcome.code == code, str(outcome)
    return outcome.output


def assert_prints(promised, output):
    """Check that every line of `promised`, but for its numbers, is among those of `output`."""
    for line in promised.splitlines():
        pattern = re.sub(r"(\\ )+", r"\\s+", re.sub(r"\d[\d,.]*(\\\.\d+)?", r"[\\d,.]+", re.escape(line)))
        if line.strip() != "...":
            assert re.search(f"^{pattern}$", output, re.MULTILINE), f"not printed: {line}\n{output}"
