"""`hybridmpi launch`: golden command lines for both MPIs, what is refused, and real jobs of two ranks."""

import os
import shlex
import signal
import stat
import subprocess
import sys
import time
from contextlib import contextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st
from launching import run_process

from hybridmpi.cli import launch, mpirun
from hybridmpi.cli.main import main
from hybridmpi.cli.mpirun import Library, Situation, command_line, parse_hosts
from hybridmpi.errors import LaunchError, UsageError
from hybridmpi.mpi_implementations import implementation

OPEN_MPI, OPEN_MPI_4 = implementation("Open MPI"), implementation("Open MPI", "4.1.8")
MPICH, INTEL_MPI = implementation("MPICH"), implementation("Intel MPI")
COMMAND = ("/v/bin/python", "-m", "hybridmpi", "train", "jobs/lm.toml")
TWO_HOSTS = (("a", 2), ("b", 1))
GOLDEN = {
    "Open MPI, more ranks than cores": (
        Situation(OPEN_MPI, "/v/bin/mpirun", 3, COMMAND, cores=2),
        "OMP_NUM_THREADS=1 NUMBA_NUM_THREADS=1 OMPI_MCA_pml=ob1 OMPI_MCA_btl=self,sm,tcp OMPI_MCA_osc='^ucx' "
        "OMPI_MCA_mpi_yield_when_idle=1 "
        "/v/bin/mpirun -n 3 --bind-to none --oversubscribe /v/bin/python -m hybridmpi train jobs/lm.toml",
    ),
    "Open MPI, root, cores to spare": (
        Situation(OPEN_MPI, "/v/bin/mpirun", 2, COMMAND, cores=9, root=True),
        "OMP_NUM_THREADS=4 NUMBA_NUM_THREADS=4 OMPI_MCA_pml=ob1 OMPI_MCA_btl=self,sm,tcp OMPI_MCA_osc='^ucx' "
        "OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 "
        "/v/bin/mpirun -n 2 --bind-to none --oversubscribe /v/bin/python -m hybridmpi train jobs/lm.toml",
    ),
    "Open MPI, the user's settings": (
        Situation(
            OPEN_MPI, "/v/bin/mpirun", 2, COMMAND, cores=4, environment={"OMP_NUM_THREADS": "3", "OMPI_MCA_pml": "ucx"}
        ),
        "OMPI_MCA_btl=self,sm,tcp OMPI_MCA_osc='^ucx' "
        "/v/bin/mpirun -n 2 --bind-to none --oversubscribe /v/bin/python -m hybridmpi train jobs/lm.toml",
    ),
    "Open MPI, two hosts over TCP": (
        Situation(
            OPEN_MPI, "/v/bin/mpirun", 3, COMMAND, TWO_HOSTS, 2, 4, root=True, environment={"PYTHONPATH": "/src"}
        ),
        "OMP_NUM_THREADS=2 NUMBA_NUM_THREADS=2 OMPI_MCA_pml=ob1 OMPI_MCA_btl=self,sm,tcp OMPI_MCA_osc='^ucx' "
        "OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 "
        "/v/bin/mpirun -n 3 --bind-to none --host a:2,b:1 -x OMP_NUM_THREADS -x NUMBA_NUM_THREADS -x OMPI_MCA_pml "
        "-x OMPI_MCA_btl -x OMPI_MCA_osc -x PYTHONPATH /v/bin/python -m hybridmpi train jobs/lm.toml",
    ),
    "Open MPI, two hosts with InfiniBand": (
        Situation(OPEN_MPI, "/v/bin/mpirun", 3, COMMAND, TWO_HOSTS, 2, 4, fabric=True),
        "OMP_NUM_THREADS=2 NUMBA_NUM_THREADS=2 /v/bin/mpirun -n 3 --bind-to none --host a:2,b:1 -x OMP_NUM_THREADS "
        "-x NUMBA_NUM_THREADS /v/bin/python -m hybridmpi train jobs/lm.toml",
    ),
    "Open MPI, a Slurm allocation of four nodes": (
        Situation(OPEN_MPI, "/v/bin/mpirun", 8, COMMAND, nodes=4, cores=16, fabric=True),
        "OMP_NUM_THREADS=8 NUMBA_NUM_THREADS=8 /v/bin/mpirun -n 8 --bind-to none "
        "/v/bin/python -m hybridmpi train jobs/lm.toml",
    ),
    "Open MPI 4.1, which calls shared memory by another name": (
        Situation(OPEN_MPI_4, "/usr/bin/mpirun", 3, COMMAND, cores=2),
        "OMP_NUM_THREADS=1 NUMBA_NUM_THREADS=1 OMPI_MCA_pml=ob1 OMPI_MCA_btl=self,vader,tcp OMPI_MCA_osc='^ucx' "
        "OMPI_MCA_mpi_yield_when_idle=1 "
        "/usr/bin/mpirun -n 3 --bind-to none --oversubscribe /v/bin/python -m hybridmpi train jobs/lm.toml",
    ),
    "Open MPI, a user without a home": (
        Situation(OPEN_MPI, "/v/bin/mpirun", 1, COMMAND, TWO_HOSTS[:1], fabric=True, home="/nowhere"),
        "OMP_NUM_THREADS=1 NUMBA_NUM_THREADS=1 OMPI_MCA_pml=ob1 OMPI_MCA_btl=self,sm,tcp OMPI_MCA_osc='^ucx' "
        "OMPI_MCA_mpi_yield_when_idle=1 HOME=/nowhere "
        "/v/bin/mpirun -n 1 --bind-to none --host a:2 -x OMP_NUM_THREADS -x NUMBA_NUM_THREADS -x OMPI_MCA_pml "
        "-x OMPI_MCA_btl -x OMPI_MCA_osc -x OMPI_MCA_mpi_yield_when_idle /v/bin/python -m hybridmpi train jobs/lm.toml",
    ),
    "Intel MPI, one host": (
        Situation(INTEL_MPI, "/v/bin/mpiexec", 3, COMMAND, cores=2, root=True, home="/nowhere"),
        "OMP_NUM_THREADS=1 NUMBA_NUM_THREADS=1 I_MPI_PIN=off "
        "/v/bin/mpiexec -n 3 /v/bin/python -m hybridmpi train jobs/lm.toml",
    ),
    "Intel MPI, two hosts over TCP": (
        Situation(INTEL_MPI, "/v/bin/mpiexec", 3, COMMAND, TWO_HOSTS, 2, 2),
        "OMP_NUM_THREADS=1 NUMBA_NUM_THREADS=1 I_MPI_PIN=off FI_PROVIDER=tcp "
        "/v/bin/mpiexec -n 3 -hosts a:2,b:1 /v/bin/python -m hybridmpi train jobs/lm.toml",
    ),
    "MPICH, one host": (
        Situation(MPICH, "/v/bin/mpiexec", 3, COMMAND, cores=2, root=True),
        "OMP_NUM_THREADS=1 NUMBA_NUM_THREADS=1 /v/bin/mpiexec -n 3 /v/bin/python -m hybridmpi train jobs/lm.toml",
    ),
    "MPICH, two hosts over TCP": (
        Situation(MPICH, "/v/bin/mpiexec", 3, COMMAND, TWO_HOSTS, 2, 2),
        "OMP_NUM_THREADS=1 NUMBA_NUM_THREADS=1 MPIR_CVAR_CH4_NETMOD=ofi FI_PROVIDER=tcp "
        "/v/bin/mpiexec -n 3 -hosts a:2,b:1 /v/bin/python -m hybridmpi train jobs/lm.toml",
    ),
    "MPICH, two hosts with InfiniBand": (
        Situation(MPICH, "/v/bin/mpiexec", 3, COMMAND, TWO_HOSTS, 2, 2, fabric=True),
        "OMP_NUM_THREADS=1 NUMBA_NUM_THREADS=1 "
        "/v/bin/mpiexec -n 3 -hosts a:2,b:1 /v/bin/python -m hybridmpi train jobs/lm.toml",
    ),
}


