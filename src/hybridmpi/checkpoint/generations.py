"""The life of a generation: begun, written by many ranks, committed by its manifest, found again, pruned."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from hybridmpi.checkpoint.files import FileRecord, sync, sync_names
from hybridmpi.checkpoint.index import write_index
from hybridmpi.checkpoint.layout import DENSE_FILE, INDEX_FILE, MANIFEST_FILE, Progression, overlap, server_file
from hybridmpi.checkpoint.manifest import read_manifest, to_entry, write_manifest
from hybridmpi.checkpoint.write import check_meta
from hybridmpi.errors import CheckpointError

# A generation that is being written again keeps its predecessor under this suffix until the new one is whole.
REPLACED = ".replaced"
# Which run began a generation that is not whole yet; and where the meta of one says which run wrote it.
BEGUN_FILE, RUN = ".begun.record", "run_id"
_GENERATION = re.compile(r"step-(\d{8,})(\.replaced)?")
_OWN_FILE = re.compile(r"(dense|index|server-\d{3,})\.h5|manifest\.json|\..+\.(tmp|record)")


def step_directory(root: str | os.PathLike, step: int) -> Path:
    """Return the directory of the generation of `step` below `root`. Local."""
    return Path(root) / f"step-{step:08d}"


def generations(root: str | os.PathLike) -> list[Path]:
    """Return the generation directories below `root`, newest first, whole or not. Local."""
    try:
        found = [(match, Path(root) / match[0]) for name in os.listdir(root) if (match := _GENERATION.fullmatch(name))]
    except (FileNotFoundError, NotADirectoryError):
        return []
    return [path for match, path in sorted(found, key=lambda f: (-int(f[0][1]), f[0][2] or ""))]


def newest(root: str | os.PathLike) -> Path | None:
    """Return the generation that was committed last, of those with a valid manifest, or None. Local.

    Not the one with the highest step: a directory may hold those of an earlier, longer run.
    """
    return next(iter(_whole(root)), None)


def _whole(root: str | os.PathLike) -> list[Path]:
    """Return the whole generations below `root`, last committed first."""
    times = {path: created for path in generations(root) if (created := _created(path)) is not None}
    return sorted(times, key=lambda path: times[path], reverse=True)


def find(path: str | os.PathLike) -> Path:
    """Return the directory of the generation that `path` means: itself, its file's, or the newest below it. Local.

    Raises CheckpointError saying what is missing when there is none.
    """
    path = Path(path)
    if path.is_file() and (path.parent / MANIFEST_FILE).exists():
        return path.parent
    if (path / MANIFEST_FILE).exists():
        return path
    directory = newest(path)
    if directory is not None:
        return directory
    if not path.exists():
        raise CheckpointError(f"{path}: no such file or directory; expected a checkpoint directory")
    reasons = []
    for broken in generations(path):
        try:
            read_manifest(broken)
        except CheckpointError as error:
            reasons.append(str(error))
    if reasons:
        raise CheckpointError(f"{path} holds no whole checkpoint:\n  " + "\n  ".join(reasons))
    raise CheckpointError(
        f"{path} is not a checkpoint: expected a directory with {MANIFEST_FILE}, one with step-NNNNNNNN directories, "
        f"or an {INDEX_FILE} beside its {MANIFEST_FILE}"
    )


def candidates(path: str | os.PathLike) -> tuple[list[Path], list[str]]:
    """Return the generations that `path` may mean, in the order in which to try them, and what is wrong with newer
    ones whose manifests cannot be read. Local.

    A generation, or a file in it, means that one; a directory of them the one committed last, then those before it.
    Raises CheckpointError as `find` does where there is none.
    """
    directory = find(path)
    if Path(path).is_file() or (Path(path) / MANIFEST_FILE).exists():
        return [directory], []
    return _whole(path), [text for broken, text in broken_manifests(path) if _step(broken) > _step(directory)]


def broken_manifests(root: str | os.PathLike) -> list[tuple[Path, str]]:
    """Return the generations below `root` with a manifest that cannot be read, newest first, and why. Local."""
    found = []
    for directory in generations(root):
        if (directory / MANIFEST_FILE).exists():
            try:
                read_manifest(directory)
            except CheckpointError as error:
                found.append((directory, str(error)))
    return found


def remove_all(root: str | os.PathLike) -> None:
    """Remove all generations below `root`, whole or not, but for files that are no checkpoint's. Local."""
    for directory in generations(root):
        if not directory.is_symlink():
            _remove(directory)


