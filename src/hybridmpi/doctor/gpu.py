"""GPUs: whether there are any, whether Python can use them, and whether MPI takes their memory and why not.

Whatever loads CUDA, or gives device memory to an MPI that may take it for host memory and crash, runs in a child.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from hybridmpi import environment
from hybridmpi.children import python
from hybridmpi.doctor.finding import Finding, ok, warn
from hybridmpi.mpi_implementations import without_launcher
from hybridmpi.wording import one_line

SECONDS = 20
DEVICES = ("/proc/driver/nvidia/version", "/dev/nvidiactl", "/dev/nvidia0")
LIBRARIES = """
import importlib.metadata as metadata
try:
    import cupy
    print("cupy", cupy.__version__, "sees", cupy.cuda.runtime.getDeviceCount(), "and adds", int(cupy.ones(3).sum()))
except Exception as error:
    print("cupy:", type(error).__name__, " ".join(str(error).split())[:200])
try:
    from numba import cuda
    print("numba-cuda", metadata.version("numba-cuda"), "sees", len(cuda.gpus))
except Exception as error:
    print("numba-cuda:", type(error).__name__, " ".join(str(error).split())[:200])
"""
# In a job of its own with one rank. First a message, then the collectives that move gradients.
AWARE = """
import mpi4py
mpi4py.rc.thread_level = "funneled"
import numpy as np
try:
    import cupy
    ones, zeros, host = cupy.ones, cupy.zeros, cupy.asnumpy
    wait = cupy.cuda.get_current_stream().synchronize
except ImportError:
    from numba import cuda
    ones = lambda n: cuda.to_device(np.ones(n))
    zeros = lambda n: cuda.to_device(np.zeros(n))
    host = lambda array: array.copy_to_host()
    wait = cuda.synchronize
send, receive = ones(1000), zeros(1000)
wait()
from mpi4py import MPI
comm = MPI.COMM_SELF
comm.Sendrecv(send, 0, 0, receive, 0, 0)
assert (host(receive) == 1).all(), "a message arrived with other values"
print("messages", flush=True)
for call in ("Allreduce", "Allgather", "Reduce_scatter_block"):
    receive = zeros(1000)
    wait()
    getattr(comm, call)(send, receive)
    assert (host(receive) == 1).all(), call + " gave other values"
    print(call, flush=True)
"""


def probe() -> list[Finding]:
    """Return what there is of GPUs on this host; one line where there is none. Local."""
    if not any(Path(path).exists() for path in DEVICES) or _hidden():
        return [ok("GPU", "none: training runs on the CPU")]
    return [_device(), *_libraries(), _aware()]


def _hidden() -> bool:
    return environment.inherited().get("CUDA_VISIBLE_DEVICES") in ("", "-1")


def _child(program: str) -> tuple[int | None, str, str]:
    """Return (exit status, None after the deadline; output; last line of the errors) of a Python program."""
    alone = without_launcher(environment.inherited())
    try:
        child = subprocess.run(
            python("-c", program), capture_output=True, text=True, errors="replace", timeout=SECONDS, env=alone
        )
    except subprocess.TimeoutExpired as error:
        return None, (error.stdout or b"").decode(errors="replace"), f"no end within {SECONDS} s"
    return child.returncode, child.stdout, one_line((child.stderr.strip().splitlines() or [""])[-1])


def _device() -> Finding:
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return ok("GPU", "a device and its driver; nvidia-smi is not there to name it")
    try:
        query = [tool, "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"]
        result = subprocess.run(query, capture_output=True, text=True, timeout=SECONDS)
    except subprocess.TimeoutExpired:
        return warn("GPU", f"nvidia-smi did not answer within {SECONDS} s: the driver hangs", "tell the administrator")
    lines = result.stdout.strip().splitlines()
    if result.returncode or not lines:
        reason = one_line(result.stdout + result.stderr)[:200]
        return warn("GPU", f"nvidia-smi fails: {reason}", "ask for a GPU (sbatch --gres=gpu:1), or mend the driver")
    name, driver, memory = (part.strip() for part in lines[0].split(","))
    return ok("GPU", f"{len(lines)} x {name}, {memory}, driver {driver}; training computes on the CPU")


def _libraries() -> list[Finding]:
    status, output, error = _child(LIBRARIES)
    lines = output.splitlines()
    remedy = f"{sys.executable} -m pip install 'hybridmpi[cuda13]', if kernels are to run on the GPU"
    if status != 0:
        text = f"loading CUDA {'hangs' if status is None else f'ended with {status}'}: {error}"
        return [warn("CUDA in Python", text, remedy)]
    bad = [line for line in lines if line.split()[0].endswith(":")]
    if bad:
        return [warn("CUDA in Python", "; ".join(lines), remedy)]
    return [ok("CUDA in Python", "; ".join(lines))]


def _aware() -> Finding:
    """MPI's list of extensions proves nothing, so a message of device memory is sent, to see."""
    what, status, output, error = "MPI and CUDA", *_child(AWARE)
    done = output.split()
    host = "gradients travel through host memory"
    if status == 0:
        return ok(what, f"MPI takes device memory: {', '.join(done)}")
    if "ModuleNotFoundError" in error or "CudaSupportError" in error:
        return ok(what, f"not tried without CUDA in Python: {host}")
    if status is None:
        why = f"it hangs ({error})"
    elif status < 0 or status > 128:
        why = "it takes device memory for host memory and crashes: this build is without CUDA"
    else:
        why = error or f"exit status {status}"
    after = f" after {', '.join(done)}" if done else ""
    return ok(what, f"MPI does not take device memory{after}: {why}; {host}")
