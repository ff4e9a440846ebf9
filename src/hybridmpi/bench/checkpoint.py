"""Benchmark: a checkpoint on its way to disk and back, and for how long training stands still for it.

Purpose     bytes/s of a checkpoint written at once, with its digests, beside a plain sequential write of as many bytes
            with fsync into the same directory; seconds that `save` keeps training when it is written behind, beside a
            plain copy of as many bytes in memory; seconds to resume from one, every byte held against its digest,
            beside a plain read of the same files, which are in the page cache
Parameters  mb: MiB of the table and of its optimiser state together; directory: on the file system to be measured;
            servers; repeats
Validated   both checkpoints have the same digests, and every byte on disk is what was written
Time        of compute rank 0. All take turns. The plain write is one rank's, of all the bytes; a copy is into
            memory that is there already, each owner copying its share at once. "x NAME": times as fast as that
"""

from __future__ import annotations

import argparse
import os
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from hybridmpi.bench.measure import at_least, ratio, require, row, server_count, start_together
from hybridmpi.checkpoint import Checkpoint, verify
from hybridmpi.checkpoint.manifest import read_manifest
from hybridmpi.errors import HybridMPIError
from hybridmpi.nn import Embedding, Module
from hybridmpi.optim import Adagrad
from hybridmpi.roles import Servers
from hybridmpi.training.trainer import Trainer
from hybridmpi.world import World

DIM = 64
PIECE_BYTES = 4 << 20


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `hybridmpi bench checkpoint`."""
    count = at_least(1)
    parser.add_argument("--mb", type=count, default=1024, help="MiB that are saved (default %(default)s)")
    parser.add_argument("--directory", default=".", help="where it is written, for a while (default: here)")
    parser.add_argument("--repeats", type=count, default=3, help="timed repetitions (default %(default)s)")
    parser.add_argument(
        "--servers", type=server_count, default="per-node", metavar="N", help="or per-node (default %(default)s)"
    )


def servers(options: argparse.Namespace) -> Servers:
    """Return how many ranks hold the table. Local."""
    return options.servers


class _Table(Module):
    """A table and nothing else: it is saved, not trained."""

    def __init__(self, rows: int) -> None:
        super().__init__()
        self.table = Embedding(rows, DIM)

    def loss(self, batch: Any) -> Any:
        """A Trainer wants one; nothing is trained."""
        raise NotImplementedError


def measure(world: World, options: argparse.Namespace) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return (parameters, rows). Collective over compute. Raises HybridMPIError when a checkpoint is wrong."""
    rows = max(1, (options.mb << 20) // (2 * DIM * 4))
    folder = Path(world.from_root(lambda: _folder(options.directory)))
    try:
        trainer = Trainer(world, _Table(rows), Adagrad(0.1, initial=0.1), mode="ps")
        size = world.from_root(lambda: 0)
        names = ("plain", "at once", "read", "resume", "copy", "behind", "until whole")
        seconds: dict[str, list[float]] = {name: [] for name in names}
        share = np.ones(2 * rows * DIM // len(world.owners), np.float32)
        copy = np.zeros_like(share)
        for repeat in range(options.repeats + 1):  # the first one touches memory and is not counted
            at_once = _timed(world, lambda: trainer.save(folder / "at once", keep=1))
            size = Checkpoint.open(folder / "at once").size if world.on_root() else 0
            plain = _timed(world, lambda n=size: _write_plain(folder / "plain", n) if world.on_root() else None)
            read = _timed(world, lambda: _read_plain(folder / "at once") if world.on_root() else None)
            resumed = _timed(world, lambda: trainer.load(folder / "at once"))
            copied = _timed(world, lambda: np.copyto(copy, share) if _copies(world) else None)
            trainer.step += 1  # as in training: no generation of the same step is in the way
            behind = _timed(world, lambda: trainer.save(folder / "behind", keep=1, behind=True))
            whole = behind + _timed(world, trainer.saved)
            if repeat:
                values = (plain, at_once, read, resumed, copied, behind, whole)
                for name, value in zip(names, values, strict=True):
                    seconds[name].append(value)
        require(world, not world.on_root() or _is_right(folder), "what lies on disk is not what was written")
        trainer.close()
        world.barrier()
    finally:
        if world.on_root():
            shutil.rmtree(folder, ignore_errors=True)
    results = []
    if world.on_root():
        nbytes = {"bytes": size}
        results = [
            row("plain write, fsync", [size / s / 1e6 for s in seconds["plain"]], "MB/s", **nbytes),
            row(
                "checkpoint at once",
                [size / s / 1e6 for s in seconds["at once"]],
                "MB/s",
                **nbytes,
                ratio={"plain": ratio(seconds["at once"], seconds["plain"])},
            ),
            row("plain read", seconds["read"], "s", **nbytes),
            row("resume", seconds["resume"], "s", **nbytes, ratio={"read": ratio(seconds["resume"], seconds["read"])}),
            row("copy in memory", seconds["copy"], "s", **nbytes),
            row(
                "behind: training stops",
                seconds["behind"],
                "s",
                **nbytes,
                ratio={"copy": ratio(seconds["behind"], seconds["copy"])},
            ),
            row("behind: whole after", seconds["until whole"], "s", **nbytes),
        ]
    return {"mb": options.mb, "directory": options.directory}, results


def _folder(directory: str) -> str:
    try:
        return tempfile.mkdtemp(prefix="bench-checkpoint-", dir=directory)
    except OSError as error:
        raise HybridMPIError(f"--directory {directory}: {error.strerror}; expected a directory to write in") from error


def _timed(world: World, function: Any) -> float:
    """Return this rank's seconds of `function`, begun by all together and ended when all have ended."""
    start_together(world)
    started = time.perf_counter()
    function()
    world.barrier()
    return time.perf_counter() - started


def _copies(world: World) -> bool:
    """Return whether this rank stands for one that owns rows: there may be more of one kind than of the other."""
    return world.compute.Get_rank() < len(world.owners)


def _read_plain(folder: Path) -> None:
    """Read every file below `folder`, one after the other."""
    buffer = bytearray(PIECE_BYTES)
    for path in sorted(each for each in folder.rglob("*") if each.is_file()):
        with open(path, "rb", buffering=0) as file:
            while file.readinto(buffer):
                pass


def _write_plain(path: Path, nbytes: int) -> None:
    """Write so many bytes one after the other, and wait until they are on disk."""
    piece = np.random.default_rng(1).bytes(PIECE_BYTES)
    descriptor = os.open(path, os.O_CREAT | os.O_TRUNC | os.O_WRONLY, 0o600)
    try:
        while nbytes > 0:
            nbytes -= os.write(descriptor, piece[: min(nbytes, PIECE_BYTES)])
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
        path.unlink()


def _is_right(folder: Path) -> bool:
    """Compare the newest of both: they differ in the step, which only dense.h5 and index.h5 hold."""
    files = [read_manifest(Checkpoint.open(folder / name).directory)["files"] for name in ("at once", "behind")]
    digests = [[file["sha256"] for file in of_one if file["name"].startswith("server")] for of_one in files]
    return digests[0] == digests[1] and not verify(folder / "at once") and not verify(folder / "behind")
