"""What a job is going to write, tried before it does any work, on every rank that will write."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Callable
from pathlib import Path

from hybridmpi.errors import UsageError
from hybridmpi.failures import raise_alike
from hybridmpi.paths import require_output, try_writing
from hybridmpi.training.job import Job
from hybridmpi.training.timeline import MARK
from hybridmpi.world import World


def require_outputs(world: World, job: Job, job_file: str, trace: Path | None) -> None:
    """Raise UsageError on all ranks alike unless what the job writes can be written: the checkpoints by every rank, and
    in one folder that all share; metrics, and the timeline `trace`, by compute rank 0. Collective over the world.

    Nothing of it stays but folders. None of them may be `job_file`, or a file that no such job has made.
    """
    comm, root = world.comm, world.clients[0]
    # In the folder as it is given: where ranks have other current folders, it is not the same.
    shared = Path(job.checkpoint.directory, f".{platform.node()}.{os.getpid()}.try")
    wrong = _refusal(lambda: _try_first(job, job_file, trace, shared)) if world.rank == root else None
    wrong, seen = comm.bcast((wrong, shared), root)
    if not wrong and world.rank != root:
        mine = _refusal(lambda: _try_beside(world, seen))
        wrong = mine and f"rank {world.rank} ({world.role_of(world.rank)}, host {platform.node()}): {mine}"
    found = [text for text in comm.allgather(wrong) if text]
    if world.rank == root and not wrong:
        shared.unlink(missing_ok=True)
    if found:
        raise_alike(world, UsageError(found[0]))


def _refusal(attempt: Callable[[], None]) -> str | None:
    """Return the words of the UsageError that an attempt ends with, None where it succeeds."""
    try:
        attempt()
    except UsageError as error:
        return str(error)
    return None


def _try_first(job: Job, job_file: str, trace: Path | None, shared: Path) -> None:
    """On compute rank 0: make the folder, and a file in it that shows the other ranks that it is the same."""
    given = f"checkpoint.directory = {job.checkpoint.directory}"
    try:
        shared.parent.mkdir(parents=True, exist_ok=True)
        try_writing(shared.with_suffix(".page"))
    except OSError as error:
        raise UsageError(f"{given}: cannot be written: {error.strerror}; {_EXPECTED}") from error
    if job.metrics_path:
        _require_metrics(Path(job.metrics_path), job_file)
    if trace is not None:
        made = [job_file, job.metrics_path] if job.metrics_path else [job_file]
        try:
            trace.absolute().parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(f"--trace {trace}: its folder cannot be made: {error.strerror}; name another") from error
        require_output(trace, "--trace", inputs=made, mark=MARK.encode(), remedy="name another, or remove it")
    try:
        shared.touch()
    except OSError as error:
        raise UsageError(f"{given}: cannot be written: {error.strerror}; {_EXPECTED}") from error


_EXPECTED = "expected a folder, or a place to make one, on a file system that all hosts share"


def _try_beside(world: World, seen: Path) -> None:
    """On every other rank: find the folder that compute rank 0 has made, and write there."""
    given = f"checkpoint.directory = {seen.parent}"
    try:
        if not seen.exists():
            raise UsageError(
                f"{given}: is not the folder of that name of rank {world.clients[0]}: what that rank has just written "
                f"there is not to be seen; {_EXPECTED}"
            )
        try_writing(seen.with_name(f"{seen.name}.{world.rank}"))
    except OSError as error:
        raise UsageError(f"{given}: cannot be written: {error.strerror}; {_EXPECTED}") from error


def _require_metrics(path: Path, job_file: str) -> None:
    """Raise UsageError unless the file of metrics can be written, and holds metrics if it holds anything."""
    given = f"metrics.path: file '{path}'"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.is_dir():
            raise UsageError(f"{given}: that is a directory; expected the name of a file, or none")
        if not path.exists():
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL))
            path.unlink()
            try_writing(path.parent / f".{os.getpid()}.try")
        elif path.is_file():  # a device or a pipe, which may have no reader yet, is left alone
            os.close(os.open(path, os.O_WRONLY))
            if path.samefile(job_file) or not _is_of_metrics(path):
                raise UsageError(f"{given}: the file is there and holds no metrics; give another name, or remove it")
    except OSError as error:
        raise UsageError(f"{given} cannot be written: {error.strerror}; set metrics.path to another name") from error


def _is_of_metrics(path: Path) -> bool:
    """Return whether the first line of a file is one of metrics, or torn; true of an empty file."""
    with open(path, "rb") as file:
        line = file.readline(1 << 20)
    try:
        return not line or "kind" in json.loads(line)
    except (ValueError, TypeError):
        return line.startswith(b'{"kind": ')
