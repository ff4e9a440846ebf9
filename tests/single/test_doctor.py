"""`hybridmpi doctor` in one process: what probes conclude from what they see, the report, surviving the examination.

Whole runs with seeded faults are in tests/integration/test_doctor_command.py.
"""

import json
import os
import platform
import subprocess
import sys
from importlib import metadata
from types import SimpleNamespace

import pytest

from hybridmpi.children import python
from hybridmpi.doctor import beside, cores, folder, gpu, machine, mpi_library, settings, supervision, versions
from hybridmpi.doctor.cores import Seat
from hybridmpi.doctor.finding import FAIL, MARK, OK, WARN, Finding, fail, guarded, merge, ok, size_text, warn
from hybridmpi.doctor.launchers import started_by
from hybridmpi.doctor.report import WIDTH, as_object, render
from hybridmpi.mpi_implementations import implementation
from hybridmpi.wording import telling

# -- findings and the report ---------------------------------------------------------------------------------------


def test_lines_that_hold_everywhere_stand_once_and_others_say_where():
    found = merge(
        [[ok("a", "1"), ok("b", "x")], [ok("a", "1"), ok("b", "y")], [ok("a", "1"), ok("b", "y")]], ["p", "q", "q"]
    )
    assert [(line.what, line.found, line.where) for line in found] == [
        ("a", "1", ()),
        ("b", "x", ("p",)),
        ("b", "y", ("q",)),
    ]


def test_of_quantities_the_worst_stands_for_all_that_is_well():
    found = merge([[ok("m", "9 GiB", 9)], [ok("m", "3 GiB", 3)], [warn("m", "1 GiB", "more")]], ["p", "q", "r"])
    assert [(line.status, line.found, line.where) for line in found] == [
        (OK, "3 GiB (the worst of 2 hosts: q)", ()),
        (WARN, "1 GiB", ("r",)),
    ]


def test_a_probe_that_raises_is_a_line_of_its_name():
    def probe():
        raise RuntimeError("no\nway")

    (line,) = guarded("memory", probe)
    assert (line.status, line.what) == (FAIL, "memory") and "RuntimeError: no way" in line.found and line.remedy


def test_the_report_is_aligned_and_fits_the_terminal():
    long = "a long text of many words that goes on " * 5
    lines = render([ok("python", "3.11"), fail("shared memory", long, long)], "title", 1.26, colour=False).splitlines()
    assert lines[1] == "ok    python          3.11"
    assert lines[2].startswith("fail  shared memory   a long text") and lines[-1] == "1 fail, 1 ok, in 1.3 s"
    assert all(len(line) <= WIDTH for line in lines)
    assert all(line.startswith(" " * 22) for line in lines[3:-1]) and any(" -> a long" in line for line in lines)
    coloured = render([ok("python", "3.11")], "title", 1, colour=True)
    assert "\033[32mok  \033[0m" in coloured and coloured.endswith("all 1 ok, in 1.0 s")
    many = Finding(WARN, "x", "y", "z", where=tuple(f"n{number}" for number in range(9)))
    assert "y [n0, n1, n2, n3 and 5 more]" in render([many], "title", 1, colour=False)


def test_the_object_is_json():
    found = json.loads(json.dumps(as_object([ok("a", "b"), warn("c", "d", "e")], 2, ["h"], 1.0)))
    assert found["ok"] and (found["ranks"], found["hosts"]) == (2, ["h"])
    assert found["findings"][1]["remedy"] == "e"
    assert not as_object([fail("a", "b", "c")], 1, ["h"], 1.0)["ok"]


def test_sizes_read_well():
    assert [size_text(n) for n in (12, 2048, 1.5 * 2**30, 65 * 2**30)] == ["12 bytes", "2.0 KiB", "1.5 GiB", "65 GiB"]