@pytest.mark.parametrize("name", GOLDEN)
def test_golden_command_lines(name):
    situation, expected = GOLDEN[name]
    assert launch.as_shell(*command_line(situation)) == expected


@given(st.lists(st.text(alphabet=st.characters(codec="ascii", exclude_characters="\0")), max_size=4))
def test_the_printed_line_is_what_a_shell_reads(arguments):
    assignments, argv = command_line(Situation(OPEN_MPI, "/v/bin/mpirun", 2, ("program", *arguments)))
    words = shlex.split(launch.as_shell(assignments, argv))
    assert words == [f"{name}={value}" for name, value in assignments.items()] + argv


def test_hosts():
    assert parse_hosts("a,b", 3) == [("a", 2), ("b", 1)]
    assert parse_hosts("a,b,c", 2) == [("a", 1), ("b", 1)]
    assert parse_hosts("node-1.x:4, node-2.x:4", 6) == [("node-1.x", 4), ("node-2.x", 2)]
    assert parse_hosts("a:4,b:4", 3) == [("a", 3)]
    for text, message in (
        ("a:1,b:1", "has places for 2 ranks, 3 were asked for"),
        ("a,b:2", "expected names such as a,b or"),
        ("a,,b", "expected names"),
        ("a:0", "expected names"),
        ("a b", "expected names"),
        ("a,a", "named twice"),
    ):
        with pytest.raises(UsageError, match=message):
            parse_hosts(text, 3)


