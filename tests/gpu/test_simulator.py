"""CUDA arithmetic without a GPU: every kernel in numba's simulator, in a child process since the choice is made when
numba is imported."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from hybridmpi.kernels.registry import KERNELS

pytestmark = [
    pytest.mark.skipif(
        importlib.util.find_spec("numba_cuda") is None, reason="numba-cuda is not installed: pip install numba-cuda"
    ),
    pytest.mark.timeout(240),
]


def simulate(name):
    """Run a program of this folder in the simulator; return what it printed."""
    child = subprocess.run(
        [sys.executable, str(Path(__file__).with_name(name))],
        env={**os.environ, "NUMBA_ENABLE_CUDASIM": "1"},
        capture_output=True,
        text=True,
        timeout=220,
        check=False,
    )
    assert child.returncode == 0, child.stdout + child.stderr
    return child.stdout


def test_cuda_forms_agree_with_the_cpu_forms_in_the_simulator():
    assert f"all {len(KERNELS)} kernels agree" in simulate("simulated.py")


def test_the_sort_is_numpys_in_the_simulator():
    assert "sorted" in simulate("simulated_sort.py")
