"""Checkpoints of a Trainer: which rank writes and reads what, and in which order."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hybridmpi.data import block
from hybridmpi.errors import CheckpointError
from hybridmpi.training.placement import partitions, restore_partitions

if TYPE_CHECKING:
    from hybridmpi.checkpoint import TableShard
    from hybridmpi.sparse.replica import Replica
    from hybridmpi.training.trainer import Trainer


def save(trainer: Trainer, root: Path, keep: int, meta: dict[str, Any], words: Any) -> Path:
    """Write a checkpoint of `trainer` below `root`; see Trainer.save. Collective over compute."""
    from hybridmpi import checkpoint

    world = trainer.world
    directory = world.from_root(lambda: checkpoint.begin(root.absolute(), trainer.step))
    exchange = trainer.exchange
    replicas = exchange.replicas()
    owners, ranks = len(world.owners), len(world.clients)
    files = owners + (ranks if replicas else 0)
    names = [table.name for table in exchange.tables if table not in replicas]
    records = exchange.service.call("save", directory=str(directory), tables=names, files=files)
    if replicas:
        rank = world.compute.Get_rank()
        records += world.together(
            lambda: checkpoint.write_server(directory, owners + rank, files, _shares(replicas, rank, ranks))
        )
    served = exchange.served_state()
    carried = _gather_carried(trainer)
    full_meta = {
        **meta,
        "step": trainer.step,
        "updates": exchange.updates,
        "skipped": trainer.skipped,
        "seed": trainer.seed,
        "optimizer": trainer.optimizer.describe(),
        "compute_ranks": len(world.clients),
        "partitions": partitions(trainer),
        "ways": trainer.adaptation.ways(),
        "alphas": trainer.sparsity.state(),
    }

    def write() -> Path:
        parameters, state = trainer.dense_arrays()
        for slot, arrays in served.items():
            state[slot] |= arrays
        record = checkpoint.write_dense(directory, parameters, state, carried, full_meta, words)
        checkpoint.commit(directory, trainer.step, [record, *records], {})
        checkpoint.prune(root.absolute(), keep)
        return directory

    return world.from_root(write)


def load(trainer: Trainer, path: Path) -> dict[str, Any]:
    """Continue `trainer` from a checkpoint; see Trainer.load. Collective over compute."""
    from hybridmpi import checkpoint

    world = trainer.world

    def read() -> tuple[Any, ...]:
        saved = checkpoint.Checkpoint.open(path.absolute())
        wrote, now = saved.meta.get("optimizer", {}).get("name"), trainer.optimizer.name
        if wrote != now:
            raise CheckpointError(
                f"{saved.directory}: written with optimizer '{wrote}', this run has '{now}': their state differs; "
                "use the same kind of optimizer"
            )
        parameters, _ = trainer.dense_arrays()
        saved.check(
            {name: array.shape for name, array in parameters.items()},
            {table.name: (table.rows, table.dim) for table in trainer.tables},
            trainer.optimizer.slots,
        )
        return saved.directory, saved.meta, saved.read_dense(), saved.carried()

    directory, meta, (values, state), carried = world.from_root(read)
    trainer.adaptation.restore(meta["ways"])
    trainer.sparsity.restore(meta["alphas"])
    restore_partitions(trainer, meta.get("partitions", {}))
    parameters, own_state = trainer.dense_arrays()
    for name, array in parameters.items():
        array[...] = values[name]
    for slot, arrays in own_state.items():
        for name, array in arrays.items():
            array[...] = state[slot][name]
    exchange = trainer.exchange
    exchange.service.call("load", directory=str(directory), applied=meta["updates"])
    if replicas := exchange.replicas():
        world.together(lambda: _read_replicas(directory, replicas))
    exchange.continue_from(meta["updates"])
    trainer.step, trainer.skipped = meta["step"], meta["skipped"]
    _deal_carried(trainer, carried)
    return meta


def _shares(replicas: list[Replica], rank: int, ranks: int) -> list[TableShard]:
    """Return what one of `ranks` compute ranks writes of the tables that all of them hold."""
    from hybridmpi.checkpoint import TableShard

    shards = []
    for replica in replicas:
        first, count = block(replica.rows, rank, ranks)
        rows, shard = slice(first, first + count), replica.shard
        state = {slot: array[rows] for slot, array in shard.state.items()}
        name, dim = replica.name, replica.dim
        shards.append(TableShard(name, replica.rows, dim, "block", first if count else 0, 1, shard.values[rows], state))
    return shards


def _read_replicas(directory: Path, replicas: list[Replica]) -> None:
    """Read the whole of the tables that this rank holds."""
    from hybridmpi.checkpoint import Checkpoint

    saved = Checkpoint.open(directory)
    for replica in replicas:
        shard = replica.shard
        values, state = saved.read_rows(replica.name, 0, 1, replica.rows)
        shard.values[...] = values
        for slot, array in shard.state.items():
            array[...] = state[slot]


def _gather_carried(trainer: Trainer) -> dict[str, np.ndarray]:
    """Return the model's carried arrays of all ranks, in the order of their streams; on every rank."""
    if not hasattr(trainer.model, "state_arrays"):
        return {}
    parts = trainer.world.gather(trainer.model.state_arrays())
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def _deal_carried(trainer: Trainer, carried: dict[str, np.ndarray]) -> None:
    """Give every rank its streams' part of the carried arrays, also when the number of ranks has changed."""
    if not carried:
        return
    world = trainer.world
    mine = {}
    for name, array in carried.items():
        first, count = block(len(array), world.compute.Get_rank(), world.compute.Get_size())
        mine[name] = array[first : first + count].copy()
    trainer.model.set_state_arrays(mine)
