"""Every CUDA kernel compiles for every signature and architecture, rounds as the CPU forms do, and fits its registers:
no GPU needed.

Compiling needs `pip install numba-cuda "cuda-toolkit[nvrtc,nvvm]==13.*"`; assembling also needs `nvidia-cuda-nvcc`.
"""

import importlib
import importlib.util
import re
import subprocess
import sysconfig
from pathlib import Path
from types import SimpleNamespace

import pytest

from hybridmpi.kernels.registry import KERNELS

for package in ("numba_cuda", "nvidia.cu13"):
    try:
        missing = importlib.util.find_spec(package) is None
    except ModuleNotFoundError:
        missing = True
    if missing:
        pytest.skip(f"no {package}: pip install numba-cuda 'cuda-toolkit[nvrtc,nvvm]==13.*'", allow_module_level=True)

from numba import cuda  # noqa: E402

PTXAS = Path(sysconfig.get_path("purelib")) / "nvidia/cu13/bin/ptxas"
MODULES = sorted(
    {kernel.cuda for kernel in KERNELS.values()} | {f"hybridmpi.kernels.{name}_cuda" for name in ("radix", "scan")}
)
CAPABILITIES = [(8, 0), (9, 0)]
MAX_REGISTERS = 64  # a block of 256 threads then still leaves an SM three more


def device_kernels():
    for path in MODULES:
        for name, value in vars(importlib.import_module(path)).items():
            if hasattr(value, "tested_signatures") and value.py_func.__module__ == path:
                yield pytest.param(value, id=f"{path.rsplit('.', 1)[1]}{name}")


@pytest.mark.parametrize("kernel", list(device_kernels()))
def test_compiles_to_ptx_and_fits(kernel, tmp_path, monkeypatch):
    for signature in dict.fromkeys(kernel.tested_signatures):
        for capability in CAPABILITIES:
            # numba asks the current device before it compiles a device function, even when told the capability.
            monkeypatch.setattr(
                "numba.cuda.dispatcher.get_current_device",
                lambda capability=capability: SimpleNamespace(compute_capability=capability),
            )
            ptx, _ = cuda.compile_ptx(kernel.py_func, signature, cc=capability)
            assert f".target sm_{capability[0]}{capability[1]}" in ptx
            assert not re.search(r"\b(atom|red)\.", ptx), "atomics have no fixed order"
            if "float64" not in signature:
                assert ".f64" not in ptx, "float32 arithmetic was widened to float64"
            assert not contracted(ptx)
            assert ".local" not in ptx, "an array of a thread is not in registers"
            if PTXAS.exists():
                assemble(ptx, capability, tmp_path)


def contracted(ptx):
    """Return the instructions that are rounded less, or less well, than the operations of the source.

    ptxas fuses a multiply without a rounding modifier with an add, whether that has one or not.
    """
    arithmetic = re.findall(r"\b(?:fma|mad|mul|div|sqrt|rcp|rsqrt|lg2|ex2)\.\S*f(?:16|32|64)\b", ptx)
    return {name for name in arithmetic if not re.fullmatch(r"(mul|div|sqrt)\.rn\.f(32|64)", name)}


def test_a_fused_multiply_add_is_found():
    def bare(out, a):
        out[0] += a * a

    for value in ("float32", "float64"):
        ptx, _ = cuda.compile_ptx(bare, f"void({value}[::1], {value})", cc=CAPABILITIES[0])
        assert contracted(ptx) == {f"fma.rn.f{value[-2:]}"}


def test_every_cuda_module_has_kernels():
    found = {param.values[0].py_func.__module__ for param in device_kernels()}
    assert found == set(MODULES)


def assemble(ptx, capability, folder):
    source = folder / "kernel.ptx"
    source.write_text(ptx)
    done = subprocess.run(
        [str(PTXAS), "-v", f"-arch=sm_{capability[0]}{capability[1]}", str(source), "-o", str(folder / "kernel.cubin")],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    registers = int(re.search(r"Used (\d+) registers", done.stderr)[1])
    spilled = sum(int(size) for size in re.findall(r"(\d+) bytes spill", done.stderr))
    print(f"sm_{capability[0]}{capability[1]}: {registers} registers, {spilled} bytes spilled")
    assert registers <= MAX_REGISTERS
    assert spilled == 0
