"""Environment variables that hold what they should not: a usage error by name, or a hint not taken; no traceback.
And how many cores containers leave."""

import math

import pytest

from hybridmpi import cores, environment, folders
from hybridmpi.cli import launch, mpirun
from hybridmpi.cli import main as command
from hybridmpi.cli.main import main
from hybridmpi.doctor import settings
from hybridmpi.doctor.launchers import started_by
from hybridmpi.errors import UsageError
from hybridmpi.singletons import refuse_singletons

BAD = ["x", "2(x3)", "-1", "99999999999999999999", "1.5", "\u0663", "1_0", "0x2", "1 2"]
WELL = {"": None, " ": None, "3": 3, " 3 ": 3, "003": 3}
RANKS = dict.fromkeys([*launch.UNDER_MPI, *command.RANK_VARIABLES, *settings.NUMBERS])


@pytest.mark.parametrize("value", BAD)
def test_a_number_that_is_none_is_refused_by_name(value):
    with pytest.raises(UsageError, match="the environment variable SIZE is .*: expected a whole number from 0 to"):
        environment.number("SIZE", {"SIZE": value})
    assert environment.hint("SIZE", {"SIZE": value}) is None


@pytest.mark.parametrize(("value", "number"), WELL.items())
def test_a_number_and_what_is_not_set(value, number):
    assert environment.number("SIZE", {"SIZE": value}) == environment.hint("SIZE", {"SIZE": value}) == number
    assert environment.number("SIZE", {}) is None


def test_a_number_below_the_least():
    with pytest.raises(UsageError, match="is '0': expected a whole number from 1 to"):
        environment.number("SIZE", {"SIZE": "0"}, least=1)


@pytest.mark.parametrize("value", ["", "0", *BAD])
@pytest.mark.parametrize("name", ["SLURM_JOB_NUM_NODES", *RANKS])
def test_no_variable_makes_a_traceback(monkeypatch, capsys, name, value):
    monkeypatch.setenv(name, value)
    monkeypatch.setattr(command, "STAND_BACK_SECONDS", 0)
    refuse_singletons(1, {name: value})
    assert started_by({name: value})[1:] == (0, 1)
    assert launch.one_of_several() is None
    (line,) = settings.probe({name: value}, None)
    assert (name in line.found) == (value in BAD and name in settings.NUMBERS and "," not in value)
    if name == "SLURM_JOB_NUM_NODES" and value:
        assert main(["launch", "-n", "2", "--", "train"]) == 2
        assert f"SLURM_JOB_NUM_NODES is {value!r}: expected a whole number from 1" in capsys.readouterr().err
    else:
        assert mpirun.nodes_of_batch_job() == 1 and main(["trian"]) == 2


@pytest.mark.parametrize("name", ["HOME", "XDG_CACHE_HOME"])
def test_a_user_without_a_home(monkeypatch, name):
    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert folders.home().startswith("/")

    def nobody(_):
        raise KeyError

    monkeypatch.setattr(folders.pwd, "getpwuid", nobody)
    assert folders.home() == str(folders.temporary_folder())


# -- cores -----------------------------------------------------------------------------------------------------------


def group(folder, quota, second=True, period=100_000):
    folder.mkdir(parents=True, exist_ok=True)
    if second:
        (folder / "cpu.max").write_text(f"{quota} {period}\n")
    else:
        (folder / "cpu.cfs_quota_us").write_text(f"{quota}\n")
        (folder / "cpu.cfs_period_us").write_text(f"{period}\n")


@pytest.mark.parametrize(
    ("quotas", "expected"),
    [
        ({"a/b": 200_000}, 2.0),
        ({"a/b": 150_000, "a": "max"}, 1.5),
        ({"a/b": "max", "a": 300_000, "": "max"}, 3.0),
        ({"a/b": 800_000, "a": 50_000}, 0.5),
        ({"a/b": "max"}, None),
        ({"a/b": "nonsense"}, None),
        ({"a/b": -1}, None),
        ({"": 100_000}, 1.0),  # a container that sees its own group as the root, by a path of its host
        ({}, None),
    ],
)
@pytest.mark.parametrize("second", [True, False])
def test_quotas_of_control_groups(tmp_path, quotas, expected, second):
    if not second:
        quotas = {folder: -1 if quota == "max" else quota for folder, quota in quotas.items()}
    for folder, quota in quotas.items():
        group(tmp_path / ("" if second else "cpu") / folder, quota, second)
    membership = tmp_path / "membership"
    membership.write_text("0::/a/b\n" if second else "3:cpu,cpuacct:/a/b\n2:memory:/a/b\n0::/\n")
    assert cores.quota_of_groups(tmp_path, membership) == expected
    usable = cores.usable_cores(tmp_path, membership)
    all_of_them = cores.affinity_cores()
    assert usable == (all_of_them if expected is None else min(all_of_them, max(1, math.ceil(expected))))


def test_a_system_without_control_groups(tmp_path):
    assert cores.quota_of_groups(tmp_path / "no", tmp_path / "nothing") is None
    (tmp_path / "odd").write_text("nonsense\n\n0\n")
    assert cores.quota_of_groups(tmp_path, tmp_path / "odd") is None
