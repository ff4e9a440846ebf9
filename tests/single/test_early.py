"""What is wrong with a job file, a path or an output is said before anything is done: one message, exit status 2."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import hybridmpi as hm
from hybridmpi.cli.main import main
from hybridmpi.cli.mpirun import parse_hosts
from hybridmpi.errors import UsageError
from hybridmpi.paths import expanded, path_argument, require_output, try_writing
from hybridmpi.slurm.texts import text_of
from hybridmpi.training.job import MOST_BYTES, read_job
from hybridmpi.training.kinds import KINDS

JOBS = Path(__file__).parents[2] / "jobs"
TEXTS = {kind: (JOBS / f"{kind}.toml").read_text(encoding="utf-8") for kind in KINDS}


@pytest.fixture
def write(tmp_path):
    def write(text) -> Path:
        path = tmp_path / "job.toml"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    return write


def refused(call, *arguments):
    """Return the one line that a refusal says."""
    with pytest.raises(UsageError) as caught:
        call(*arguments)
    said = str(caught.value)
    assert "\n" not in said and len(said) < 1500, said
    return said


# -- job files -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"a = " + b"[" * 5000, "nested too deep"),
        (b"training = " + b"{a = " * 3000, "nested too deep"),
        (b"[training]\nsteps = " + b"9" * 5000, "is not TOML: "),
        (b"[training]\nsteps = 0x" + b"f" * 5000, "steps = ... (a whole number)"),
        (b"[training]\nsteps = 9223372036854775808", "expected a whole number, at least 0 in 64 bits"),
        (b"[training]\nseed = 4294967296", "expected a whole number, at least 0 and below 4294967296"),
        (b"[data]\nseed = 4294967297\n[model]\nkind = 'ctr'", "below 4294967296"),
        (b"[training]\nclip = -inf", "clip = -inf (a fraction); expected a number, at least 0"),
        (b"[training]\nclip = 1e39", "too large for float32, in which it is used"),
        (b"[training]\nclip = 1e-46", "too small for float32, in which it is used"),
        (b"[training]\nclip = 1979-05-27", "clip = 1979-05-27 (date)"),
        (b"[training]\nclip = 07:32:00", "clip = 07:32:00 (time)"),
        (b"[training]\nclip = {a = 1}", "clip = {'a': 1} (a table)"),
        (b"training.clip.a = 1", "clip = {'a': 1} (a table)"),
        (b"[training]\nclip = true", "clip = true (a truth value)"),
        (b"[sparse]\nprefetch = 1", "prefetch = 1 (a whole number); expected true or false"),
        (b"[sparse]\nparts = 1000000", "parts = 1000000 (a whole number); expected a whole number, at least 0 and"),
        (b"[world]\nservers = [0, 'a']", "servers = [0, 'a'] (a list)"),
        (b"[world]\nservers = [[0]]", "servers = [[0]] (a list)"),
        (b"[world]\nservers = [true]", "servers = [True] (a list)"),
        (b"[[training]]\nsteps = 1", "training is [{'steps': 1}] (a list); expected a section [training]"),
        (b"[model]\nkind = ['lm']", "kind = ['lm'] (a list); expected \"lm\" or"),
        (b'[data]\nsource = ""', 'source = "" names nothing'),
        (b'[data]\nsource = "a\\u0000b"', "cannot hold the character NUL"),
        (b'[checkpoint]\ndirectory = " "', "names nothing"),
        (b'[checkpoint]\ndirectory = "~nobody-here/x"', "no home folder of ~nobody-here is known"),
        (b'[training]\n"st\\u001beps" = 1', "st\\x1beps: unknown key"),
        (b'["a\\nb"]\nx = 1', "unknown section [a\\nb]"),
        (b"[optimizer]\nrate = 1e39", "[optimizer] rate = 1e+39 (a fraction); expected a number, above 0; it is too"),
        (b"[optimizer]\nkind = 3", "[optimizer] "),
        (b"[optimizer]\nkind = 'adam'\nrate = true", "[optimizer] rate = true (a truth value); expected a number"),
        (b"[optimizer]\ninitial = 0\nepsilon = 1e-30", "[optimizer] epsilon = 1e-30 "),
        (b"[data]\nsource = 'caf\xe9'", "is not TOML: 'utf-8' codec can't decode"),
        (b"\xff\xfe[\x00t\x00", "is not TOML"),
        (b"[training]\nsteps = 1" + b"\n" * MOST_BYTES, "has more than 1 MiB"),
        (b"\x00" * 40, "is not TOML"),
    ],
)
def test_values_and_files_that_cannot_be(write, content, said):
    path = write(content)
    assert said in refused(read_job, path)


def test_files_as_editors_leave_them(write):
    text = TEXTS["lm"]
    expected = read_job(write(text))
    assert read_job(write(b"\xef\xbb\xbf" + text.encode())) == expected
    assert read_job(write(text.replace("\n", "\r\n"))) == expected
    assert read_job(write(b"")) == read_job(write(b"\xef\xbb\xbf")) == read_job(write("# nothing\r\n"))
    assert read_job(write("[training]\nclip = -0.0\n")).training.clip == 0 and "-" not in str(
        read_job(write("[training]\nclip = -0.0\n")).training.clip
    )


def test_what_is_no_file(tmp_path):
    pipe, listening = tmp_path / "pipe", tmp_path / "socket"
    os.mkfifo(pipe)
    server = socket.socket(socket.AF_UNIX)
    server.bind(os.path.relpath(listening))
    for path in (pipe, listening, "/dev/null"):
        assert "is no file but a pipe, a socket or a device" in refused(read_job, path)
    server.close()
    assert "cannot be read: Is a directory" in refused(read_job, tmp_path)
    assert "cannot be read: File name too long" in refused(read_job, "x" * 300)
    assert "NUL" in refused(read_job, "a\0b")
    assert "is not UTF-8" in refused(read_job, os.fsdecode(b"caf\xe9"))


def test_the_home_in_every_path_of_a_job(write, monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    paths = {
        "lm": ["checkpoint.directory", "metrics.path", "data.source", "data.cache"],
        "nmt": ["data.source", "data.target"],
        "trees": ["data.source", "data.dev"],
        "ctr": ["data.source"],
    }
    for kind, keys in paths.items():
        for key in keys:
            job = read_job(write(""), [f"model.kind={kind}", f"{key}=~/a b"])
            section, name = key.split(".")
            assert getattr(getattr(job, section), name) == str(tmp_path / "home" / "a b")
    assert read_job(write(""), ["checkpoint.directory=$HOME/~/x"]).checkpoint.directory == "$HOME/~/x"
    assert path_argument("~/x") == tmp_path / "home" / "x" and expanded("./~x", "") == "./~x"


@pytest.mark.parametrize(
    "override",
    [
        "",
        "=",
        ".",
        ".=",
        "a",
        "a.b",
        "=.",
        "training.=3",
        ".steps=3",
        "training.steps=",
        "training.steps=[",
        "training.steps=\n",
        "training.steps=" + "[" * 5000,
        "training.steps=" + "9" * 5000,
        "training.steps=1\nx=2",
        "training..steps=1",
        "model.kind=[]",
        "data.source=",
        "data.source=\ud800",
        "optimizer.rate=1e999",
        "optimizer.kind={}",
        "\x00.\x00=\x00",
    ],
)
def test_overrides_that_cannot_be(write, override):
    assert refused(read_job, write(""), [override])


LINES = {kind: text.splitlines() for kind, text in TEXTS.items()}
VALUES = st.one_of(
    st.sampled_from(
        [
            "nan",
            "-inf",
            "true",
            "[]",
            "[[]]",
            "{}",
            "''",
            '"\\u0000"',
            "1e400",
            "-0.0",
            "1979-05-27",
            "'~x/y'",
            "[1, 'a']",
            "{a.b = 1}",
            "0x7fffffffffffffffff",
            "1_000",
            "'''\n'''",
            '"lm"',
            "0o17",
            "[true]",
        ]
    ),
    st.integers().map(str),
    st.floats().map(repr),
    st.text(max_size=8),
)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_mutations_of_a_job_file_are_read_or_refused(tmp_path, data):
    kind = data.draw(st.sampled_from(sorted(KINDS)))
    lines = list(LINES[kind])
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.integers(0, len(lines) - 1))
        way = data.draw(st.sampled_from(["value", "drop", "twice", "text", "swap"]))
        if way == "value" and "=" in lines[place]:
            lines[place] = lines[place].split("=")[0] + "= " + data.draw(VALUES)
        elif way == "drop":
            lines[place] = lines[place][: data.draw(st.integers(0, len(lines[place])))]
        elif way == "twice":
            lines.insert(place, lines[place])
        elif way == "swap":
            other = data.draw(st.integers(0, len(lines) - 1))
            lines[place], lines[other] = lines[other], lines[place]
        else:
            lines.insert(place, data.draw(st.text(max_size=20)))
    path = tmp_path / "mutated.toml"
    path.write_bytes("\n".join(lines).encode(errors="surrogatepass"))
    try:
        read_job(path)
    except UsageError as error:
        assert str(path) in str(error) and "\n" not in str(error)


# -- sizes -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sizes", [(10**12, 8), (8, 10**12), (10**9, 10**9)])
@pytest.mark.parametrize("kind", [hm.nn.Linear, hm.nn.Embedding])
def test_models_larger_than_the_machine(kind, sizes):
    class Model(hm.nn.Module):
        def __init__(self):
            self.part = kind(*sizes)

        def loss(self, batch):
            raise AssertionError

    with hm.World(0) as world:
        said = refused(lambda: hm.Trainer(world, Model(), hm.optim.Adam(0.1)))
    assert "the parameters need " in said and "'part" in said and "GiB; the machine has " in said


# -- outputs -------------------------------------------------------------------------------------------------------


def test_an_output_overwrites_nothing_but_what_is_known(tmp_path):
    read, there, made = tmp_path / "read", tmp_path / "there", tmp_path / "made"
    read.write_text("input")
    there.write_text("something")
    made.write_bytes(b"by us")
    link, dangling = tmp_path / "link", tmp_path / "dangling"
    link.symlink_to(read)
    dangling.symlink_to(tmp_path / "nothing")
    before = sorted(os.listdir(tmp_path))
    for force in (False, True):
        for same in (read, link, tmp_path / "." / "read"):
            said = refused(lambda: require_output(same, "-o", force, [read]))  # noqa: B023
            assert said == f"-o {same}: that is what the command reads; expected another name"
        assert "that is a directory" in refused(require_output, tmp_path, "-o", force)
        for odd in (dangling, Path("/dev/null")):
            assert "that is a device, a pipe or a link to nothing" in refused(require_output, odd, "-o", force)
        assert "there is no folder" in refused(require_output, tmp_path / "no" / "x", "-o", force)
        assert "there is no folder" in refused(require_output, there / "x", "-o", force)
        assert "cannot be written: File name too long" in refused(require_output, tmp_path / ("x" * 300), "-o", force)
        assert "cannot be written" in refused(require_output, Path("/proc/x"), "-o", force)
        require_output(tmp_path / "new", "-o", force, [read])
        require_output(made, "-o", force, mark=b"by us")
    assert refused(require_output, there, "-o").endswith("the file exists; give another name, or --force to replace it")
    said = "the file exists and was not made by this command; remove it"
    assert said in refused(lambda: require_output(there, "-o", mark=b"by us", remedy="remove it"))
    require_output(there, "-o", force=True)
    assert sorted(os.listdir(tmp_path)) == before and there.read_text() == "something"


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full here")
def test_a_full_disk_is_found_by_writing(tmp_path, monkeypatch):
    opened = os.open

    def full(path, flags, *rest):
        return opened("/dev/full", os.O_WRONLY) if ".try" in str(path) else opened(path, flags, *rest)

    monkeypatch.setattr(os, "open", full)
    monkeypatch.setattr(os, "unlink", lambda path: None)
    with pytest.raises(OSError, match="No space left"):
        try_writing(tmp_path / "x.try")
    assert "cannot be written: No space left on device" in refused(require_output, tmp_path / "x", "-o")


def run(capsys, *arguments):
    try:
        status = main([str(argument) for argument in arguments])
    except SystemExit as left:  # argparse
        status = left.code
    out, err = capsys.readouterr()
    assert "Traceback" not in err
    return status, out, err


def test_commands_keep_what_is_there(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("lm.toml").write_text(TEXTS["lm"])
    Path("old").write_text("old")
    render = ("slurm", "render", "lm.toml", "--mpi", "pmix", "--bin", "bin")
    for force in ((), ("--force",)):
        status, _, err = run(capsys, *render, "-o", "lm.toml", *force)
        assert status == 2 and "-o lm.toml: that is what the command reads" in err
    assert Path("lm.toml").read_text() == TEXTS["lm"]
    for command in ((*render, "-o", "old"), ("job", "lm", "old")):
        status, _, err = run(capsys, *command)
        assert (
            status == 2
            and "old: the file exists; give another name, or --force" in err
            and Path("old").read_text() == "old"
        )
        assert run(capsys, *command, "--force")[0] == 0 and Path("old").read_text() != "old"
        Path("old").write_text("old")
    status, _, err = run(capsys, "plot", "nothing", "-o", "old.png")
    assert status == 2
    status, _, err = run(capsys, "job", "lm", "a\0b")
    assert status == 2 and "NUL" in err


def test_a_picture_replaces_only_a_picture_of_its_own(tmp_path):
    pytest.importorskip("matplotlib")
    from matplotlib.figure import Figure

    from hybridmpi.pictures import require_picture, save

    for suffix in (".png", ".svg", ".pdf"):
        file = tmp_path / f"a{suffix}"
        Figure(figsize=(1, 1)).savefig(file)
        assert "was not made by this command" in refused(require_picture, file, "-o", False)
        require_picture(file, "-o", force=True)
        save(Figure(figsize=(1, 1)), file, "-o", dpi=20)
        require_picture(file, "-o", force=False)


@pytest.mark.parametrize("hosts", ["", " ", ",", "a,", ",a", "a:", ":2", "a:0", "a b", "a:-1", "a:99999999999x"])
def test_hosts_that_are_none(hosts):
    assert "--hosts" in refused(parse_hosts, hosts, 2)


def test_no_hosts_are_not_this_one():
    line = [sys.executable, "-m", "hybridmpi", "launch", "-n", "2", "--hosts", "", "--dry-run", "--", "true"]
    found = subprocess.run(line, capture_output=True, text=True, timeout=60)
    assert found.returncode == 2 and 'error: --hosts ""' in found.stderr


# -- texts of bash -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "module load x &&",
        "module load x ||",
        "echo 'x",
        'echo "x',
        "echo `x",
        "echo $(x",
        "echo ${x",
        "if true",
        "if true; then",
        "while true; do",
        "case x in",
        "x=(",
        "f() {",
        "{ true",
        "( true",
        "[[ -n x",
        "cat << EOF",
        "cat << EOF\nx",
        "cat <<-'E'\nE2",
        "module load x \\",
        "# a comment \\",
        "true |",
        "fi",
        "}",
        ")",
        "done",
        "esac",
        "module load x &&\n# comment",
        "a=1 \\\\\\",
    ],
)
def test_texts_that_would_take_in_what_follows(text):
    for option in ("--prologue", "--epilogue"):
        with pytest.raises(UsageError, match=option):
            text_of(text, option)
    with pytest.raises(UsageError, match="--epilogue"):
        text_of(text + "\n\n", "--epilogue")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "module load x",
        "cat << EOF\nx\nEOF",
        "if true; then\n  x\nfi",
        "# it's",
        "echo 'a\nb'",
        "exit 3",
        "exec true",
        "echo \\\\",
        "f() { true; }",
        "a &",
        "export X=$(date)",
        "\n\n",
    ],
)
def test_whole_texts(text):
    assert text_of(text, "--prologue") == text


def test_texts_of_files(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    file = tmp_path / "env.sh"
    file.write_bytes(b"module load x\r\nmodule load y\r\n")
    assert text_of(str(file), "--prologue") == text_of("~/env.sh", "--prologue") == "module load x\nmodule load y\n"
    file.write_bytes(b"echo caf\xe9")
    assert "is not UTF-8" in refused(text_of, str(file), "--prologue")
    file.write_bytes(b"a\0b")
    assert "NUL" in refused(text_of, str(file), "--prologue")
    assert text_of("x" * 5000, "--prologue") == "x" * 5000
