"""Freed memory stays with the process: a step that allocates what the last one freed costs no page faults."""

import platform
import subprocess
import sys

import pytest

STEPS = """
import resource
import sys
import numpy as np
if sys.argv[1] == "keep":
    from hybridmpi.memory import keep_freed_memory
    keep_freed_memory()

def step():
    arrays = [np.ones(1 << 17) for _ in range(12)]  # 12 MiB of arrays of 1 MiB, all freed at the end

for _ in range(3):
    step()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(10):
    step()
print((resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before) // 10)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc's malloc can be told to keep memory")
def test_a_step_that_reuses_memory_faults_no_pages():
    def faults(mode: str) -> int:
        argv = [sys.executable, "-c", STEPS, mode]
        return int(subprocess.run(argv, capture_output=True, text=True, check=True, timeout=60).stdout)

    assert faults("keep") < 50
    assert faults("as it is") > 500  # otherwise this C library needs no telling any more
