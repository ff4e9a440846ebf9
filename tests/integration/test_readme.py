"""README.md is true: its commands run as they stand, and what it says they print is what they print.

They run in a copy of the tree whose jobs/lm.toml is made small. Hosts are faked by name (as root, where the kernel
allows it); lines for Slurm run under one of their own (slurm_cluster.py).
"""

import os
import re
import shlex
import shutil
import subprocess

import pytest
from launching import ROOT, run_process
from pages import WORDS, assert_prints, blocks, copy_of_the_tree, lines_of, run, small_clone

from hybridmpi.cli.mpirun import find_library
from hybridmpi.mpi_implementations import OPEN_MPI

README = (ROOT / "README.md").read_text(encoding="utf-8")


def commands():
    return [line for block in blocks(README, "sh") for line in lines_of(block)]


def on_hosts(line):
    return "--host" in line and "--dry-run" not in line


IN_ORDER = [line for line in commands() if not line.startswith(("make", "srun", "source")) and not on_hosts(line)]


@pytest.fixture(scope="module")
def clone(tmp_path_factory):
    """A copy of the tree where `make run` has been, on a small text, and its environment is this one."""
    folder = small_clone(tmp_path_factory.mktemp("readme") / "hybridmpi")
    for name, count in (("train.txt", 70), ("dev.txt", 5)):
        lines = (f"(3 (2 It) (3 (2 {WORDS[n % 10]}) (4 good)))\n" for n in range(count))
        (folder / name).write_text("".join(lines), encoding="utf-8")
    for name, program in zip(("bigram.py", "pairs.py"), blocks(README, "python"), strict=True):
        (folder / name).write_text(program, encoding="utf-8")
    return folder


def make(folder, *arguments, timeout=60, **environment):
    """Run make, without what a make that runs these tests has told its children."""
    return run_process(["make", *arguments], timeout, {"MAKEFLAGS": "", "MAKELEVEL": "", **environment}, cwd=folder)


@pytest.mark.timeout(600)
def test_make_run_in_a_fresh_clone_without_an_environment(tmp_path):
    if find_library().mpi.name != OPEN_MPI:
        pytest.skip("the tests of the openmpi environment do this")
    changes = {"training.steps": "40", "data.vocabulary": "3000", "data.held_out": "0.001"}
    folder = copy_of_the_tree(tmp_path / "hybridmpi", changes)
    # An empty home: no data cached, nothing configured.
    outcome = make(folder, "run", timeout=560, HOME=str(tmp_path), XDG_CACHE_HOME="")
    assert outcome.code == 0, str(outcome)
    assert blocks(README, "sh")[0] == "make run\n"
    assert_prints(blocks(README, "text")[0], outcome.output)
    inspect = outcome.output.splitlines()[-1].split()
    assert run_process(inspect, 60, cwd=folder).code == 0
    again = make(folder, "--dry-run", "run").output
    assert len(again.splitlines()) == 1, f"installed again:\n{again}"


def test_make_test_runs_every_test():
    assert "make test" in commands()
    shown = make(ROOT, "--dry-run", "test").output.splitlines()
    assert shown[-1].strip() == ".venv/bin/python -m pytest -n 2"


