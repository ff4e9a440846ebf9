"""A job whose outputs cannot be written ends on all ranks before it reads its data, with one message."""

import pytest
from launching import run_mpi
from runs import arguments, write_job


@pytest.mark.any_mpi
def test_a_folder_that_cannot_be_made(tmp_path):
    job = write_job(tmp_path)
    (tmp_path / "taken").write_text("a file")
    outcome = run_mpi(3, arguments(job, "taken"), timeout=60)
    assert outcome.failed_with(2), str(outcome)
    output = outcome.output
    assert output.count("failed: ") == 1 and f"checkpoint.directory = {tmp_path / 'taken'}: cannot be written" in output
    assert "reading" not in output and "Traceback" not in output
    assert not (tmp_path / "taken.jsonl").exists() and (tmp_path / "taken").read_text() == "a file"