# -- what probes conclude ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, ("", 0, 1)),
        ({"OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_RANK": "2"}, ("Open MPI's mpirun", 2, 4)),
        ({"PMI_SIZE": "4", "PMI_RANK": "3"}, ("MPICH's mpiexec", 3, 4)),
        ({"PMI_SIZE": "4", "PMI_RANK": "3", "I_MPI_HYDRA_UUID": "1"}, ("Intel MPI's mpiexec", 3, 4)),
        ({"PMI_SIZE": "4", "PMI_RANK": "3", "HYDI_CONTROL_FD": "7", "SLURM_STEP_NUM_TASKS": "2", "SLURM_PROCID": "1"},
         ("MPICH's mpiexec", 3, 4)),
        ({"SLURM_STEP_NUM_TASKS": "4", "SLURM_PROCID": "1"}, ("srun", 1, 4)),
        ({"SLURM_STEP_NUM_TASKS": "4", "SLURM_PROCID": "1", "PMI_SIZE": "4", "PMI_RANK": "1"}, ("srun", 1, 4)),
        ({"SLURM_STEP_NUM_TASKS": "1", "SLURM_PROCID": "0"}, ("", 0, 1)),
        ({"SLURM_STEP_NUM_TASKS": "1", "SLURM_PROCID": "2", "SLURM_HET_SIZE": "2"}, ("srun", 2, 1)),
        ({"SLURM_STEP_NUM_TASKS": "1", "OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_RANK": "1"},
         ("Open MPI's mpirun", 1, 2)),
    ],
)  # fmt: skip
def test_who_started_the_ranks(environment, expected):
    assert started_by(environment) == expected


@pytest.mark.parametrize(
    ("library", "environment", "remedy"),
    [
        ("Open MPI v5.0.11, package", {"SLURM_STEP_NUM_TASKS": "4"}, "srun --mpi=pmix"),
        ("MPICH Version:      5.0.2", {"SLURM_STEP_NUM_TASKS": "4"}, "srun --mpi=pmi2"),
        ("Open MPI v5.0.11, package", {"PMI_SIZE": "4"}, "hybridmpi launch -n 4"),
        ("MPICH Version:      5.0.2", {"OMPI_COMM_WORLD_SIZE": "4"}, "hybridmpi launch -n 4"),
    ],
)
def test_singletons_are_explained(library, environment, remedy):
    comm = SimpleNamespace(Get_size=lambda: 1)
    mpi = SimpleNamespace(Get_library_version=lambda: library, COMM_WORLD=comm)
    (line,) = mpi_library.ranks(mpi, environment)
    assert line.status == FAIL and "4 separate jobs" in line.found and line.remedy.startswith(remedy)
    comm.Get_size = lambda: 4
    assert [line.status for line in mpi_library.ranks(mpi, environment)] == [OK]


def test_ranks_that_crowd_on_a_core_are_warned_of():
    def status(*seats):
        return [(line.status, line.found) for line in cores.binding(seats)]

    everywhere = frozenset(range(8))
    assert status(*[Seat("a", everywhere, 8)] * 4) == [(OK, "4 ranks on 8 cores")]
    assert status(*[Seat("a", frozenset({0, 1}), 2)] * 4) == [(OK, "4 ranks take turns on 2 cores")]
    assert status(*(Seat("a", frozenset({core}), 8) for core in range(4))) == [(OK, "4 ranks on 4 cores")]
    crowded = [(WARN, "2 ranks are bound to 1 core of a, which has 8")]
    assert status(*[Seat("a", frozenset({0}), 8)] * 2) == crowded
    assert status(*[Seat("a", frozenset({0}), 8)] * 2, Seat("b", everywhere, 8)) == [
        *crowded,
        (OK, "1 rank on 8 cores"),
    ]


def test_the_node_map_says_the_roles():
    seats = [Seat(host, frozenset({0}), 1) for host in "aabb"]
    (line,) = cores.node_map([0, 0, 1, 1], seats)
    assert (line.status, line.found) == (OK, "2 nodes with 2 ranks: 2 compute, 2 servers with servers = 'per-node'")
    (line,) = cores.node_map([0, 1], seats[:2])
    assert line.status == WARN and "only 1 host" in line.found
    assert "does everything" in cores.node_map([0], seats[:1])[0].found


def test_clocks_of_hosts():
    assert cores.clocks([5.0, 5.4], ["a", "b"])[0].status == OK
    (line,) = cores.clocks([9.0, 5.0, 5.1], ["a", "b", "c"])
    assert line.status == WARN and line.found.startswith("a is 4 s ahead of b")


