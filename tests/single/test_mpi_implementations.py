"""The table of MPIs: what libraries and launchers say of themselves, that nothing else names their variables, and that
variables are read in one place."""

import ast
import re
from pathlib import Path
from types import SimpleNamespace

import pytest

from hybridmpi import mpi_start
from hybridmpi.doctor import mpi_library
from hybridmpi.doctor.finding import FAIL, OK
from hybridmpi.mpi_implementations import (
    HOW_TO_INSTALL,
    IMPLEMENTATIONS,
    PLUGINS,
    implementation,
    of_launcher,
    of_library,
    without_launcher,
)

SOURCE = Path(__file__).parents[2] / "src" / "hybridmpi"
TABLE = SOURCE / "mpi_implementations.py"
ENVIRONMENT = SOURCE / "environment.py"
SETTERS = {ENVIRONMENT, SOURCE / "kernel_cache.py"}
NAMES = (
    r"\b(OMPI|PRTE|PMIX|PMI|MPIR|MPICH|I_MPI|HYDI|HYDRA|OPAL)_[A-Z]|MPI_LOCAL|FI_PROVIDER|\bvader\b|--oversubscribe|"
    r"--bind-to|\blibmpi(ch)?\.so\.\d"
)


@pytest.mark.parametrize("path", sorted(SOURCE.rglob("*.py")), ids=lambda path: str(path.relative_to(SOURCE)))
def test_what_mpis_differ_in_stands_in_the_table_and_variables_are_read_in_one_place(path):
    text = path.read_text(encoding="utf-8")
    if path != TABLE:
        found = re.search(NAMES, text)
        assert not found, f"{found[0]} belongs into {TABLE.name}"
    if path in SETTERS:
        return
    for node in ast.walk(ast.parse(text)):
        named = isinstance(node, ast.Attribute) and getattr(node.value, "id", "") == "os" and node.attr
        imported = isinstance(node, ast.ImportFrom) and node.module == "os" and {a.name for a in node.names}
        for name in ("environ", "environb", "getenv", "putenv"):
            assert name != named and name not in (imported or ()), f"line {node.lineno}: use {ENVIRONMENT.name}"


# As libraries and launchers of these versions say it.
SAID = {
    ("Open MPI", "5.0.11"): ("Open MPI v5.0.11, package: Open MPI user@localhost", "mpirun (Open MPI) 5.0.11\n"),
    ("Open MPI", "4.1.8"): ("Open MPI v4.1.8, package: Open MPI user@localhost", "mpiexec (OpenRTE) 4.1.8\n\nReport"),
    ("Open MPI", "4.1.4"): ("Open MPI v4.1.4, package: Debian OpenMPI, ident: 4.1.4", "mpirun.openmpi (OpenRTE) 4.1.4"),
    ("MPICH", "5.0.2"): ("MPICH Version:      5.0.2\nMPICH Release", "HYDRA build details:\n    Version:    5.0.2\n"),
    ("MPICH", "4.0.2"): ("MPICH Version:\t4.0.2\nMPICH Release", "HYDRA build details:\n    Version:    4.0.2\n"),
    ("Intel MPI", "2021.18.1"): (
        "Intel(R) MPI Library 2021.18.1 for Linux* OS\n",
        "Intel(R) MPI Library for Linux* OS, Version 2021.18.1 Build 20260626 (id: b44796a)\nCopyright",
    ),
}


@pytest.mark.parametrize(("name", "version"), SAID)
def test_an_mpi_is_known_by_what_it_says(name, version):
    library, launcher = SAID[name, version]
    entry = implementation(name, version)
    assert of_library(library) == of_launcher(launcher) == (entry, version)
    assert (entry.shared_memory == "vader") == (version.startswith("4.1"))
    assert of_library("MVAPICH2 Version      :\t2.3.7") is None and of_launcher("") is None


def test_versions_do_not_overlap_and_the_newest_stands_first():
    for name in {each.name for each in IMPLEMENTATIONS}:
        entries = [each for each in IMPLEMENTATIONS if each.name == name]
        assert implementation(name) is entries[0]
        assert all(older.end == newer.first for newer, older in zip(entries, entries[1:], strict=False))
    assert implementation("Open MPI", "1.10") is None and implementation("Open MPI", "6.0") is IMPLEMENTATIONS[0]


