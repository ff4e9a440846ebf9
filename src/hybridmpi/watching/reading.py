"""Reading a metrics file while a job writes it."""

from __future__ import annotations

import math
import os
import stat
import time
from pathlib import Path
from typing import BinaryIO

from hybridmpi.errors import UsageError
from hybridmpi.watching.history import History
from hybridmpi.watching.lines import parse, record

FILE_NAME = "metrics.jsonl"
CHUNK = 1 << 22
SHOWN = 300  # characters of a name
# More bytes than the lines of lines.RECENT steps take.
LATEST = 1 << 20
# The first bytes of a file, by which one that was written anew is known: its first line has the time.
BEGINNING = 64
_START = b'\n{"kind": "run", '


def metrics_file(path: str | os.PathLike) -> Path:
    """Return the metrics file that `path` means: itself, or the one in that directory. Local."""
    path = Path(path)
    try:
        return path if path.suffix == ".jsonl" or path.is_file() else path / FILE_NAME
    except (OSError, ValueError) as error:
        raise _unreadable(path, error) from error


def read_metrics(path: str | os.PathLike) -> History:
    """Return what a run has written so far; `path` is its metrics file or the directory of it. Local, without MPI.

    `history.curves.mean("loss")` and `.mean("step")` are the curve of losses, and so on; NaN where there is nothing.
    Raises UsageError when there is no such file.
    """
    reader = MetricsReader(path)
    require_metrics(reader)
    return reader.history


def _unreadable(file: Path, error: OSError | ValueError) -> UsageError:
    what = getattr(error, "strerror", None) or error  # of a name with a zero byte there is a text alone
    shown = str(file).replace("\0", "\\0")
    return UsageError(f"{shown[:SHOWN]}: cannot be read: {what}; expected a metrics file")


class MetricsReader:
    """Follows a metrics file: each `poll` takes in the lines that have come since. Local.

    A line without its end is left for later. A file that was written anew, or has become shorter, is read from its
    beginning, and so is one in which a job goes on from an earlier step: what is kept of steps done again must go.
    """

    def __init__(self, path: str | os.PathLike) -> None:
        self.file = metrics_file(path)
        self._forget()

    def _forget(self) -> None:
        self.history = History()
        self._offset, self._rest, self._beginning = 0, b"", b""
        self._identity: tuple[int, int] | None = None
        self._ends: list[float] = []  # for each start to come, the last step that the starts before it keep
        self._seen = math.nan

    def poll(self) -> bool:
        """Take in what is new; return whether there was anything. Raises UsageError for what is no readable file."""
        try:
            # A pipe that nobody writes would hold up the open.
            with os.fdopen(os.open(self.file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
                if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                    raise OSError(0, "it is a pipe, a device or a directory")
                return self._read(file)
        except FileNotFoundError:
            return False
        except (OSError, ValueError) as error:
            raise _unreadable(self.file, error) from error

    def _read(self, file: BinaryIO) -> bool:
        status = os.fstat(file.fileno())
        beginning = file.read(BEGINNING)
        if self._offset and (
            (status.st_dev, status.st_ino) != self._identity
            or status.st_size < self._offset
            or not beginning.startswith(self._beginning)
        ):
            self._forget()
        if status.st_size <= self._offset:
            return False
        first = self._offset == 0
        self._identity = (status.st_dev, status.st_ino)
        if len(self._beginning) < BEGINNING:
            self._beginning = beginning
        file.seek(self._offset)
        while chunk := file.read(CHUNK):
            self._offset += len(chunk)
            text, end, self._rest = (self._rest + chunk).rpartition(b"\n")
            if end and not self._take(text, latest=status.st_size - self._offset < LATEST):
                return self._read_again(file)
        self._seen = status.st_mtime if first else time.time()
        return True

    def _read_again(self, file: BinaryIO) -> bool:
        self._forget()
        self._ends = _ends(file)
        file.seek(0)
        return self._read(file)

    def _take(self, text: bytes, latest: bool) -> bool:
        """Take in whole lines; return False if a start among them goes back to a step that is not known to be kept."""
        for said in parse(text, self.history.stride, latest):
            if isinstance(said, dict) and said["kind"] == "run":
                if self._ends:
                    del self._ends[0]
                elif said["step"] < self.history.step:
                    return False
            self.history.add(said, self._ends[0] if self._ends else math.inf)
        return True

    def age(self) -> float:
        """Return the seconds since the file grew last, as far as is known; NaN without a file. Local."""
        return max(0.0, time.time() - self._seen)


def require_metrics(reader: MetricsReader) -> None:
    """Take in what there is. Local. Raises UsageError when there is nothing."""
    there = reader.poll()
    if reader.history.starts or reader.history.step or reader.history.evaluations:
        return
    what = "holds no line of metrics" if there else "is empty" if reader.file.is_file() else "is not there"
    raise UsageError(
        f"{reader.file} {what}: expected the metrics file of a run, or its directory: checkpoint.directory in the job "
        "file, such as runs/lm (metrics.path can name another place). A job begins it when it has read its data"
    )


def _ends(file: BinaryIO) -> list[float]:
    """Return for each start of a job in the file the last step of what came before it that no later start does again.

    Starts are few, and found without reading lines.
    """
    # A line begins after the end of another one, or at the beginning of the file.
    steps, offset, rest = [], 0, b"\n"
    file.seek(0)
    while chunk := file.read(CHUNK):
        text = rest + chunk
        at = text.find(_START)
        while at >= 0:
            file.seek(offset - len(rest) + at + 1)
            if (said := record(file.readline())) is not None:
                steps.append(float(said["step"]))
            at = text.find(_START, at + 1)
        offset += len(chunk)
        file.seek(offset)
        rest = text[1 - len(_START) :]
    return [min(steps[number:]) for number in range(len(steps))]