def test_old_new_and_missing_packages(monkeypatch):
    versions_here = {"h5py": "2.14", "numpy": "2.0.0rc1", "mpi4py": "99", "threadpoolctl": "3.5", "hybridmpi": "0.1"}

    def version(name):
        if name == "numba":
            raise metadata.PackageNotFoundError(name)
        return versions_here[name]

    asked = ["h5py>=3.11", "mpi4py<5,>=4.0", "numba<0.69,>=0.62", "numpy>=2.0", "pytest>=8; extra == 'test'"]
    monkeypatch.setattr(metadata, "version", version)
    monkeypatch.setattr(metadata, "requires", lambda name: asked)
    lines = {line.what: line for line in versions.probe()}
    assert {name for name, line in lines.items() if line.status == FAIL} == {"h5py", "numba"}
    assert {name for name, line in lines.items() if line.status == WARN} == {"mpi4py"}
    assert "3.11 is needed" in lines["h5py"].found and "install 'h5py>=3.11'" in lines["h5py"].remedy
    assert "not installed" in lines["numba"].found and "install 'numba>=0.62,<0.69'" in lines["numba"].remedy
    assert "below 5" in lines["mpi4py"].found


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ("banner\n----\nmpirun has detected an attempt to run as root.\nRunning as root is discouraged\nx y\nz w",
         "mpirun has detected an attempt to run as root."),
        ("[vm:1] Error: Unable to get the user home directory\n[vm:2] Error: Unable to get the user home directory",
         "Error: Unable to get the user home directory"),
        ('As of version 3.0.0, the "sm" BTL is no longer available in Open MPI.\nEfficient support is in vader',
         'As of version 3.0.0, the "sm" BTL is no longer available in Open MPI.'),
        ("Traceback (most recent call last):\n  x failed\nRuntimeError: the device", "RuntimeError: the device"),
        ("first\nsecond\nthird\nfourth", "first / second / third"),
        ("[vm:1] *** Process received signal ***\n[vm:1] [ 2] libc.so\n-----\n", ""),
    ],
)  # fmt: skip
def test_of_what_a_launcher_said_causes_come_first(said, told):
    assert telling(said) == told


def test_only_a_missing_pmi_is_called_one():
    for line in ("unsupported PMI version", "OMPI was not built with SLURM's PMI support", "PMI2_Init failed"):
        assert supervision.NO_PMI.search(line), line
    for line in ("PMIX ERROR: NO-PERMISSIONS in file gds_dstore.c", "PMI_RANK=3", "PMIX_SERVER_URI3 is set"):
        assert not supervision.NO_PMI.search(line), line


@pytest.mark.parametrize("name", ["numpy", "numba", "h5py", "mpi4py", "threadpoolctl"])
def test_a_broken_package_is_a_line_and_no_traceback(tmp_path, name):
    (tmp_path / f"{name}.py").write_text("raise ImportError('it is broken')")
    child = subprocess.run(
        [sys.executable, "-m", "hybridmpi.doctor.examination", str(tmp_path)],
        capture_output=True, text=True, timeout=90, env={**os.environ, "PYTHONPATH": str(tmp_path)},
    )  # fmt: skip
    assert "Traceback" not in child.stderr + child.stdout, child.stderr
    assert child.returncode == 0 and '"fail"' in child.stdout and "it is broken" in child.stdout


@pytest.mark.parametrize("name", ["queue", "types", "numpy", "json", "signal"])
def test_a_file_of_the_users_is_not_taken_for_a_library(tmp_path, monkeypatch, name):
    """Children look for modules where Python is installed, not in the current folder."""
    (tmp_path / f"{name}.py").write_text("raise SystemExit('the file of the user')")
    monkeypatch.chdir(tmp_path)
    child = subprocess.run(
        python("-m", "hybridmpi", "--version"), capture_output=True, text=True, timeout=60, cwd=tmp_path
    )
    assert child.returncode == 0 and child.stdout.startswith("hybridmpi "), child.stderr


