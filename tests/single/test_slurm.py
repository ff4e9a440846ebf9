"""`hybridmpi slurm render`: jobs/slurm is what it writes, and sbatch and bash read what was meant."""

import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hybridmpi.cli.main import main
from hybridmpi.errors import UsageError
from hybridmpi.slurm import sweep
from hybridmpi.slurm.directives import lines, parse_directives
from hybridmpi.slurm.known import OF_NODES, OPTIONS, OURS
from hybridmpi.slurm.request import Request
from hybridmpi.slurm.script import render
from hybridmpi.slurm.values import directive, seconds_of
from hybridmpi.training.job import default_job, read_job

ROOT = Path(__file__).parents[2]
SCRIPTS = sorted((ROOT / "jobs" / "slurm").glob("*.sbatch"))
SHELL_SCRIPTS = [*SCRIPTS, *sorted((ROOT / "jobs" / "mpirun").glob("*.sh"))]
PLACE = ["--mpi", "pmix", "--bin", ".venv/bin"]
JOB = "jobs/lm.toml"
PRINTABLE = st.text(st.characters(exclude_categories=["C", "Zl", "Zp"]), min_size=1, max_size=12)


def rendered(capsys, *arguments, place=PLACE):
    """Return (exit status, script, what was said)."""
    capsys.readouterr()
    status = main(["slurm", "render", *arguments, *place])
    return status, *capsys.readouterr()


def written_by(path):
    """Return the arguments of the command that a script says it was written by."""
    line = next(line for line in path.read_text().splitlines() if line.startswith("#   hybridmpi slurm render"))
    return shlex.split(line[4:])[3:]


def directives_of(script):
    """Return what sbatch reads, a list for each component."""
    found = [[]]
    for line in script.splitlines():
        if line == "#SBATCH hetjob":
            found.append([])
        elif line.startswith("#SBATCH "):
            found[-1].append(line.removeprefix("#SBATCH "))
    return found


def read_by_sbatch(line):
    """Return the arguments of a line, split as sbatch does it: src/sbatch/opt.c, _get_argument."""
    found, word, quote, escaped = [], "", "", False
    for c in line.removeprefix("#SBATCH"):
        if escaped:
            word, escaped = word + c, False
        elif c == "\\":
            escaped = True
        elif quote:
            word, quote = (word, "") if c == quote else (word + c, quote)
        elif c in "\"'":
            quote = c
        elif c == "#":
            break
        elif c in " \t":
            found, word = [*found, word] if word else found, ""
        else:
            word += c
    assert not quote and not escaped
    return [*found, word] if word else found


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_the_scripts_of_the_repository_are_what_render_writes(path, capsys, monkeypatch):
    """Byte by byte. To write one anew: run the command that stands in it, with -o."""
    monkeypatch.chdir(ROOT)
    status, script, _ = rendered(capsys, *written_by(path), place=[])
    assert status == 0 and script == path.read_text()
    for component in directives_of(script):
        assert component == sorted(component) and len(component) > 4


def test_there_is_a_script_of_each_form():
    assert [path.stem for path in SCRIPTS] == ["array", "heterogeneous", "plain", "requeue", "server-per-node"]
    for path in SHELL_SCRIPTS:
        assert path.stat().st_mode & 0o100, f"{path} is not executable"
    for path in SCRIPTS:
        assert [path.read_text().count(f"# EDIT {place}:") for place in (1, 2, 3, 4)] == [1, 1, 1, 1]


@pytest.mark.parametrize("path", SHELL_SCRIPTS, ids=lambda path: path.name)
def test_bash_reads_it_and_shellcheck_finds_nothing(path):
    subprocess.run(["bash", "-n", path], check=True, timeout=30)
    if shutil.which("shellcheck") is None:
        pytest.skip("shellcheck is not installed")
    found = subprocess.run(["shellcheck", path], capture_output=True, text=True, timeout=60)
    assert found.returncode == 0, found.stdout


