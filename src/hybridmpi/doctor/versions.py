"""Versions of Python and of the packages that hybridmpi stands on, against what its metadata asks for."""

from __future__ import annotations

import platform
import re
import sys
from collections.abc import Mapping
from importlib import import_module, metadata

from hybridmpi.doctor.finding import Finding, fail, ok, warn
from hybridmpi.wording import one_line

OLDEST_PYTHON = (3, 11)
PACKAGES = ("numpy", "numba", "mpi4py", "h5py", "threadpoolctl")


def probe() -> list[Finding]:
    """Return a line for Python, for hybridmpi and for each package that it needs, without importing any. Local."""
    found = [_python()]
    required = {}
    try:
        found.append(ok("hybridmpi", metadata.version("hybridmpi")))
        for line in metadata.requires("hybridmpi") or ():
            if match := re.fullmatch(r"([\w-]+)\s*([<>=\d.,\s]+)", line):  # no extra's
                required[match[1]] = dict(re.findall(r"(>=|<)\s*([\d.]+)", match[2]))
    except metadata.PackageNotFoundError:
        found.append(fail("hybridmpi", "runs without being installed", f"{sys.executable} -m pip install -e ."))
    return found + [_package(name, required.get(name, {})) for name in PACKAGES]


def _python() -> Finding:
    text = f"{platform.python_version()} ({sys.executable})"
    if sys.version_info < OLDEST_PYTHON:
        return fail("python", f"{text} is too old: 3.11 is needed", "make an environment with Python 3.11 or newer")
    return ok("python", text)


def _package(name: str, asked: Mapping[str, str]) -> Finding:
    oldest, newer = asked.get(">=", "0"), asked.get("<")
    remedy = f"{sys.executable} -m pip install '{name}>={oldest}{f',<{newer}' if newer else ''}'"
    try:
        version = metadata.version(name)
    except metadata.PackageNotFoundError:
        return fail(name, f"is not installed in {sys.prefix}", remedy)
    if numbers(version) < numbers(oldest):
        return fail(name, f"{version} is too old: {oldest} is needed", remedy)
    if newer and numbers(version) >= numbers(newer):
        return warn(name, f"{version} is newer than what hybridmpi was tried with: below {newer}", remedy)
    return ok(name, version)


def absent() -> dict[str, Finding]:
    """Return a `fail` for each package that ranks need to do anything together and that cannot be imported. Local."""
    found = {}
    for name in ("numpy", "threadpoolctl"):
        try:
            import_module(name)
        except Exception as error:  # a broken package raises what it likes
            text = f"cannot be imported: {type(error).__name__}: {one_line(error)[:200]}"
            found[name] = fail(name, text, f"{sys.executable} -m pip install --force-reinstall {name}")
    return found


def numbers(version: str) -> tuple[int, ...]:
    """Return the leading numbers of a version, to be compared: 2.4.0rc1 gives (2, 4, 0). Local."""
    return tuple(int(part) for part in re.match(r"\d*(?:\.\d+)*", version)[0].split(".") if part)


def imports() -> list[Finding]:
    """Import what is slow to import and may refuse or crash: numba beside a numpy it does not know. Local."""
    import h5py
    import numba

    return [ok("imports", f"numba {numba.__version__} and h5py load, with HDF5 {h5py.version.hdf5_version}")]
