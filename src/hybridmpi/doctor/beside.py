"""What a host is asked by a child process beside its first rank: `python -m hybridmpi.doctor.beside DIRECTORY`.

Imports that are slow or may crash, a file system that may hang, CUDA. It runs while MPI starts, and prints the findings
of each family as one line of JSON, so that what dies takes nothing with it but itself.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict

from hybridmpi.children import python
from hybridmpi.doctor import folder, gpu, versions
from hybridmpi.doctor.finding import Finding, fail, guarded
from hybridmpi.wording import one_line

SECONDS = 45
FAMILIES: dict[str, Callable[[str], list[Finding]]] = {
    "checkpoints": folder.probe,
    "imports": lambda _: versions.imports(),
    "GPU": lambda _: gpu.probe(),
}
REMEDIES = {
    "checkpoints": "df DIRECTORY and ls DIRECTORY show whether it hangs; hybridmpi doctor --directory ANOTHER",
    "imports": f"{sys.executable} -m pip install --upgrade numba numpy h5py, or undo what was installed last",
    "GPU": "nvidia-smi shows whether the driver hangs; CUDA_VISIBLE_DEVICES= leaves it out",
}


def main(directory: str) -> None:
    """Print the findings of each family. Local."""
    for name, probe in FAMILIES.items():
        print(json.dumps([name, [asdict(finding) for finding in guarded(name, probe, directory)]]), flush=True)


def start(directory: str) -> subprocess.Popen:
    """Start the child. Local; before MPI, whose sockets it must not inherit."""
    return subprocess.Popen(
        python("-m", __name__, directory),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
    )


def findings_of(child: subprocess.Popen) -> list[Finding]:
    """Wait for the child and return what it found; a `fail` of the family in which it died or did not end. Local."""
    ended = ""
    try:
        output, errors = child.communicate(timeout=SECONDS)
        if child.returncode < 0:
            ended = f"died of signal {-child.returncode}"
        elif child.returncode:
            ended = f"ended with status {child.returncode}"
        said = (errors.strip().splitlines() or [""])[-1]
    except subprocess.TimeoutExpired:
        child.kill()
        try:
            output, _ = child.communicate(timeout=1)
        except subprocess.TimeoutExpired:  # it sleeps in the kernel, where no signal reaches it
            output = ""
        ended, said = f"did not end within {SECONDS} s", ""
    answered = dict(json.loads(line) for line in output.splitlines() if line.startswith('["'))
    found = [Finding(**each) for family in answered.values() for each in family]
    if missing := next((name for name in FAMILIES if name not in answered), None):
        text = f"looking at it {ended or 'ended early'}" + (f": {one_line(said)}" if said else "")
        found.append(fail(missing, text, REMEDIES[missing]))
    return [Finding(**{**asdict(each), "where": ()}) for each in found]


if __name__ == "__main__":
    main(*sys.argv[1:])