def test_make_lists_the_targets():
    targets = set(re.findall(r"^([a-z][a-z%-]*):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    shown = make(ROOT).output
    assert {"run", "test", "test-%", "lint", "bench", "clean"} <= targets
    assert targets == set(re.findall(r"^  make (\S+) ", shown, re.MULTILINE))


def test_make_refuses_what_cannot_work(tmp_path):
    old = tmp_path / "python3"
    old.write_text("#!/bin/sh\necho Python 3.9.1\nexit 1\n")
    old.chmod(0o755)
    folder = tmp_path / "clone"
    folder.mkdir()
    for name in ("Makefile", "setup.cfg", "pyproject.toml"):
        shutil.copy(ROOT / name, folder)
    for argument, text in (
        ("MPI=mpi", "expected openmpi, mpich, openmpi4 or impi"),
        ("PYTHON=python2.0", "needs Python 3.11 or newer"),
        (f"PYTHON={old}", "Python 3.9.1: hybridmpi needs 3.11 or newer"),
    ):
        outcome = make(folder, "run", argument)
        assert outcome.code == 2 and text in outcome.output, str(outcome)
        assert not (folder / ".venv").exists()


@pytest.mark.parametrize("line", IN_ORDER)
def test_command(clone, line):
    if line.startswith("h5ls") and shutil.which("h5ls") is None:
        pytest.skip("no h5ls: apt install hdf5-tools")
    output = run(clone, line)
    if "bigram.py" in line:
        assert float(re.search(r"loss ([\d.]+) after 300 steps", output)[1]) < 0.2
        ranks = "2 compute ranks, 1 server" if "launch" in line else "1 compute rank, 0 servers"
        assert f"plan: {ranks}, 1 node" in output
    if "pairs.py" in line:
        assert float(re.search(r"loss ([\d.]+) after 150 steps", output)[1]) < 0.6  # guessing: 1.3
    if "h5ls" in line:
        assert re.search(r"^/parameters/embedding +Dataset", output, re.MULTILINE)
        assert re.search(r"^/parameters/lstm.bias ", output, re.MULTILINE)
    if "--resume" in line:
        assert "resumed from runs/lm: step 100\n" in output
        assert "checkpoint: " in output
    if "runs/mine" in line:
        assert {path.name for path in (clone / "runs" / "mine").iterdir()} == {"metrics.jsonl", "step-00000100"}


def test_the_launched_line_does_the_same_by_itself(clone):
    printed = run(clone, "hybridmpi launch --dry-run -n 3 -- python bigram.py")
    assert "plan: 2 compute ranks, 1 server" in run(clone, printed.strip())


@pytest.fixture
def host_names(tmp_path):
    """Environment for launchers whose remote shell only takes on the host's name."""
    if os.geteuid() != 0 or subprocess.run(["unshare", "-u", "true"], capture_output=True, check=False).returncode:
        pytest.skip("host names can be faked by root only, where the kernel allows it")
    agent = tmp_path / "agent"
    agent.write_text(
        '#!/bin/sh\nwhile [ "${1#-}" != "$1" ]; do shift; done\nname=$1\nshift\n'
        'exec unshare -u sh -c "hostname $name; $*"\n'
    )
    agent.chmod(0o755)
    return {
        "PRTE_MCA_plm_ssh_agent": str(agent),
        "HYDRA_LAUNCHER": "ssh",
        "HYDRA_LAUNCHER_EXEC": str(agent),
        "OMPI_MCA_mpi_yield_when_idle": "1",  # both hosts have the same few cores
    }


@pytest.mark.parametrize("line", [line for line in commands() if on_hosts(line)])
def test_several_hosts(clone, host_names, line):
    if line.startswith("mpirun") and find_library().mpi.name != OPEN_MPI:
        pytest.skip("Open MPI's arguments")
    output = run(clone, line, **host_names)
    assert "plan: 2 compute ranks, 2 servers, 2 nodes" in output
    assert "checkpoint: " in output


SRUN = [line for line in commands() if line.startswith("srun")]


@pytest.mark.parametrize("line", SRUN)
def test_srun_with_the_wrong_plugin_is_refused(clone, line):
    """Slurm then starts each task as a job of its own: what one of them says."""
    tasks = re.fullmatch(r"srun -N \d -n (\d) --mpi=(pmix|pmi2) (\S+ train .*)", line)
    assert tasks, "the plugins are pmix for Open MPI, pmi2 for MPICH"
    output = run(clone, tasks[3], code=2, SLURM_STEP_NUM_TASKS=tasks[1], SLURM_PROCID="0")
    assert f"Slurm started {tasks[1]} tasks in this step, but MPI sees one rank" in output
    assert "srun --mpi=pmix for Open MPI, --mpi=pmi2 for MPICH" in output


@pytest.mark.parametrize("line", SRUN)
def test_srun(clone, slurm, line):
    if ("pmix" in line) != (find_library().mpi.name == OPEN_MPI):
        pytest.skip("for the other MPI")
    output = slurm.run(["bash", "-c", f"source .venv/bin/activate && {line}"], 120, cwd=clone).output
    assert "plan: 2 compute ranks, 2 servers, 2 nodes" in output or "plan: 3 compute ranks, 1 server, 2 nodes" in output


def test_every_command_is_run_by_a_test():
    known = {"make run", "make test", "source .venv/bin/activate", *IN_ORDER, *filter(on_hosts, commands()), *SRUN}
    assert set(commands()) == known
    assert all(shlex.split(line) for line in known)
    languages = set(re.findall(r"^```(\w+)$", README, re.MULTILINE))
    assert languages == {"sh", "python", "text"}
