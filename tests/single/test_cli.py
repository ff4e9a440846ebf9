"""The `hybridmpi` command: finding the subcommand, errors as text, and what is not loaded."""

import subprocess
import sys
from types import ModuleType, SimpleNamespace

import pytest

from hybridmpi.cli import main as cli
from hybridmpi.errors import DataError, HybridMPIError, UsageError


@pytest.fixture
def command(monkeypatch):
    """A command `probe` that runs the function it is given."""

    def install(function):
        module = ModuleType("probe_command")
        module.add_arguments = lambda parser: parser.add_argument("--value", type=int, default=0)
        module.run = function
        monkeypatch.setitem(sys.modules, "probe_command", module)
        monkeypatch.setitem(cli.COMMANDS, "probe", ("probe_command", "answer"))

    return install


def test_help_lists_the_commands_and_loads_nothing_heavy():
    code = "import sys; from hybridmpi.cli.main import main; main(['--help']); print(sorted(sys.modules))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    for name, (_, text) in cli.COMMANDS.items():
        assert f"  {name} " in result.stdout and text in result.stdout
    for heavy in ("numpy", "numba", "mpi4py", "h5py"):
        assert f"'{heavy}'" not in result.stdout


def test_version(capsys):
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("hybridmpi 0.")


def test_no_command_is_wrong_usage(capsys):
    assert cli.main([]) == 2
    assert "commands:" in capsys.readouterr().err


def test_unknown_command_names_the_nearest(capsys):
    assert cli.main(["trian"]) == 2
    assert capsys.readouterr().err == "hybridmpi: error: no command 'trian': did you mean 'train'?\n"
    assert cli.main(["xyz"]) == 2
    assert "expected one of launch, train" in capsys.readouterr().err


def test_a_command_gets_its_arguments_and_gives_the_status(command):
    command(lambda options: options.value)
    assert cli.main(["probe", "--value", "75"]) == 75
    with pytest.raises(SystemExit) as caught:
        cli.main(["probe", "--vale", "75"])
    assert caught.value.code == 2


@pytest.mark.parametrize(("error", "status"), [(UsageError, 2), (DataError, 2), (HybridMPIError, 1)])
def test_errors_become_text_and_status(command, capsys, error, status):
    def fail(options):
        raise error("what, where, expected")

    command(fail)
    assert cli.main(["probe"]) == status
    assert capsys.readouterr().err == "hybridmpi: error: what, where, expected\n"


def test_on_one_of_several_ranks_errors_go_up(command, monkeypatch):
    def fail(options):
        raise DataError("on this rank only")

    command(fail)
    several = SimpleNamespace(
        Is_initialized=lambda: True, Is_finalized=lambda: False, COMM_WORLD=SimpleNamespace(size=2)
    )
    monkeypatch.setitem(sys.modules, "mpi4py.MPI", several)
    with pytest.raises(DataError):
        cli.main(["probe"])
    several.COMM_WORLD.size = 1
    assert cli.main(["probe"]) == 2


def test_a_reader_that_has_seen_enough_is_no_failure():
    code = (
        "import sys, types; from hybridmpi.cli import main as m\n"
        "p = types.ModuleType('p'); p.add_arguments = lambda parser: None\n"
        "p.run = lambda o: print('line\\n' * 100000) or 0\n"
        "sys.modules['p'] = p; m.COMMANDS['p'] = ('p', 'print'); sys.exit(m.main(['p']))"
    )
    line = f'{sys.executable} -c "$CODE" | head -1'
    result = subprocess.run(["bash", "-c", line], env={"CODE": code}, capture_output=True, text=True, timeout=60)
    assert (result.stdout, result.stderr) == ("line\n", "")


def test_python_m_hybridmpi():
    result = subprocess.run([sys.executable, "-m", "hybridmpi", "nothing"], capture_output=True, text=True, timeout=60)
    assert result.returncode == 2
    assert result.stderr.startswith("hybridmpi: error: no command 'nothing'")


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["probe", "--vlaue", "3"], "no option 'vlaue': did you mean 'value'?"),
        (["probe", "--what"], "no option 'what': expected one of help, value"),
        (["probe", "3"], "unrecognized arguments: 3"),
        (["slurm", "render", "x.toml", "--nodes", "2", "--rank-per-node=4"], "did you mean 'ranks-per-node'?"),
    ],
)
def test_an_option_that_there_is_not(command, capsys, arguments, text):
    command(lambda options: 0)
    with pytest.raises(SystemExit) as ended:
        cli.main(arguments)
    assert ended.value.code == 2 and text in capsys.readouterr().err