@given(PRINTABLE)
def test_a_value_reaches_sbatch_as_it_is(value):
    assert read_by_sbatch(directive("comment", value)) == [f"--comment={value}"]


@given(st.lists(PRINTABLE, max_size=3), PRINTABLE, PRINTABLE)
def test_values_reach_the_shell_as_they_are(values, job_file, folder):
    settings = [f"data.source={value}" for value in values]
    script = render(Request(job_file, default_job("lm"), settings, bin=folder, tasks=[(f"training.seed={folder}",)]))
    assert f"JOB={shlex.quote(job_file)}\n" in script and f"BIN={shlex.quote(folder)}\n" in script
    assigned = next(line for line in script.splitlines() if line.startswith("SETTINGS=("))
    words = shlex.split(assigned.removeprefix("SETTINGS=(").removesuffix(")"))
    assert words == [word for setting in settings for word in ("--set", setting)]


def test_bash_reads_what_was_meant(tmp_path):
    """Once by bash itself: everything that it could take for its own."""
    odd = ["a b", "a'b", 'a"b', "$HOME", "`id`", "a\\b", "*", "~", "é中", ";", "#", "!x"]
    script = render(Request("x", default_job("lm"), [f"data.source={value}" for value in odd]))
    (line,) = (line for line in script.splitlines() if line.startswith("SETTINGS="))
    shown = subprocess.run(
        ["bash", "-c", line + '\nprintf "%s\\n" "${SETTINGS[@]}"'], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    assert shown[1::2] == [f"data.source={value}" for value in odd]


def test_what_makes_lines_of_its_own_is_refused(capsys):
    for text in ("comment=a\nb", "comment=a\rb", "comment=\0", "comment=a\x1bb"):
        with pytest.raises(UsageError, match="cannot stand in a line of a batch script"):
            parse_directives([text])
    status, script, _ = rendered(capsys, JOB, "--prologue", "true\nmodule load python # 'x'")
    assert status == 0 and "\ntrue\nmodule load python # 'x'\nBIN=.venv/bin\n" in script
    assert all(line.startswith("#") for line in script.partition("# EDIT 1")[0].splitlines() if line)


@pytest.mark.parametrize(
    ("time", "seconds"),
    [("90", 5400), ("1:30", 90), ("4:00:00", 14400), ("2-12", 216000), ("1-0:30", 88200), ("1-0:0:5", 86405)]
    + [("UNLIMITED", None), ("infinite", None), ("100:30", 6030), ("100:00:00", 360000)],
)
def test_times(time, seconds):
    assert seconds_of(time, "--time") == seconds


@pytest.mark.parametrize(
    "time", ["1:99", "0", "-1", "", "1:60:00", "1-24", "1-2-3", "1:2:3:4", "1h", "00:00", "٣", "1 "]
)
def test_times_that_cannot_be(time):
    with pytest.raises(UsageError, match=r"^--time .*: expected"):
        seconds_of(time, "--time")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--nodes", "0"], "--nodes 0: expected at least 1"),
        (["--ranks-per-node", "-1"], "--ranks-per-node -1: expected at least 1"),
        (["--restarts", "-1"], "--restarts -1: expected at least 0"),
        (["--time", "1:99"], "--time 1:99: expected minutes"),
        (["--time", "1", "--warning", "60"], "--warning 60: expected seconds from 1 up, less than --time 1"),
        (["--warning", "0"], "--warning 0: expected seconds from 1 up"),
        (["--mem", "4X"], "--mem 4X: expected a number with K, M, G or T"),
        (["--mem", "4G", "--directive", "mem-per-cpu=1G"], "--mem and --mem-per-cpu: sbatch takes one of"),
        (["--partition", ""], "sbatch's --partition needs a value"),
        (["--directive", "partion=x"], "sbatch has no option --partion; did you mean 'partition'?"),
        (["--directive", "p=x"], "give the long name"),
        (["--directive", "zzzzz"], "it has account, acctg-freq, batch"),
        (["--directive", "nodes=4"], "the script sets --nodes itself; it comes from --nodes"),
        (["--directive", "signal=B:USR1"], "it comes from --warning"),
        (["--directive", "contiguous=1"], "sbatch's --contiguous takes no value"),
        (["--directive", "licenses"], "sbatch's --licenses needs a value"),
        (["--directive", "mincpus=no"], "expected a whole number from 1 up"),
        (["--directive", "hold", "--directive=--hold"], "--hold is given twice"),
        (["--directive", "qos=a", "--qos", "b"], "--qos b says that already"),
        (["--set", "training.step=3"], "did you mean 'steps'?"),
        (["--set", "world.servers=2"], "--nodes 1 --ranks-per-node 2: 2 servers were asked for"),
        (["--sweep", "optimizer.rate"], "expected section.key=value,value"),
        (["--sweep", "optimizer.rate=1,1"], "a value is there twice"),
        (["--sweep", "optimizer.rate=1,"], "expected section.key=value,value"),
        (["--sweep", "training.steps=1,x"], "expected a whole number"),
        (["--sweep", "training.seed=1", "--sweep", "training.seed=2"], "--sweep training.seed: is there twice"),
        (["--sweep", "training.seed=1,2", "--set", "metrics.path=/m"], "all tasks would write /m"),
        (["--at-once", "2"], "--at-once is of the tasks of --sweep"),
        (["--server-cpus", "2"], "these are of --server-nodes"),
        (["--server-nodes", "1", "--mpi", "mpirun"], "mpirun does not start heterogeneous jobs"),
        (["--server-nodes", "1", "--set", "world.servers=2"], "--server-nodes says which ranks serve"),
        (["--server-nodes", "1", "--set", "sparse.mode=allreduce"], 'sparse.mode = "allreduce" has no servers'),
        (["--server-nodes", "1", "--sweep", "training.seed=1,2"], "Slurm has no arrays of heterogeneous jobs"),
        (["--prologue", "if true"], "--prologue if true: is no whole piece of bash by itself"),
        (["--prologue", "site/absent.sh"], "--prologue site/absent.sh: no such file here"),
        (["--prologue", "#SBATCH --exclusive"], "give it by --directive exclusive"),
        (["-o", "/no/where"], "-o /no/where: there is no folder '/no'; make it first"),
    ],
)
def test_wrong_usage(arguments, message, capsys, monkeypatch):
    monkeypatch.chdir(ROOT)
    place = PLACE if "--mpi" not in arguments else PLACE[2:]
    status, script, said = rendered(capsys, JOB, *arguments, place=place)
    assert status == 2 and not script, said
    assert said.startswith("hybridmpi: error: ") and message in said


