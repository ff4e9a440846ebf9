"""Tests import their helpers (launching.py) from this folder. `--ranks N` limits the parallel tests to N ranks; what is
written for one other number of ranks is skipped. `-n 2` runs files of tests/single and tests/gpu side by side, and no
others."""

import signal
import sys
from pathlib import Path

import pytest
from hypothesis import settings

sys.path.insert(0, str(Path(__file__).parent))

# Half of hypothesis' own number: other examples are drawn in every run, and those that failed are kept.
settings.register_profile("suite", max_examples=50)
settings.load_profile("suite")


def pytest_addoption(parser):
    parser.addoption("--ranks", type=int, help="run the parallel tests on this number of ranks only")
    parser.addoption("--adversary", type=int, metavar="SEED", help="let messages be late and ranks slow in all checks")


def pytest_generate_tests(metafunc):
    marker = metafunc.definition.get_closest_marker("mpi")
    if marker is not None:
        only = metafunc.config.getoption("--ranks")
        numbers = marker.kwargs["ranks"]
        if only:
            numbers = [only] if len(numbers) > 1 or only in numbers else []
        metafunc.parametrize("ranks", numbers)


def pytest_configure(config):
    """Two workers on two cores: one thread of BLAS each. And a suite that runs in the background of a script, which
    ignores SIGINT, does not hand this on to what it interrupts."""
    if (seed := config.getoption("--adversary")) is not None:
        import launching

        launching.ADVERSARY = seed
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if hasattr(config, "workerinput"):
        import numpy  # noqa: F401 - its BLAS is what is limited
        from threadpoolctl import threadpool_limits

        threadpool_limits(1)


def pytest_collection_modifyitems(items):
    """Two workers must collect tests of the same names, so no name holds an address of memory."""
    if found := [item.nodeid for item in items if " at 0x" in item.nodeid]:
        raise pytest.UsageError(f"names of tests that differ from process to process; give ids: {found[:3]}")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """Files of tests/single and tests/gpu go to any worker. Then one worker alone runs what starts ranks, which fill
    the machine."""
    from xdist.scheduler import LoadScopeScheduling

    class SingleThenRanks(LoadScopeScheduling):
        def _split_scope(self, nodeid):
            alone = nodeid.startswith(("tests/single/", "tests/gpu/"))
            return nodeid.split("::")[0] if alone else "ranks"

    config.option.loadscopereorder = False  # in the order of testpaths: these come first
    return SingleThenRanks(config, log)


@pytest.fixture(autouse=True)
def _no_launcher_variables(monkeypatch):
    """A test run may itself be inside a batch job: its variables must not reach the jobs that tests start."""
    import os

    for name in os.environ:
        if name.startswith(("SLURM_", "PMI_", "PMIX_", "OMPI_COMM_")):
            monkeypatch.delenv(name)