def test_limits_that_hurt():
    code = "from hybridmpi.doctor.machine import limits\nfor line in limits(): print(line.status, line.found)"
    shell = 'ulimit -n 100; ulimit -v 8000000; ulimit -f 1000; exec "$0" -c "$1"'
    result = subprocess.run(
        ["bash", "-c", shell, sys.executable, code], capture_output=True, text=True, timeout=60,
        env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
    )  # fmt: skip
    lines = result.stdout.splitlines()
    assert len(lines) == 3, result.stderr
    assert (
        lines[0].startswith("warn ulimit -v") and "100 open files" in lines[1] and lines[2].startswith("fail ulimit -f")
    )


def test_variables_that_hurt(monkeypatch):
    environment = {"MPIR_CVAR_ASYNC_PROGRESS": "1", "OMP_PROC_BIND": "close", "OMPI_MCA_btl": "self,tcp"}
    for mpi, hurt in (
        (implementation("MPICH"), "MPIR_CVAR_ASYNC_PROGRESS OMP_PROC_BIND"),
        (implementation("Open MPI"), "OMP_PROC_BIND OMPI_MCA_btl"),
        (None, "OMP_PROC_BIND"),
    ):
        (line,) = settings.probe(environment, mpi)
        assert line.status == WARN and line.remedy == f"unset {hurt}"


@pytest.mark.parametrize(
    ("version", "value", "network"),
    [
        ("5.0.11", "self,sm,tcp", False), ("5.0.11", "self,tcp", True), ("5.0.11", "^openib", False),
        ("5.0.11", "^sm", True), ("4.1.8", "self,vader,tcp", False), ("4.1.8", "^vader,openib", True), ("4.1.8", "", 0),
    ],
)  # fmt: skip
def test_ranks_of_a_node_that_talk_through_the_network(version, value, network):
    (line,) = settings.probe({"OMPI_MCA_btl": value}, implementation("Open MPI", version))
    assert ("through the network" in line.found) == network == (line.status == WARN)


def test_a_cache_that_cannot_be_written(monkeypatch):
    monkeypatch.setenv("NUMBA_CACHE_DIR", "/proc/cache")  # nobody can, not even root
    line = next(line for line in machine.probe_process() if line.what == "numba's cache")
    assert line.status == WARN and "NUMBA_CACHE_DIR" in line.remedy


# -- the directory of checkpoints ----------------------------------------------------------------------------------


def test_a_directory_that_is_well_is_left_as_it_was(tmp_path):
    lines = {line.what: line for line in folder.probe(str(tmp_path / "runs" / "lm"))}
    assert lines["checkpoints"].status == OK and "yet to be made" in lines["checkpoints"].found
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "file").touch()
    (line,) = folder.probe(str(tmp_path / "file"))
    assert line.status == FAIL and "not a directory" in line.found


def test_a_file_system_that_refuses():
    line = folder.probe("/proc")[0]
    assert line.status == FAIL and "cannot be written" in line.found and "--directory ANOTHER" in line.remedy
    assert folder.file_system(folder.Path("/proc/self")) == ("proc", "/proc")


def test_hosts_that_see_different_directories(tmp_path):
    path, text = folder.write_token(str(tmp_path))
    assert folder.sees_token(path, text)
    assert folder.seen_alike(path, {"a": True, "b": True})[0].status == OK
    (line,) = folder.seen_alike(path, {"a": True, "b": False})
    assert line.status == FAIL and "what a writes" in line.found and "not seen on b" in line.found


# -- dying, hanging ------------------------------------------------------------------------------------------------


def examined(code):
    return supervision.examine([sys.executable, "-u", "-c", code], os.environ)


SECTION = f"""
import json, os, signal, time
def say(**message): print('\\n{MARK}' + json.dumps(message))
say(begin="this host")
say(section="software", findings=[dict(status="ok", what="python", found="3", remedy="", number=None, where=[])])
say(begin="one-sided")
say(mpi=["Open MPI", "4.1.8"])
"""


