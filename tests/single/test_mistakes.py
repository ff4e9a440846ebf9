"""The seeded mistakes in tests/mistakes fit the code, name tests that exist, and are seen, or reported as missed."""

import subprocess
import sys
from dataclasses import replace

import pytest
from mistakes import run
from mistakes.catalogue import ROOT, catalogue, missing_test

# Of tests that take a moment; `make mistakes` tries all.
TRIED = ("slot-that-is-not-there", "whole-digest-unused")


@pytest.mark.parametrize("change", [{"old": "nowhere to be found"}, {"old": "import"}, {"new": "if"}, {"old": ""}])
def test_an_entry_that_does_not_fit_is_refused(change):
    with pytest.raises((ValueError, SyntaxError)):
        replace(catalogue()[0], **change).text(ROOT)


def test_a_test_that_does_not_exist_is_named():
    mistake = catalogue()[0]
    assert missing_test(replace(mistake, seen_by="tests/single/test_nothing.py::test_x")) == (
        "tests/single/test_nothing.py, test_x"
    )
    assert missing_test(replace(mistake, seen_by="3 checks_sparse check_nothing")) == "check_nothing"
    assert missing_test(replace(mistake, seen_by="3 check_odd_shapes")).startswith("no test at all")
    assert missing_test(replace(mistake, seen_by="3 checks_sparse check_odd_shapes --more 5")) == ""


def test_mistakes_are_put_in_and_seen(tmp_path):
    """Each in the same copy, which then is what it was; a mistake that changes nothing is reported as missed."""
    tried = [mistake for mistake in catalogue() if mistake.name in TRIED]
    copy = run.Copy(tmp_path)
    harmless = replace(tried[0], name="harmless", new=tried[0].old + "  # not a mistake")
    ends = [copy.try_with(mistake)[0] for mistake in (*tried, harmless)]
    assert ends == [run.SEEN] * len(TRIED) + [run.MISSED]
    assert (copy.root / harmless.file).read_bytes() == (ROOT / harmless.file).read_bytes()
    broken = replace(harmless, seen_by="tests/single/test_mistakes.py::test_no_such")
    assert copy.try_with(broken)[0] == run.BROKEN


def test_the_command_lists_what_there_is():
    command = [sys.executable, str(ROOT / "tests" / "mistakes" / "run.py"), "--list", "--only", "checkpoint"]
    said = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
    assert "checkpoint: predecessor-in-the-way: " in said and "seen by tests/single/" in said
