"""Continuing a Trainer from a checkpoint: which rank reads what, and what is done where one is damaged."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import numpy as np

from hybridmpi.errors import CheckpointError, DamageError, UsageError
from hybridmpi.failures import raise_alike
from hybridmpi.planning.modes import Way
from hybridmpi.streams import write
from hybridmpi.training.placement import restore_partitions

if TYPE_CHECKING:
    from hybridmpi.checkpoint import Checkpoint
    from hybridmpi.sparse.replica import Replica
    from hybridmpi.training.trainer import Trainer

Accept = Callable[[Path, Mapping[str, Any], "list[str] | None"], None]


def load(trainer: Trainer, path: Path, accept: Accept = lambda directory, meta, words: None) -> dict[str, Any]:
    """Continue `trainer` from a checkpoint; see Trainer.load. Collective over compute.

    Of a directory of checkpoints the newest is tried first; where some byte of it is not what was written, on whatever
    rank, all ranks go on to the one before, and compute rank 0 warns of the damage, once. A checkpoint that was asked
    for by its own name is loaded or refused. `accept(directory, meta, words)` is called on every rank before anything
    is changed, and raises where a checkpoint is another run's.
    """
    from hybridmpi import checkpoint

    world, saving = trainer.world, trainer._saving
    found, damage = world.from_root(lambda: checkpoint.candidates(path.absolute()))
    for directory in found:
        try:
            meta = _load_one(trainer, directory, accept)
        except DamageError as error:  # on all ranks alike
            damage.append(str(error))
            continue
        saving.half_loaded, saving.run = None, meta.get("run_id")
        if damage and world.on_root():
            said = "\n  ".join(["damaged, and left out:", *damage])
            write(sys.stderr, f"hybridmpi: warning: {said}\ngoing on from {directory}\n")
        return meta
    alone = len(found) == len(damage) == 1
    said = damage[0] if alone else f"{path}: no checkpoint there is whole:\n  " + "\n  ".join(damage)
    return raise_alike(world, DamageError(said))


def _load_one(trainer: Trainer, directory: Path, accept: Accept) -> dict[str, Any]:
    """Continue from one generation; raise DamageError on all ranks alike where it is damaged."""
    from hybridmpi import checkpoint

    world, exchange, saving = trainer.world, trainer.exchange, trainer._saving

    def opened() -> tuple[Checkpoint, list[str] | None]:
        saved = checkpoint.Checkpoint.open(directory)
        return saved, saved.words()

    def read() -> tuple[Any, ...]:
        _check(trainer, saved)
        return saved.read_dense(), saved.carried()

    saved, words = world.from_root(lambda: _or_damage(opened))
    if isinstance(saved, DamageError):
        raise saved
    meta = saved.meta
    accept(directory, meta, words)
    found, carried = world.from_root(lambda: _or_damage(read))
    if isinstance(found, DamageError):
        raise found
    values, state = found
    saving.half_loaded = directory
    trainer.adaptation.restore(meta["ways"])
    trainer.sparsity.restore(meta["alphas"])
    restore_partitions(trainer, meta.get("partitions", {}))
    parameters, own_state = trainer.dense_arrays()
    for name, array in parameters.items():
        array[...] = values[name]
    for slot, arrays in own_state.items():
        for name, array in arrays.items():
            array[...] = state[slot][name]
    damage = exchange.service.call("load", directory=str(directory), applied=meta["updates"])
    if replicas := exchange.replicas():
        damage += world.together(lambda: _read_replicas(directory, replicas))
    if texts := [text for text in damage if text]:
        raise DamageError(texts[0])
    exchange.continue_from(meta["updates"])
    trainer.step, trainer.skipped = meta["step"], meta["skipped"]
    _deal_carried(trainer, carried)
    return meta


def _or_damage(function: Callable[[], tuple[Any, Any]]) -> tuple[Any, Any]:
    """Return what `function` returns; DamageError and None where it raises that, so that all ranks hear of it."""
    try:
        return function()
    except DamageError as error:
        return error, None


def _check(trainer: Trainer, saved: Checkpoint) -> None:
    """Raise CheckpointError unless a checkpoint was written by a trainer of such a model and optimiser. Local."""
    _check_meta(trainer, saved)
    wrote, now = saved.meta["optimizer"].get("name"), trainer.optimizer.name
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
        {n: array.dtype for n, array in parameters.items()} | {t.name: t.dtype for t in trainer.tables},
    )
    own = trainer.model.state_arrays() if hasattr(trainer.model, "state_arrays") else {}
    expected = {name: (array.shape[1:], array.dtype) for name, array in own.items()}
    found = {name: (array.shape[1:], array.dtype) for name, array in saved.carried_arrays.items() if array.shape}
    if found != expected or len(found) != len(saved.carried_arrays):
        raise CheckpointError(
            f"{saved.directory} was made for another model: it carries {_told(found)} for each stream, this model "
            f"{_told(expected)}"
        )


def _told(arrays: Mapping[str, tuple[tuple[int, ...], np.dtype]]) -> str:
    return ", ".join(f"'{name}' {dtype} {shape}" for name, (shape, dtype) in sorted(arrays.items())) or "nothing"


def _check_meta(trainer: Trainer, saved: Checkpoint) -> None:
    """Raise CheckpointError unless the meta of a checkpoint says all that `Saving` writes of a trainer."""
    meta = saved.meta

    def want(key: str, right: Callable[[Any], bool]) -> None:
        if not right(meta.get(key)):
            text = f"says {key!r} {str(meta[key])[:60]}" if key in meta else f"says nothing of {key!r}"
            raise CheckpointError(f"{saved.directory}: was not written by Trainer.save: its meta {text}")

    for key in ("step", "updates", "skipped"):
        want(key, _is_count)
    if meta["step"] != saved.step:
        raise CheckpointError(f"{saved.directory}: its meta says step {meta['step']}, its manifest {saved.step}")
    want("optimizer", lambda value: isinstance(value, dict))
    want("ways", lambda value: isinstance(value, dict) and all(way in get_args(Way) for way in value.values()))
    expected = len(trainer.sparsity.state())
    want("alphas", lambda value: isinstance(value, list) and len(value) == expected and all(map(_is_mean, value)))
    if "run_id" in meta:
        want("run_id", lambda value: isinstance(value, str))
    if "partitions" in meta:
        want("partitions", lambda value: isinstance(value, dict) and all(map(_is_partition, value.values())))


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value < 2**62


def _is_mean(value: Any) -> bool:
    """Return whether a value is what AlphaMean.state returns."""
    return (
        isinstance(value, dict)
        and isinstance(value.get("decay"), float)
        and 0 < value["decay"] < 1
        and _is_count(value.get("steps"))
        and isinstance(value.get("sums"), list)
        and len(value["sums"]) == 3
        and all(isinstance(level, (int, float)) for level in value["sums"])
    )


def _is_partition(value: Any) -> bool:
    """Return whether a value is one of those that `placement.partitions` returns."""
    return (
        isinstance(value, dict)
        and value.get("kind") in ("block", "cyclic")
        and _is_count(value.get("owners"))
        and isinstance(value.get("homes"), list)
        and len(value["homes"]) > 0
        and all(_is_count(home) and home < value["owners"] for home in value["homes"])
    )


def _read_replicas(directory: Path, replicas: list[Replica]) -> str:
    """Read the whole of the tables that this rank holds; return "", or what is damaged."""
    from hybridmpi.checkpoint import Checkpoint
    from hybridmpi.checkpoint.layout import Progression

    try:
        saved = Checkpoint.open(directory)
        for replica in replicas:
            shard = replica.shard
            saved.read_into(replica.name, [(Progression(0, 1, replica.rows), shard.values, shard.state)])
    except DamageError as error:
        return str(error)
    return ""


def _deal_carried(trainer: Trainer, carried: dict[str, np.ndarray]) -> None:
    """Give every rank its streams' part of the carried arrays, also when the number of ranks has changed."""
    if not carried:
        return
    from hybridmpi.data import block

    world = trainer.world
    mine = {}
    for name, array in carried.items():
        first, count = block(len(array), world.compute.Get_rank(), world.compute.Get_size())
        mine[name] = array[first : first + count].copy()

    def give() -> None:
        try:
            trainer.model.set_state_arrays(mine)
        except UsageError as error:
            raise CheckpointError(f"the carried state of the checkpoint was made for another model: {error}") from error

    world.together(give)
