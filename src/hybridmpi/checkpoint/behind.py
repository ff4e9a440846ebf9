"""Written behind: a rank copies what it holds, and a thread of its own writes the copies while training goes on.

Threads do not use MPI. A rank tells the one that commits that its file is on disk by a small file beside it, through
the file system that all of them share: the record that the manifest wants, or what went wrong.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from threading import Event
from typing import Any

import numpy as np

from hybridmpi.arrays import namespace
from hybridmpi.checkpoint.files import FileRecord
from hybridmpi.checkpoint.layout import TableShard, server_file
from hybridmpi.checkpoint.manifest import from_entry, to_entry
from hybridmpi.checkpoint.write import write_server
from hybridmpi.errors import CheckpointError

# Between looks whether the other ranks' files are there: a checkpoint takes seconds to minutes.
LOOK_SECONDS = 0.02


class Behind:
    """Copies arrays and writes the copies in a thread, one checkpoint at a time. Local.

    The memory of the copies is kept for the next checkpoint: it must be there every time, and memory that is new to a
    process takes longer to touch than to fill.
    """

    def __init__(self) -> None:
        self._kept: dict[str, np.ndarray] = {}
        self._used: set[str] = set()
        self._thread: ThreadPoolExecutor | None = None
        self._writing: Future | None = None

    def copies(self, of: str, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Return copies of `arrays`, by the same names, in host memory; `of` sets them apart from others of a name."""
        return {name: self._copy(f"{of}/{name}", array) for name, array in arrays.items()}

    def _copied(self, number: int, table: TableShard) -> TableShard:
        values = self._copy(f"{number}", table.values)
        return replace(table, values=values, state=self.copies(f"{number}", table.state))

    def _copy(self, key: str, array: np.ndarray) -> np.ndarray:
        kept = self._kept.get(key)
        if kept is None or kept.nbytes < array.nbytes:
            kept = self._kept[key] = np.empty(array.nbytes, np.uint8)
        self._used.add(key)
        copy = kept[: array.nbytes].view(array.dtype).reshape(array.shape)
        copy[...] = array if namespace(array) is np else array.get()
        return copy

    def start(self, write: Callable[[], Any]) -> None:
        """Run `write` in the thread. What was started before must have ended."""
        for key in self._kept.keys() - self._used:
            del self._kept[key]
        self._used.clear()
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, "checkpoint-behind")
        self._writing = self._thread.submit(write)

    def write_server(self, directory: Path, server: int, servers: int, tables: Sequence[TableShard]) -> None:
        """Copy what `checkpoint.write_server` would write, write it in the thread, and leave its record."""
        copied = [self._copied(number, table) for number, table in enumerate(tables)]

        def write() -> None:
            try:
                record = write_server(directory, server, servers, copied)
            except Exception as error:
                with suppress(OSError):  # a full disk refuses this too; then `result` says it
                    leave(directory, server_file(server), {"error": str(error)})
                raise
            leave(directory, record.name, {"record": to_entry(record), "contents": record.contents})

        self.start(write)

    @property
    def done(self) -> bool:
        """Whether nothing is being written."""
        return self._writing is None or self._writing.done()

    def result(self) -> None:
        """Wait for what is being written; raise what it raised."""
        writing, self._writing = self._writing, None
        if writing is not None:
            writing.result()

    def check(self) -> None:
        """Raise what was raised in the thread, if it has ended so; do not wait."""
        if self._writing is not None and self._writing.done():
            self._writing.result()

    def close(self) -> None:
        """Give back the thread and the memory, when nothing is being written any more."""
        if self._thread is not None:
            self._thread.shutdown()
            self._thread = None
        self._kept.clear()


def leave(directory: Path, name: str, content: Mapping[str, Any]) -> None:
    """Leave word of the file `name` for the rank that commits. Local."""
    path = record_path(directory, name)
    aside = path.with_suffix(".tmp")
    aside.write_text(json.dumps(content), encoding="utf-8")
    aside.replace(path)


def collect(directory: Path, servers: int, given_up: Event) -> list[FileRecord]:
    """Wait for what all `servers` writers of a generation leave, take it away, and return their records. Local.

    Raises CheckpointError when one of them could not write, when `given_up` is set meanwhile, or when the directory is
    gone: then no word can come, and the end of the program would wait for this thread for ever.
    """
    records = []
    for server in range(servers):
        path = record_path(directory, server_file(server))
        while (content := _read(path)) is None:
            if given_up.wait(LOOK_SECONDS):
                raise CheckpointError(f"{directory}: given up: {path.name} never came")
            if not directory.is_dir():
                raise CheckpointError(f"{directory}: was removed while a checkpoint was written into it; save again")
        if "error" in content:
            raise CheckpointError(content["error"])
        records.append(replace(from_entry(content["record"]), contents=content["contents"]))
    for record in records:
        record_path(directory, record.name).unlink()
    return records


def record_path(directory: Path, name: str) -> Path:
    """Return where word of the file `name` is left. Local."""
    return directory / f".{name}.record"


def _read(path: Path) -> dict[str, Any] | None:
    try:
        return json.loads(path.read_text(encoding="utf-8"))  # opening, unlike listing, makes NFS ask its server
    except FileNotFoundError:
        return None