def test_what_a_rank_runs():
    ours = [sys.executable, "-P", "-m", "hybridmpi"]
    assert launch.resolve(["train", "job.toml", "--set", "a.b=c"]) == [*ours, "train", "job.toml", "--set", "a.b=c"]
    assert launch.resolve(["python", "x.py", "-n", "3"]) == [sys.executable, "x.py", "-n", "3"]
    assert launch.resolve(["sh", "-c", "true"]) == ["sh", "-c", "true"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--", "train"], "-n is missing"),
        (["-n", "0", "--", "train"], "-n 0: expected the number of ranks"),
        (["-n", "2"], "no command to start"),
        (["-n", "2", "--"], "no command to start"),
        (["-n", "2", "--", "trian"], "did you mean 'train'?"),
        (["-n", "2", "--", "no-file.py"], "expected python no-file.py"),
        (["-n", "2", "--", "launch"], "cannot start 'launch'"),
    ],
)
def test_wrong_usage(arguments, message, capsys):
    assert main(["launch", *arguments]) == 2
    error = capsys.readouterr().err
    assert error.startswith("hybridmpi: error: ") and message in error


def test_not_under_mpi(monkeypatch, capsys):
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "2")
    assert main(["launch", "-n", "2", "--", "train"]) == 2
    assert "itself one of several ranks (OMPI_COMM_WORLD_SIZE=2)" in capsys.readouterr().err


