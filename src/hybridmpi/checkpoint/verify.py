"""Hold every byte of a generation against its manifest, and name what is damaged."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from hybridmpi.checkpoint.files import SLAB_BYTES, FileRecord, MarkedDigest
from hybridmpi.checkpoint.generations import find
from hybridmpi.checkpoint.manifest import from_entry, read_manifest
from hybridmpi.checkpoint.read import Arrays
from hybridmpi.checkpoint.source import opened_plainly, why
from hybridmpi.cores import usable_cores


@dataclass(frozen=True)
class Damage:
    """One damaged file: its name, the first damaged part of it ("" if unknown), and what is wrong in words.

    The first damaged byte is one of those from `begin` to before `end`, where that is known.
    """

    file: str
    part: str
    text: str
    begin: int | None = None
    end: int | None = None


def verify(path: str | os.PathLike) -> list[Damage]:
    """Return every damaged file of the generation that `path` means, the empty list if all is well. Local.

    Reads every byte once. One flipped byte anywhere is found, and the dataset (and rows of it) that holds the first
    damaged byte is named: the manifest keeps the digest of what comes before the end of each. Raises CheckpointError
    when there is no whole generation, or when the manifest itself is damaged.
    """
    directory = find(path)
    content = read_manifest(directory)
    records = [from_entry(entry) for entry in content["files"]]
    Arrays(directory, content, {record.name: record for record in records})
    threads = min(len(records), usable_cores())
    with ThreadPoolExecutor(threads, "checkpoint-verify") as pool:  # reading and hashing need no interpreter
        return [damage for damage in pool.map(partial(verify_file, directory), records) if damage is not None]


def verify_file(directory: Path, record: FileRecord) -> Damage | None:
    """Return what is wrong with one file, or None. Local."""
    digest = MarkedDigest()
    try:
        with opened_plainly(directory / record.name) as descriptor, open(descriptor, "rb", 0, closefd=False) as file:
            size = os.fstat(file.fileno()).st_size
            if size != record.size:
                how = "cut short" if size < record.size else "it grew"
                return Damage(record.name, "", f"expected {record.size} bytes, found {size}: {how}, or was replaced")
            position, buffer = 0, bytearray(min(SLAB_BYTES, max(1, record.size)))
            for mark in record.marks:
                while position < mark.end:
                    count = file.readinto(memoryview(buffer)[: mark.end - position])
                    if not count:
                        return Damage(record.name, mark.part, f"ended at byte {position} while it was read")
                    digest.update(memoryview(buffer)[:count], mark.part)
                    position += count
                begin = digest.marks[-2].end if len(digest.marks) > 1 else 0
                found = digest.marks[-1]
                if found.digest != mark.digest or mark.crc not in (found.crc, None):
                    text = f"bytes {begin} to {mark.end - 1} are not what was written: {mark.part}"
                    return Damage(record.name, mark.part, text, begin, mark.end)
    except OSError as error:
        return Damage(record.name, "", f"cannot be read: {why(error)}")
    if digest.hexdigest() != record.sha256:
        return Damage(record.name, "", f"sha256 is {digest.hexdigest()}, expected {record.sha256}")
    return None
