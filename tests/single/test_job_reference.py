"""The reference of job files: every key has a meaning, jobs/ is made of it, `hybridmpi job` writes such files."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated, get_type_hints

import pytest

from hybridmpi.cli.main import main
from hybridmpi.field_types import Range, described, meaning_of
from hybridmpi.optim import OPTIMIZERS
from hybridmpi.training.job import MetricsSection, default_job, read_job
from hybridmpi.training.kinds import KINDS
from hybridmpi.training.reference import job_file, keys_of, sections_of, toml

JOBS = Path(__file__).parents[2] / "jobs"


@pytest.mark.parametrize("kind", KINDS)
def test_every_key_says_what_it_means_and_what_it_takes(kind):
    for section, keys in sections_of(default_job(kind)):
        assert keys or section == "modes"
        for key in keys:
            assert key.meaning, (
                f"[{section}] {key.name} has no meaning: give its field Annotated[type, 'what it means']"
            )
            assert key.expected and not key.meaning.endswith(".")


@pytest.mark.parametrize("kind", KINDS)
def test_the_files_in_jobs_are_made_of_the_reference(kind):
    file = JOBS / f"{kind}.toml"
    assert file.read_text(encoding="utf-8") == job_file(kind, f"jobs/{kind}.toml"), f"{file}: run 'make jobs'"


def test_optimisers_say_what_they_mean_and_what_they_take():
    keys = {name: {key.name: key for key in keys_of(rule(rate=0.5))} for name, rule in OPTIMIZERS.items()}
    assert all(key.meaning for rule in keys.values() for key in rule.values())
    assert keys["sgd"].keys() == {"rate"} and keys["sgd"]["rate"].expected == "a number, above 0"
    assert keys["adagrad"]["initial"].expected == "a number, at least 0"
    assert keys["adam"]["beta1"].expected == "a number, at least 0 and below 1"


def test_meanings_stand_beside_types_and_ranges():
    hint = Annotated[int, Range(2), "how many"]
    assert (described(hint), meaning_of(hint)) == ("a whole number, at least 2", "how many")
    assert (described(bool), meaning_of(bool)) == ("true or false", "")
    hints = get_type_hints(MetricsSection, include_extras=True)
    assert described(hints["path"]) == "a string in quotes"


def test_values_are_written_as_toml_reads_them(tmp_path):
    written = [toml(value) for value in (True, 3, 0.5, 1e-5, "a b", (64, 32), ("x",), ())]
    assert written == ["true", "3", "0.5", "1e-5", '"a b"', "[64, 32]", '["x"]', "[]"]
    text = job_file("ctr", "a.toml")
    path = tmp_path / "a.toml"
    path.write_text(text.replace("bottom = [64]  ", "bottom = [64, 8]"))
    job = default_job("ctr")
    assert read_job(path) == replace(job, model=replace(job.model, bottom=(64, 8)))


def test_the_command_prints_writes_and_lists(tmp_path, capsys):
    assert main(["job", "lm"]) == 0
    assert capsys.readouterr().out == job_file("lm", "lm.toml")
    path = tmp_path / "mine.toml"
    assert main(["job", "trees", str(path)]) == 0
    assert f"hybridmpi launch -n 3 -- train {path}\n" in capsys.readouterr().out
    assert read_job(path) == default_job("trees") and f"train {path} --set" in path.read_text()
    assert main(["job"]) == 0
    out = capsys.readouterr().out
    assert [line.split()[0] for line in out.splitlines() if line[:1].strip()][: len(KINDS)] == list(KINDS)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["lmm"], "no kind of jobs 'lmm': did you mean 'lm'?"),
        (["text"], "no kind of jobs 'text': expected one of lm, ctr, nmt, trees, graphs, top-down"),
        (["lm", "setup.cfg"], "job file setup.cfg: the file exists; give another name, or --force to replace it"),
        (["lm", "no/where.toml"], "job file no/where.toml: there is no folder 'no'; make it first"),
    ],
)
def test_the_command_refuses(arguments, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "setup.cfg").touch()
    assert main(["job", *arguments]) == 2
    assert message in capsys.readouterr().err
    assert (tmp_path / "setup.cfg").read_text() == ""