def fake_launcher(folder, name, text):
    folder.mkdir(exist_ok=True)
    path = folder / name
    path.write_text(f"#!/bin/sh\ncat <<'END'\n{text}\nEND\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


@pytest.fixture
def no_launcher_here(monkeypatch, tmp_path):
    """A Python without a launcher beside it."""
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python" / "bin" / "python"))


def test_launcher_of_the_same_mpi_is_taken(tmp_path, no_launcher_here):
    foreign = fake_launcher(tmp_path / "first", "mpirun", "mpirun (Open MPI) 4.1.4")
    right = fake_launcher(tmp_path / "second", "mpirun", "mpirun (Open MPI) 5.0.3")
    hydra = fake_launcher(tmp_path / "first", "mpiexec", "HYDRA build details:\n    Version:      5.0.2")
    path = f"{tmp_path / 'first'}:{tmp_path / 'second'}"
    assert mpirun.identify(foreign) == ((OPEN_MPI_4, "4.1.4"), "is of Open MPI 4.1.4")
    assert mpirun.find_launcher(Library(OPEN_MPI, "5.0.11", ""), str(tmp_path / "second")) == right
    assert mpirun.find_launcher(Library(MPICH, "5.0.2", ""), path) == hydra
    prefix = tmp_path / "prefix"
    prefix.mkdir()
    own = fake_launcher(prefix / "bin", "mpirun", "mpirun (Open MPI) 5.0.11")
    assert mpirun.find_launcher(Library(OPEN_MPI, "5.0.11", str(prefix / "lib" / "libmpi.so.40")), path) == own


def test_launcher_of_another_mpi_is_refused(tmp_path, no_launcher_here):
    fake_launcher(tmp_path / "bin", "mpiexec", "mpiexec (Open MPI) 5.0.11")
    fake_launcher(tmp_path / "bin", "mpirun", "who knows")
    with pytest.raises(LaunchError) as caught:
        mpirun.find_launcher(Library(MPICH, "5.0.2", "/v/lib/libmpi.so.12"), str(tmp_path / "bin"))
    text = str(caught.value)
    assert "mpi4py loads MPICH 5.0.2 (/v/lib/libmpi.so.12)" in text
    assert "mpiexec is of Open MPI 5.0.11" in text and "mpirun is of an MPI that is not known: who knows" in text
    assert "pip install mpich==5.0.2" in text
    with pytest.raises(LaunchError, match="no mpirun or mpirun.openmpi at all"):
        mpirun.find_launcher(Library(OPEN_MPI, "5.0.11", ""), str(tmp_path / "nowhere"))


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ('["Open MPI v5.0.11, package: x", ["/v/libmpi.so.40"]]', Library(OPEN_MPI, "5.0.11", "/v/libmpi.so.40")),
        ('["MPICH Version:      5.0.2\\nMPICH Device: ch4", []]', Library(MPICH, "5.0.2", "")),
        ('["Intel(R) MPI Library 2021.18.1 for Linux* OS\\n", []]', Library(INTEL_MPI, "2021.18.1", "")),
        ('["Open MPI v4.1.4, package: Debian", ["/l/libmpi.so.40"]]', Library(OPEN_MPI_4, "4.1.4", "/l/libmpi.so.40")),
    ],
)
def test_library_of_mpi4py(monkeypatch, tmp_path, answer, expected):
    monkeypatch.setattr(sys, "executable", fake_launcher(tmp_path / "bin", "python", answer))
    assert mpirun.find_library() == expected


def test_library_that_cannot_be_loaded(monkeypatch, tmp_path):
    python = fake_launcher(tmp_path / "bin", "python", "")
    monkeypatch.setattr(sys, "executable", python)
    with open(python, "a") as script:
        script.write("echo \"ModuleNotFoundError: No module named 'mpi4py'\" >&2; exit 1\n")
    with pytest.raises(LaunchError, match="cannot load MPI in .*No module named 'mpi4py'. Install one beside it: pip"):
        mpirun.find_library()
    fake_launcher(tmp_path / "bin", "python", '["MPI VERSION    : CRAY MPICH version 8.1.29\\n", []]')
    with pytest.raises(LaunchError, match="does not know: MPI VERSION .* CRAY .* Start the ranks with its own"):
        mpirun.find_library()


@contextmanager
def launched(*arguments, ranks=2):
    """A running `hybridmpi launch`; whatever it has left is killed at the end (the launcher has a group of its own)."""
    line = [sys.executable, "-m", "hybridmpi", "launch", "-n", str(ranks), "--", *arguments]
    environment = {name: value for name, value in os.environ.items() if name not in launch.UNDER_MPI}
    process = subprocess.Popen(
        line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment, start_new_session=True
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)  # the launcher and its ranks end with it
        process.communicate(timeout=20)