def _step(directory: Path) -> int:
    return int(_GENERATION.fullmatch(directory.name)[1])


def begin(root: str | os.PathLike, step: int, run: str | None = None) -> Path:
    """Make the directory of `step` ready to be written and return it. Local: one rank calls it, before all writes.

    `run`: the name of the run that writes it, for `prune`.

    A whole generation of the same step is moved aside and counts until the new one is committed; what is left of a
    broken write is removed. Raises CheckpointError when the directory cannot be made.
    """
    directory = step_directory(root, step)
    try:
        if _is_whole(directory):
            replaced = directory.with_name(directory.name + REPLACED)
            _remove(replaced)
            os.rename(directory, replaced)
            sync(Path(root))
        _remove(directory)
        directory.mkdir(parents=True, exist_ok=True)
        sync_names(directory)
        if run is not None:
            (directory / BEGUN_FILE).write_text(run, encoding="utf-8")
    except OSError as error:
        raise CheckpointError(
            f"{directory}: cannot be made: {error}; expected a writable directory on a file system that all hosts share"
        ) from error
    return directory


def commit(directory: Path, step: int, records: Sequence[FileRecord], meta: Mapping[str, Any]) -> Path:
    """Make the generation in `directory` whole: check its files, write index.h5, then manifest.json. Local.

    One rank calls it when every `write_server` and the one `write_dense` have returned; `records` are theirs, in any
    order. `meta` is added to the meta that was given to `write_dense`, and wins. Raises CheckpointError when a file is
    missing or has another size than was written, when a server's file is missing from `records`, or when the shards do
    not cover every row of every table exactly once. Returns `directory`.
    """
    directory = Path(directory)
    if directory.name != step_directory("", step).name:
        raise CheckpointError(
            f"{directory}: expected the name {step_directory('', step).name} for step {step}; use begin(root, step)"
        )
    check_meta(meta)
    _check_records(records)
    for record in records:
        check_size(directory, record)
    by_name = {record.name: record for record in records}
    dense = by_name[DENSE_FILE].contents
    tables = _join_tables(records)
    for name in tables:
        if name in dense["parameters"]:
            raise CheckpointError(f"{directory}: '{name}' is both a dense parameter and a table; rename one")
    index = write_index(directory, step, dense, tables)
    (directory / BEGUN_FILE).unlink(missing_ok=True)
    write_manifest(
        directory,
        {
            "step": step,
            "created": _time_of_commit(directory.parent),
            "servers": len(records) - 1,
            "parameters": dense["parameters"],
            "tables": tables,
            "carried": dense["carried"],
            "words": dense["words"],
            "meta": dense["meta"] | dict(meta),
            "files": [to_entry(record) for record in sorted((*records, index), key=lambda record: record.name)],
        },
    )
    return directory


def prune(root: str | os.PathLike, keep: int, run: str | None = None) -> list[Path]:
    """Remove all but the `keep` newest whole generations, and what broken writes before the newest one left. Local.

    `run`: only generations that the run of this name wrote or began; what is another's neither goes nor counts. The
    manifest goes first, so that a generation half removed does not count. The newest whole generation always stays, and
    so do broken ones of higher steps: they may be on their way. Only files of a checkpoint are removed, and nothing
    behind links. Returns what was removed.
    """
    if keep < 1:
        raise CheckpointError(f"prune: keep is {keep}; expected at least 1 generation to keep")
    found = [path for path in generations(root) if not path.is_symlink() and run in (None, run_of(path))]
    whole = [path for path in _whole(root) if path in found]
    if not whole:
        return []
    kept = {whole[0], *[path for path in whole if path.suffix != REPLACED][:keep]}
    on_their_way = set(found[: found.index(whole[0])]) - set(whole)
    removed = [path for path in found if path not in kept and path not in on_their_way]
    for path in reversed(removed):
        _remove(path)
    return removed