def test_an_examination_that_dies_leaves_what_it_had_found():
    result = examined(SECTION + "print('[vm:1] [ 2] libc.so'); os.kill(os.getpid(), signal.SIGSEGV)")
    assert [(line.status, line.what) for line in result.findings()] == [(OK, "python"), (FAIL, "one-sided")]
    assert result.findings()[1].found == "died of signal 11 (SIGSEGV)" and "osc" in result.findings()[1].remedy
    assert not result.finished


def test_an_examination_that_hangs_is_ended(monkeypatch):
    monkeypatch.setattr(supervision, "PATIENCE", 0.5)
    result = examined(SECTION + "time.sleep(100)")
    assert result.findings()[-1].found == "did not end within 0.5 s"


def test_what_a_dying_examination_said_is_shown():
    result = examined(SECTION + "raise RuntimeError('the device\\nis gone')")
    assert "ended with status 1" in result.findings()[-1].found and "RuntimeError: the device" in str(result.findings())
    result = examined(SECTION.replace("one-sided", "start of MPI") + "print('unsupported PMI version'); os._exit(16)")
    assert "share no PMI" in result.findings()[-1].remedy


def test_what_mpi_prints_though_all_is_well_is_a_warning():
    result = examined(SECTION + "print('no UCX device'); say(end=dict(ranks=1, hosts=['h']))")
    assert result.finished and (result.ranks, result.hosts) == (1, ["h"])
    assert [(line.status, line.what) for line in result.findings()] == [(OK, "python"), (WARN, "messages")]


def test_a_child_of_slow_probes_that_dies_is_a_line(monkeypatch):
    line = json.dumps(["checkpoints", [vars_of(ok("checkpoints", "well"))]])
    code = f"import os; print({line!r}, flush=True); os.kill(os.getpid(), 11)"
    child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    found = beside.findings_of(child)
    assert [(line.status, line.what) for line in found] == [(OK, "checkpoints"), (FAIL, "imports")]
    assert "signal 11" in found[1].found
    monkeypatch.setattr(beside, "SECONDS", 0.2)
    child = subprocess.Popen(
        [sys.executable, "-c", "import time; time.sleep(100)"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    (line,) = beside.findings_of(child)
    assert (line.status, line.what) == (FAIL, "checkpoints") and "did not end" in line.found


def vars_of(finding):
    return {name: getattr(finding, name) for name in Finding.__slots__}


# -- GPUs ----------------------------------------------------------------------------------------------------------


def test_no_gpu_is_no_fault(monkeypatch):
    monkeypatch.setattr(gpu, "DEVICES", ())
    assert gpu.probe() == [ok("GPU", "none: training runs on the CPU")]


@pytest.mark.parametrize(
    ("answer", "found"),
    [
        ((0, "messages Allreduce", ""), "MPI takes device memory: messages, Allreduce"),
        ((-11, "", ""), "does not take device memory: it takes device memory for host memory and crashes"),
        ((None, "messages\n", "no end within 20 s"), "does not take device memory after messages: it hangs"),
        ((1, "", "ModuleNotFoundError: No module named 'numba.cuda'"), "not tried without CUDA in Python"),
    ],
)
def test_why_mpi_takes_no_device_memory(monkeypatch, tmp_path, answer, found):
    monkeypatch.setattr(gpu, "DEVICES", (str(tmp_path),))
    monkeypatch.setattr(gpu, "_child", lambda program: answer)
    monkeypatch.setattr(gpu.shutil, "which", lambda name: None)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert found in gpu.probe()[-1].found and gpu.probe()[-1].status == OK


def test_a_crash_in_a_child_without_a_launchers_variables(monkeypatch):
    monkeypatch.setenv("PMI_RANK", "1")
    monkeypatch.setenv("OMPI_MCA_pml", "ob1")
    status, output, _ = gpu._child(
        "import os\nprint([n for n in os.environ if n.startswith(('PMI', 'OMPI'))], flush=True)\n"
        "os.kill(os.getpid(), 11)"
    )
    assert (status, output) == (-11, "['OMPI_MCA_pml']\n")


def test_this_host_has_a_name_in_the_title():
    from hybridmpi.cli.doctor import _title

    assert _title(supervision.Examined(ranks=2)) == f"hybridmpi doctor: 2 ranks on 1 host ({platform.node()})"
