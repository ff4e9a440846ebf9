"""Programs of users' own, under signals: they stop as jobs do, with a checkpoint and exit code 75."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from launching import kill_session

from hybridmpi.checkpoint import Checkpoint

PROGRAM = str(Path(__file__).parent / "programs" / "thirty_lines.py")
RUN = [sys.executable, PROGRAM]
LAUNCH = [sys.executable, "-m", "hybridmpi", "launch", "-n", "3", "--", "python", PROGRAM]


def signalled(command, folder, *signals):
    """Start a program and send it signals, the next one when half a second has passed; return its exit status and what
    it said."""
    (folder / "ready").unlink(missing_ok=True)
    root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "stdin": subprocess.DEVNULL, "text": True}
    process = subprocess.Popen(command, start_new_session=True, env={**os.environ, **root}, **pipes)
    try:
        deadline = time.monotonic() + 60
        while not (folder / "ready").exists():
            assert process.poll() is None and time.monotonic() < deadline, process.communicate()[0]
            time.sleep(0.05)
        for number in signals:
            time.sleep(0.5)
            process.send_signal(number)
        output, _ = process.communicate(timeout=30)
    finally:
        kill_session(process.pid)
    return process.returncode, output


@pytest.mark.parametrize(("command", "number"), [(LAUNCH, signal.SIGINT), (RUN, signal.SIGTERM)])
def test_a_program_stops_by_a_signal_with_a_checkpoint(tmp_path, command, number):
    code, output = signalled([*command, str(tmp_path)], tmp_path, number)
    found = re.search(r"from 0 to (\d+), last \1, stopped True", output)
    assert code == 75 and found and "Traceback" not in output, (code, output)
    assert Checkpoint.open(tmp_path / "saved").step == int(found[1]) > 0
    if command == RUN:
        assert "behind run" not in output
        code, output = signalled([*command, str(tmp_path)], tmp_path, signal.SIGUSR1)
        assert code == 75 and f"from {found[1]} to " in output, (code, output)


@pytest.mark.parametrize(
    ("options", "signals"), [(["--without-trainer"], [signal.SIGTERM]), (["--never-looks"], 2 * [signal.SIGTERM])]
)
def test_a_program_that_does_not_train_ends_at_once(tmp_path, options, signals):
    """Without a Trainer nobody will ever look whether a signal came; and with one, the second TERM waits for nobody."""
    began = time.monotonic()
    code, output = signalled([*RUN, str(tmp_path), *options], tmp_path, *signals)
    assert code == -signal.SIGTERM and time.monotonic() - began < 30, (code, output)