def test_a_script_on_request(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(ROOT)
    hello = tmp_path / "hello.sh"
    hello.write_text("module load hello\n")
    path = tmp_path / "run.sbatch"
    status, script, said = rendered(
        capsys, JOB, "-o", str(path), "--nodes", "3", "--ranks-per-node", "2", "--restarts", "0", "--time", "2",
        "--account", "us them", "--directive=--exclusive", "--directive", "nice", "--directive", "mail-type=END,FAIL",
        "--prologue", str(hello), "--epilogue", 'echo "$status"', "--mpi", "mpirun", place=PLACE[2:],
    )  # fmt: skip
    assert status == 0 and not script and path.stat().st_mode & 0o111 == 0o111
    assert said.startswith(f"{path}: edit its four places, then: sbatch {path}\n")
    script = path.read_text()
    (asked,) = directives_of(script)
    assert asked == sorted(asked) and {'--account="us them"', "--exclusive", "--nice", "--mail-type=END,FAIL"} < {
        *asked
    }
    assert {"--no-requeue", "--signal=B:USR1@60", "--nodes=3", "--ntasks-per-node=2"} < {*asked}
    assert "##SBATCH --partition=NAME" in script and "##SBATCH --account" not in script
    assert "\nmodule load hello\nBIN=" in script and '\necho "$status"\n' in script and "RESTARTS=0\n" in script
    assert 'hybridmpi" launch -n "$SLURM_NTASKS" -- train' in script and "OMPI_MCA" not in script


def test_what_a_user_should_know(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(ROOT)
    _, _, said = rendered(capsys, JOB, "--set", "checkpoint.directory=/dev/shm/x", "--gres", "gpu:a100:2")
    assert "note: checkpoints go to /dev/shm/x: is /dev/shm the same on all nodes?" in said
    assert "note: checkpoint.every = 0: if a node fails" in said
    assert "note: --gres: training runs on the CPUs in this version" in said
    _, _, said = rendered(capsys, JOB, "--ranks-per-node", "1", "--set", "checkpoint.every=5")
    assert "note: no rank serves" in said and "checkpoint.every" not in said
    _, _, said = rendered(capsys, JOB, "--sweep", "training.seed=" + ",".join(map(str, range(1001))))
    assert "note: 1,001 tasks: Slurm takes 1,000 in one array" in said


def test_a_heterogeneous_job_asks_for_each_kind_of_nodes(capsys, monkeypatch):
    monkeypatch.chdir(ROOT)
    _, script, _ = rendered(
        capsys, JOB, "--nodes", "4", "--server-nodes", "2", "--servers-per-node", "3", "--account", "a", "--time", "5",
        "--partition", "gpu", "--gres", "gpu:4", "--directive", "mail-type=END", "--server-directive", "partition=fat",
    )  # fmt: skip
    serving, computing = directives_of(script)
    assert {"--account=a", "--partition=fat", "--nodes=2", "--ntasks-per-node=3", "--mail-type=END"} < {*serving}
    assert {"--account=a", "--partition=gpu", "--nodes=4", "--gres=gpu:4", "--time=5"} < {*computing}
    assert not {"--mail-type=END", "--requeue"} & {*computing} and "--gres=gpu:4" not in serving


def test_a_name_with_a_line_break_asks_sbatch_for_nothing():
    script = render(Request("odd\n#SBATCH --nodes=9.toml", default_job("lm")))
    asked, _, rest = script.partition("\n# EDIT 2")
    assert "--nodes=9" not in [word for line in asked.splitlines() for word in read_by_sbatch(line)]
    assert '#SBATCH --job-name="odd?#SBATCH --nodes=9"\n' in asked and "\nJOB='odd\n#SBATCH" in rest


def test_sweeps():
    assert sweep.tasks(["a.b=1,2", "c.d=x"]) == [("a.b=1", "c.d=x"), ("a.b=2", "c.d=x")]
    assert sweep.tasks(['a.b=[1, 2], [3],"x,y"']) == [("a.b=[1, 2]",), ("a.b=[3]",), ('a.b="x,y"',)]
    assert sweep.tasks([]) == []
    job = read_job(ROOT / JOB)
    tasks = sweep.tasks(["optimizer.rate=0.1,0.2", "data.source=a/b"])
    assert sweep.directories(tasks, job) == ["runs/lm/rate-0.1_source-a-b", "runs/lm/rate-0.2_source-a-b"]
    assert sweep.directories(sweep.tasks(["data.source=a/b,a:b"]), job)[1] == "runs/lm/1-source-a-b"


def test_the_table_of_options_holds_what_sbatch_has_here():
    """Against the man page, where there is one; it lists no option that the table lacks."""
    assert {*OURS} <= {*OPTIONS} and {*OF_NODES} <= {*OPTIONS}
    assert lines({name: "1" for name in ("account", "nodes")}) == ["#SBATCH --account=1", "#SBATCH --nodes=1"]