@pytest.fixture(scope="module")
def mpi():
    """Skip where there is no MPI that could be launched."""
    try:
        mpirun.find_launcher(mpirun.find_library())
    except LaunchError as error:
        pytest.skip(str(error))


RANK = "from mpi4py import MPI; import os, sys; c = MPI.COMM_WORLD; "


def test_two_ranks(mpi):
    code = RANK + "print(c.rank, c.size, os.environ['OMP_NUM_THREADS']); c.Barrier(); sys.exit(75)"
    with launched("python", "-c", code) as process:
        output, error = process.communicate(timeout=60)
    threads = os.environ.get("OMP_NUM_THREADS", str(max(1, len(os.sched_getaffinity(0)) // 2)))
    assert sorted(output.splitlines()) == [f"0 2 {threads}", f"1 2 {threads}"]
    assert process.returncode == 75
    assert error.splitlines()[0].endswith(shlex.join([sys.executable, "-c", code]))


WAIT = RANK + (
    "import signal, time; got = []; signal.signal(signal.SIGUSR1, lambda *s: got.append(1)); c.Barrier()\n"
    "print('ready', os.getpid(), flush=True)\n"
    "end = time.time() + 30\n"
    "while not got and time.time() < end: time.sleep(0.02)\n"
    "time.sleep(0.6); print('asked' if got else 'never', flush=True); c.Barrier(); sys.exit(75)"
)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR2])
def test_signals_reach_the_ranks_which_end_by_themselves(mpi, number):
    """Each gets half a second after the signal, which Open MPI's mpirun by itself would not give for TERM and INT."""
    with launched("python", "-c", WAIT) as process:
        for _ in range(2):
            assert process.stdout.readline().startswith("ready")
        process.send_signal(number)
        output, _ = process.communicate(timeout=60)
    assert output.splitlines() == ["asked", "asked"]
    assert process.returncode == 75


@pytest.mark.parametrize("end", ["two signals", "kill"])
def test_ends_at_once_and_leaves_nothing(mpi, end):
    with launched(
        "python",
        "-c",
        RANK + "import time, signal; signal.signal(signal.SIGUSR1, signal.SIG_IGN); "
        "c.Barrier(); print(os.getpid(), flush=True); time.sleep(60)",
    ) as process:
        ranks = [int(process.stdout.readline()) for _ in range(2)]
        if end == "kill":
            process.kill()
        else:
            process.send_signal(signal.SIGTERM)
            time.sleep(0.3)
            process.send_signal(signal.SIGTERM)
        process.wait(timeout=20)
        assert process.returncode != 0
        deadline = time.time() + 10
        while any(alive(rank) for rank in ranks):
            assert time.time() < deadline, "ranks are left"
            time.sleep(0.05)


def alive(pid):
    """Return whether a process runs; a zombie, which waits for a parent that does not look, does not."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_a_process_that_was_alone_starts_ranks(tmp_path):
    """What MPI is told at the start of a process alone is not for its children."""
    ranks = "import hybridmpi as hm; hm.run(lambda world: print('rank', world.gather(world.rank)), servers=0)"
    program = tmp_path / "program.py"
    program.write_text(
        "import os, subprocess, sys\n"
        "before = dict(os.environ)\n"
        "import hybridmpi as hm\n"
        "hm.run(lambda world: world.barrier())\n"
        "added = {name for name in set(os.environ) - set(before) if name.startswith(('OMPI_', 'I_MPI_'))}\n"
        "assert not added, added\n"
        f"line = [sys.executable, '-m', 'hybridmpi', 'launch', '-n', '2', '--', 'python', '-c', {ranks!r}]\n"
        "sys.exit(subprocess.run(line).returncode)\n"
    )
    outcome = run_process([sys.executable, str(program)], 60)
    assert outcome.code == 0 and outcome.output.count("rank [0, 1]") == 2, str(outcome)