def run_of(directory: Path) -> str | None:
    """Return the run that wrote a generation, or began to; None where it does not say. Local."""
    try:
        run = read_manifest(directory)["meta"].get(RUN)
    except CheckpointError:
        try:
            run = (directory / BEGUN_FILE).read_text(encoding="utf-8")
        except (OSError, ValueError):
            run = None
    return run if isinstance(run, str) else None


def check_size(directory: Path, record: FileRecord) -> None:
    """Raise CheckpointError unless the file of `record` exists in `directory` with the recorded size. Local."""
    path = directory / record.name
    hint = f"it was written on {record.host}: is {directory} on a file system that all hosts share?"
    try:
        with open(path, "rb") as file:  # opening, unlike stat, makes NFS ask its server
            size = os.fstat(file.fileno()).st_size
    except OSError as error:
        raise CheckpointError(f"{path}: expected {record.size} bytes, found no file ({error}); {hint}") from error
    if size != record.size:
        raise CheckpointError(f"{path}: expected {record.size} bytes, found {size}; {hint}")


def _is_whole(directory: Path) -> bool:
    return _created(directory) is not None


def _created(directory: Path) -> tuple[str, int] | None:
    """Return when a generation was committed, and its step; None if it is not whole."""
    with suppress(CheckpointError):
        content = read_manifest(directory)
        if content["step"] == int(_GENERATION.fullmatch(directory.name)[1]):
            return content["created"], content["step"]
    return None


def _time_of_commit(root: Path) -> str:
    """Return the time, ISO 8601 in UTC; after that of every generation there is, also if hosts' clocks differ."""
    now = datetime.now(UTC)
    latest = newest(root)
    if latest is not None:
        now = max(now, datetime.fromisoformat(_created(latest)[0]) + timedelta(microseconds=1))
    return now.isoformat(timespec="microseconds")


def _remove(directory: Path) -> None:
    """Remove the files of a checkpoint from `directory`, the manifest first, and the directory if that empties it."""
    if not directory.is_dir():
        return
    (directory / MANIFEST_FILE).unlink(missing_ok=True)
    sync(directory)
    for name in os.listdir(directory):
        if _OWN_FILE.fullmatch(name):
            (directory / name).unlink(missing_ok=True)
    with suppress(OSError):  # someone else's files stay, with their directory
        directory.rmdir()


def _check_records(records: Sequence[FileRecord]) -> None:
    """Raise CheckpointError unless `records` are dense.h5 once and every server's file once."""
    names = [record.name for record in records]
    servers = {record.contents["servers"] for record in records if "servers" in record.contents}
    count = max(servers, default=0)
    expected = sorted([DENSE_FILE, *(server_file(server) for server in range(count))])
    if sorted(names) != expected or len(servers) > 1:
        raise CheckpointError(
            f"cannot commit: expected one record each of {', '.join(expected)}, found "
            f"{', '.join(sorted(names)) or 'none'} (number of servers in them: {sorted(servers)}); gather the records "
            "of every writing rank"
        )


def _join_tables(records: Sequence[FileRecord]) -> dict[str, Any]:
    """Return every table with its shards in the order of servers; raise CheckpointError unless they fit together."""
    tables: dict[str, Any] = {}
    for record in sorted(records, key=lambda record: record.contents.get("server", -1)):
        for shard in record.contents.get("shards", []):
            name = shard["name"]
            common = {key: shard[key] for key in ("rows", "dim", "dtype", "kind", "slots")}
            place = {"file": record.name} | {key: shard[key] for key in ("path", "first", "stride", "count")}
            table = tables.setdefault(name, common | {"shards": []})
            for key, value in common.items():
                if table[key] != value:
                    raise CheckpointError(
                        f"table '{name}': {record.name} says {key} {value}, {table['shards'][0]['file']} says "
                        f"{table[key]}; all servers must hold the same table"
                    )
            span = Progression(place["first"], place["stride"], place["count"])
            for other in table["shards"]:
                if overlap(span, Progression(other["first"], other["stride"], other["count"])):
                    raise CheckpointError(f"table '{name}': {other['file']} and {record.name} hold the same rows")
            table["shards"].append(place)
    for name, table in tables.items():
        covered = sum(shard["count"] for shard in table["shards"])
        if covered != table["rows"]:
            raise CheckpointError(
                f"table '{name}': the shards hold {covered} of {table['rows']} rows; every server must write its shard"
            )
    return dict(sorted(tables.items()))
