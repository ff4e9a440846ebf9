"""Trace: a timeline of some steps of a run, with a track for every rank, servers too."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from hybridmpi.errors import HybridMPIError, UsageError
from hybridmpi.field_types import Count, checks_arguments
from hybridmpi.large_counts import send_object
from hybridmpi.recording import Recording
from hybridmpi.sparse.clocks import Reading, read_clock, show_clock
from hybridmpi.tags import Tag
from hybridmpi.training.timeline import Track, aside_of, write_timeline
from hybridmpi.training.trainer import StepResult, Trainer
from hybridmpi.world import World

# Without other wishes: so many steps, after the first few, in which code is loaded and memory is touched.
WARM_UP, STEPS = 3, 20

# Intervals of all ranks together: some 60 MB of JSON, which a viewer still takes.
MOST_INTERVALS = 500_000


class Trace:
    """Records steps `first` to `last` of a trainer and writes them to `path`. Collective over compute; the servers come
    along.

    Call `step` after every step (it is an `on_step` of Trainer.fit), and `finish` at the end. None: the 20 steps after
    the next three. The file is written after step `last`, with staleness by `finish`. Times of other hosts are told by
    their clocks, which are read before and after. `said`: on compute rank 0, in words, what became of it; "" before.

    Raises UsageError, before anything is recorded, when the file cannot be written or all of the steps are done.
    """

    @checks_arguments
    def __init__(
        self, trainer: Trainer, path: str | Path, first: Count | None = None, last: Count | None = None
    ) -> None:
        self.trainer, self.world, self.path = trainer, trainer.world, Path(path)
        self.first = trainer.step + 1 + WARM_UP if first is None else first
        self.last = self.first + STEPS - 1 if last is None else last
        self.said = ""
        if not 1 <= self.first <= self.last or self.last <= trainer.step:
            raise UsageError(
                f"trace of steps {self.first} to {self.last}: expected steps from {trainer.step + 1} on, the first one "
                "first"
            )
        self.world.from_root(self._try_file)
        # With staleness every rank goes through these steps in its own time.
        self._together = trainer.synchronous
        self._steps: dict[int, int] = {}
        self._recorded: tuple[int, int] | None = None
        self._found: dict[int, Recording] = {}
        self._over = False
        self._before = {} if self._together else read_clocks(self.world)
        self._begin_if_due()

    def _try_file(self) -> None:
        try:
            if self.path.is_dir():
                raise IsADirectoryError(0, "it is a directory")
            self.path.parent.mkdir(parents=True, exist_ok=True)
            aside = aside_of(self.path)
            aside.touch()
            aside.unlink()
        except OSError as error:
            raise UsageError(f"trace file '{self.path}' cannot be written: {error.strerror}; name another") from error

    def step(self, result: StepResult) -> None:
        """Take note of a step; begin or end recording where it is time. Collective over compute, with staleness
        Local."""
        if self.world.recording is not None and self._recorded is not None:
            self._recorded = self._recorded[0], result.step
            if not result.skipped:
                self._steps[self.trainer.exchange.updates] = result.step
            if result.step >= self.last:
                self._end()
                if self._together:
                    self.finish()
        self._begin_if_due()

    def _begin_if_due(self) -> None:
        """Begin to record if the next step is to be."""
        if self._recorded is not None or self.trainer.step + 1 < self.first:
            return
        if self.world.recording is not None:
            raise UsageError(f"trace '{self.path}': another trace of this world is being recorded; finish it first")
        self._recorded = self.trainer.step + 1, self.trainer.step
        if self._together:
            self._before = read_clocks(self.world)
        limit = MOST_INTERVALS // self.world.size
        if self.world.on_root():
            self._ask_servers("record", limit=limit)
        self.world.recording = Recording(limit)

    def _end(self) -> None:
        """Record no more. Local."""
        if self.world.recording is None:
            return
        self._found[self.world.rank], self.world.recording = self.world.recording, None
        if self.world.on_root():
            self._found.update(zip(self.world.servers, self._ask_servers("recorded"), strict=True))

    def _ask_servers(self, command: str, **arguments: Any) -> list[Any]:
        answers = self.trainer.service.ask_servers(command, **arguments)
        for rank, (done, value) in zip(self.world.servers, answers, strict=True):
            if not done:
                raise HybridMPIError(f"rank {rank} ({self.world.role_of(rank)}) could not {command}: {value}")
        return [value for _, value in answers]

    def finish(self) -> None:
        """Gather what was recorded on compute rank 0 and write the file; a second call does nothing. Collective over
        compute.

        A file that cannot be written now stops nobody: `said` says so.
        """
        if self._over:
            return
        self._over = True
        self._end()
        # With staleness some ranks may have gone through the steps, and others not.
        if not any(self.world.gather(self._recorded is not None)):
            if self.world.on_root():
                self.said = f"no trace: the run ended after step {self.trainer.step:,}, before step {self.first:,}"
            return
        began = time.perf_counter()
        recordings = gather(self.world, self._found)
        after = read_clocks(self.world)
        if not self.world.on_root():
            return
        tracks = [
            Track(rank, self.world.role_of(rank), recordings.get(rank, Recording(0)), self._clock_of(rank, after))
            for rank in [*self.world.clients, *self.world.servers]
        ]
        first, last = self._recorded or (self.first, self.last)
        errors = {f"node {node}": max(self._before[node].error, reading.error) * 1e6 for node, reading in after.items()}
        left_out = sum(recording.left_out for recording in recordings.values())
        about = {"first_step": first, "last_step": last, "left_out": left_out, "clock_error_us": errors}
        try:
            count = write_timeline(self.path, tracks, self._steps if self._together else {}, about)
        except OSError as error:
            self.said = f"no trace: '{self.path}' could not be written: {error.strerror}"
            return
        self.said = (
            f"trace: {self.path} (steps {first:,} to {last:,}, {len(tracks)} ranks, {count:,} intervals, written in "
            f"{time.perf_counter() - began:.1f} s; open it in ui.perfetto.dev)"
        )
        if left_out:
            self.said += f"\n{left_out:,} intervals are not in it: a rank keeps {MOST_INTERVALS // self.world.size:,}"

    def _clock_of(self, rank: int, after: dict[int, Reading]) -> tuple[Reading, Reading] | None:
        node = self.world.node_of[rank]
        return (self._before[node], after[node]) if node in after else None


def read_clocks(world: World) -> dict[int, Reading]:
    """Return, on compute rank 0, what the clocks of other nodes show, by node; nothing elsewhere. Collective over
    compute; the servers come along. The ranks of a node share its clock."""
    root, readings = world.clients[0], {}
    for node in range(world.nodes):
        rank = world.node_of.index(node)
        if world.node_of[root] == node:
            continue
        if world.on_root():
            if rank in world.servers:
                send_object(world.comm, ("clock", None, {}), rank, Tag.COMMAND)
            readings[node] = read_clock(world, rank)
        elif rank == world.rank:
            show_clock(world, root)
    return readings


def gather(world: World, found: dict[int, Recording]) -> dict[int, Recording]:
    """Return all ranks' recordings on compute rank 0, by world rank: what it has, `found`, and that of each other
    compute rank; nothing elsewhere. Collective over compute."""
    if not world.on_root():
        world.wait_all([world.comm.isend(found.get(world.rank, Recording(0)), world.clients[0], Tag.RECORDED)])
        return {}
    for rank in world.clients[1:]:
        world.wait_until(lambda rank=rank: world.comm.Iprobe(rank, Tag.RECORDED))
        found[rank] = world.comm.recv(source=rank, tag=Tag.RECORDED)
    return found