def test_what_is_told_of_all():
    assert PLUGINS == "--mpi=pmix for Open MPI, --mpi=pmi2 for MPICH and Intel MPI"
    assert "libmpi.so.40 (Open MPI) and libmpi.so.12 (MPICH, Intel MPI)" in HOW_TO_INSTALL
    assert "libmpich.so.12" in HOW_TO_INSTALL and "pip install --no-binary mpi4py mpi4py" in HOW_TO_INSTALL


def test_a_process_that_is_to_be_alone():
    given = {"PATH": "p", "PMI_RANK": "1", "I_MPI_HYDRA_UUID": "2", "OMPI_COMM_WORLD_SIZE": "3", "OMPI_MCA_pml": "ob1"}
    assert without_launcher({**given, "SLURM_PROCID": "1", "MPIR_CVAR_NOLOCAL": "1"}) == {
        "PATH": "p", "OMPI_MCA_pml": "ob1", "MPIR_CVAR_NOLOCAL": "1"
    }  # fmt: skip


@pytest.mark.parametrize("version", ["5.0.11", "4.1.8"])
def test_what_open_mpi_is_told_before_it_starts(monkeypatch, tmp_path, version):
    """Alone a process uses no shared memory, of which it would leave a file."""
    mpi = implementation("Open MPI", version)
    monkeypatch.setattr(mpi_start, "moved_to", lambda mpi: str(tmp_path) if mpi.prefix else "")
    monkeypatch.setattr(mpi_start, "has_fabric", lambda: False)
    monkeypatch.setenv("HOME", "/h")
    for name in ("PMI_RANK", "PMIX_RANK"):
        monkeypatch.delenv(name, raising=False)
    common = {"HOME": "/h"} if version[0] == "5" else {"OPAL_PREFIX": str(tmp_path)}
    alone = {"OMPI_MCA_pml": "ob1", "OMPI_MCA_btl": "self", "OMPI_MCA_osc": "^ucx"}
    assert mpi_start.variables_of_process(mpi) == alone | common
    monkeypatch.setenv("PMIX_RANK", "0")
    assert mpi_start.variables_of_process(mpi) == {"OMPI_MCA_osc": "^ucx"} | common
    monkeypatch.setattr(mpi_start, "has_fabric", lambda: True)
    assert mpi_start.variables_of_process(mpi) == common


@pytest.mark.parametrize(
    ("library", "file", "vendor", "status", "words"),
    [
        ("Open MPI v4.1.4, x", "MPI.openmpi.cpython-311.so", "Open MPI", OK, "made for Open MPI's ABI; MPI 3.1"),
        ("MPICH Version: 5.0.2", "MPI.mpich.cpython-311.so", "MPICH", OK, "made for MPICH's ABI; MPI 3.1"),
        ("Intel(R) MPI Library 2021.18 for", "MPI.mpich.so", "Intel MPI", OK, "MPICH's ABI, which Intel MPI has; MPI"),
        ("Open MPI v4.1.4, x", "MPI.mpich.cpython-311.so", "Open MPI", FAIL, "but Open MPI 4.1.4 is loaded"),
        ("MPICH Version: 4.0.2", "MPI.cpython-311.so", "MPICH", OK, "made for MPICH; MPI 3.1"),
        ("Open MPI v4.1.4, x", "MPI.cpython-311.so", "MPICH", FAIL, "made for MPICH, but Open MPI 4.1.4 is loaded"),
        ("Cray MPI 8", "MPI.cpython-311.so", "Cray MPI", OK, "made for Cray MPI; MPI 3.1 is offered"),
    ],
)
def test_whether_mpi4py_fits(library, file, vendor, status, words):
    mpi = SimpleNamespace(
        Get_library_version=lambda: library, __file__=f"/v/{file}", VERSION=3, SUBVERSION=1,
        Get_version=lambda: (3, 1), get_vendor=lambda: (vendor, (1, 0, 0)),
    )  # fmt: skip
    line = mpi_library.describe(mpi)[-1]
    assert (line.what, line.status) == ("mpi4py's ABI", status) and words in line.found
