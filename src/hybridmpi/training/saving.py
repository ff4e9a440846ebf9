"""Checkpoints of a Trainer: which rank writes and reads what, and in which order; written at once, or behind."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import numpy as np

from hybridmpi.errors import CheckpointError
from hybridmpi.streams import write
from hybridmpi.training.placement import partitions

if TYPE_CHECKING:
    from hybridmpi.checkpoint import Behind, FileRecord, TableShard
    from hybridmpi.checkpoint.owner import Owner
    from hybridmpi.sparse.replica import Replica
    from hybridmpi.training.trainer import Trainer

Arrays = Mapping[str, np.ndarray]


class Saving:
    """Writes the checkpoints of `trainer`. Collective over compute, but for `check`.

    Written at once, a checkpoint is whole when `save` returns. Written behind, `save` copies what every rank holds and
    returns; a thread of each rank writes its copy, and that of compute rank 0 commits the generation when the files of
    all ranks are there. One generation at a time: the next `save` waits for it.
    """

    def __init__(self, trainer: Trainer) -> None:
        self.trainer = trainer
        # Of this rank's share of tables that all ranks hold; and of what compute rank 0 writes and commits.
        self._share: Behind | None = None
        self._whole: Behind | None = None
        self._on_its_way: Path | None = None
        # Whether the thread that commits has begun too: if not, `save` itself has failed, and said so.
        self._to_be_whole = False
        self._given_up = Event()
        # Which run this is, also when it goes on elsewhere: only its own checkpoints are pruned.
        self.run: str | None = None
        self._owned: dict[Path, Owner] = {}
        self._told: set[Path] = set()
        # The damaged checkpoint of which some is loaded already, while nothing whole was loaded over it.
        self.half_loaded: Path | None = None

    def save(self, root: Path, keep: int, meta: dict[str, Any], words: Any, behind: bool) -> Path:
        """Write a checkpoint below `root`; see Trainer.save."""
        from hybridmpi import checkpoint

        trainer, world, exchange = self.trainer, self.trainer.world, self.trainer.exchange
        if self.run is None:
            self.run = uuid4().hex  # compute rank 0's counts
        self.refuse_half_loaded()
        self.finish()
        full_meta = {**meta, **self._meta()}

        def begin() -> Path:
            checkpoint.check_meta(full_meta)
            self._own(root.absolute())
            self._tell_of_others(root.absolute())
            return checkpoint.begin(root.absolute(), trainer.step, self.run)

        directory = world.from_root(begin)
        if behind:
            self._on_its_way = directory
            if self._share is None:
                self._share, self._whole = checkpoint.Behind(), checkpoint.Behind()
        replicas = exchange.replicas()
        owners, ranks = len(world.owners), len(world.clients)
        files = owners + (ranks if replicas else 0)
        names = [table.name for table in exchange.tables if table not in replicas]
        records = exchange.service.call("save", directory=str(directory), tables=names, files=files, behind=behind)
        if replicas:
            rank = world.compute.Get_rank()
            file = (directory, owners + rank, files, _shares(replicas, rank, ranks))
            write = self._share.write_server if behind else checkpoint.write_server
            records += world.together(lambda: write(*file))
        parameters, state = trainer.dense_arrays()
        for slot, served in exchange.served_state().items():
            state[slot] |= served
        dense = (parameters, state, _gather_carried(trainer))
        about = (directory, trainer.step, keep)
        if not behind:
            return world.from_root(lambda: _complete(*about, full_meta, words, dense, lambda: records))

        def start() -> Path:
            # The caller's lists may change meanwhile, as arrays do.
            copied = (json.loads(json.dumps(full_meta)), None if words is None else list(words), self._copies(*dense))
            self._whole.start(
                lambda: _complete(*about, *copied, lambda: checkpoint.collect(directory, files, self._given_up))
            )
            return directory

        world.from_root(start)
        self._to_be_whole = True
        return directory

    def own(self, root: Path) -> None:
        """Make sure that no other run writes into `root`; see Trainer.own."""
        self.trainer.world.from_root(lambda: self._own(root.absolute()))

    def leave(self) -> None:
        """Let others write where this run did. Local."""
        for owner in self._owned.values():
            owner.release()
        self._owned.clear()

    def _own(self, root: Path) -> None:
        """Make sure that no other run writes into `root`. Local, on compute rank 0. Raises UsageError naming it."""
        from hybridmpi.checkpoint import owner

        if root in self._owned:
            self._owned[root].check()
            return
        self._owned[root], note = owner.take(root)
        if note:
            write(sys.stderr, f"hybridmpi: {note}\n")

    def _tell_of_others(self, root: Path) -> None:
        """Say once that a directory holds checkpoints of another run. Local, on compute rank 0."""
        from hybridmpi.checkpoint.generations import generations, run_of

        if root in self._told:
            return
        self._told.add(root)
        if others := [path.name for path in generations(root) if run_of(path) != self.run]:
            write(
                sys.stderr,
                f"hybridmpi: warning: {root} holds checkpoints of another run ({others[0]}): they stay, and do not "
                "count among those that are kept\n",
            )

    def _copies(self, parameters: Arrays, state: Mapping[str, Arrays], carried: Arrays) -> tuple[Any, ...]:
        copies = self._whole.copies
        return (
            copies("parameters", parameters),
            {slot: copies(f"state {slot}", arrays) for slot, arrays in state.items()},
            copies("carried", carried),
        )

    def finish(self) -> Path | None:
        """Wait until the checkpoint that is written behind is whole; return its directory, None if there is none.

        What failed in a thread of any rank is raised on all, when all threads have ended: the next checkpoint takes
        their memory, and may take their directory.
        """
        directory, self._on_its_way = self._on_its_way, None
        to_be_whole, self._to_be_whole = self._to_be_whole, False
        if directory is None:
            return None
        world = self.trainer.world

        def wait_for(behind: Behind) -> None:
            world.wait_until(lambda: behind.done)
            behind.result()

        failure: Exception | None = None
        for wait in (
            lambda: self.trainer.service.call("finish_saving"),
            lambda: world.together(lambda: wait_for(self._share)),
            lambda: world.from_root(lambda: wait_for(self._whole)),
        ):
            try:
                wait()
            except Exception as error:  # on all ranks alike
                failure = failure or error
                self._given_up.set()  # else the committing thread would wait for ever for what cannot come
        self._given_up.clear()
        if failure is not None and to_be_whole:
            raise failure
        return directory if to_be_whole else None

    def check(self) -> None:
        """Raise what has failed in a thread of this rank and was not raised by `finish` yet; do not wait. Local.

        Raises CheckpointError after a load that found damage, too: what is here is neither of one checkpoint nor new.
        """
        self.refuse_half_loaded()
        for behind in (self._share, self._whole):
            if behind is not None:
                behind.check()

    def refuse_half_loaded(self) -> None:
        """Raise CheckpointError where a damaged checkpoint is loaded in part, so that nobody goes on from it. Local."""
        if self.half_loaded is not None:
            raise CheckpointError(
                f"the parameters are in part those of {self.half_loaded}, which is damaged: load a whole one, "
                "or begin with a new Trainer"
            )

    @contextmanager
    def closing(self) -> Iterator[None]:
        """Finish, and give back threads and memory, before the block; raise what `finish` raised after it, so that a
        checkpoint that failed keeps nobody from freeing the rest."""
        failure: Exception | None = None
        try:
            self.finish()
        except Exception as error:  # on all ranks alike
            failure = error
        for behind in (self._share, self._whole):
            if behind is not None:
                behind.close()
        yield
        self.leave()
        if failure is not None:
            raise failure

    def _meta(self) -> dict[str, Any]:
        """Return what a checkpoint says of the trainer itself."""
        trainer = self.trainer
        return {
            "run_id": self.run,
            "step": trainer.step,
            "updates": trainer.exchange.updates,
            "skipped": trainer.skipped,
            "seed": trainer.seed,
            "optimizer": trainer.optimizer.describe(),
            "compute_ranks": len(trainer.world.clients),
            "partitions": partitions(trainer),
            "ways": trainer.adaptation.ways(),
            "alphas": trainer.sparsity.state(),
        }


def _complete(
    directory: Path,
    step: int,
    keep: int,
    meta: dict[str, Any],
    words: Any,
    dense: tuple[Any, ...],
    others: Callable[[], list[FileRecord]],
) -> Path:
    """Write dense.h5 and, when the `others` have written theirs, make the generation whole."""
    from hybridmpi import checkpoint

    record = checkpoint.write_dense(directory, *dense, meta, words)
    checkpoint.commit(directory, step, [record, *others()], {})
    checkpoint.prune(directory.parent, keep, meta["run_id"])
    return directory


def _shares(replicas: list[Replica], rank: int, ranks: int) -> list[TableShard]:
    """Return what one of `ranks` compute ranks writes of the tables that all of them hold."""
    from hybridmpi.checkpoint import TableShard
    from hybridmpi.data import block

    shards = []
    for replica in replicas:
        first, count = block(replica.rows, rank, ranks)
        rows, shard = slice(first, first + count), replica.shard
        state = {slot: array[rows] for slot, array in shard.state.items()}
        name, dim = replica.name, replica.dim
        shards.append(TableShard(name, replica.rows, dim, "block", first if count else 0, 1, shard.values[rows], state))
    return shards


def _gather_carried(trainer: Trainer) -> dict[str, np.ndarray]:
    """Return the model's carried arrays of all ranks, in the order of their streams; on every rank."""
    if not hasattr(trainer.model, "state_arrays"):
        return {}
    parts = trainer.world.gather(trainer.model.state_arrays())
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
