"""Where a trainer's tables lie at their owners: dealt anew, balanced by what is pushed, as a checkpoint found them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

from hybridmpi.errors import UsageError
from hybridmpi.planning.balance import Part, propose
from hybridmpi.sparse.partition import Kind
from hybridmpi.sparse.wire import ID_BYTES
from hybridmpi.training.tables import in_turn

if TYPE_CHECKING:
    from hybridmpi.training.trainer import Trainer


def at_owners(trainer: Trainer) -> dict[str, int]:
    """Return the numbers, by name, of the tables that lie at owners, not on every compute rank. Local."""
    return {spec.name: number for number, spec in enumerate(trainer.exchange.specs) if spec.homes != ()}


def repartition(trainer: Trainer, name: str, parts: int | None, homes: Sequence[int] | None, kind: Kind | None) -> int:
    """Deal the rows of a table anew; see Trainer.repartition. Collective over compute."""
    exchange, owners = trainer.exchange, len(trainer.world.owners)
    tables = at_owners(trainer)
    if name not in tables:
        near = get_close_matches(name, tables, n=1)
        raise UsageError(
            f"repartition: no table '{name}' lies at owners{f'; did you mean {near[0]!r}?' if near else ';'} "
            f"there are: {', '.join(tables) or 'none'}"
        )
    number = tables[name]
    spec = exchange.specs[number]
    given = homes is not None
    if homes is None:
        parts = spec.map(owners).parts if parts is None else parts
        homes = in_turn(number, parts, owners, spec.rows)
    if not homes or parts == 0 or (given and parts not in (None, len(homes))):
        raise UsageError(
            f"repartition of '{name}': {parts} parts at owners {tuple(homes)}: expected one part or more, and an owner "
            "for each"
        )
    return exchange.repartition(number, replace(spec, partition=kind or spec.partition, homes=tuple(map(int, homes))))


def balance(trainer: Trainer) -> str:
    """Move parts to less loaded owners where it pays; see Trainer.balance. Collective over compute."""
    exchange, owners = trainer.exchange, len(trainer.world.owners)
    accesses = [answer["accesses"] for answer in exchange.service.call("statistics")]
    parts = []
    for name, number in at_owners(trainer).items():
        spec = exchange.specs[number]
        row = spec.row_bytes + ID_BYTES
        for owner, held in enumerate(spec.map(owners).pieces):
            pushed = accesses[owner][number]
            parts += [Part(name, p.part, p.count * spec.held_bytes, pushed[p.part] * row, owner) for p in held]
    # By one rank: what is moved is agreed on, not worked out twice.
    proposal = trainer.world.from_root(lambda: propose(parts, owners))
    if proposal.pays:
        for name, number in at_owners(trainer).items():
            old = exchange.specs[number].map(owners).homes
            homes = tuple(proposal.homes[name, part] for part in range(len(old)))
            if homes != old:
                repartition(trainer, name, None, homes, None)
    exchange.service.call("forget_accesses")
    return proposal.reason


def partitions(trainer: Trainer) -> dict[str, Any]:
    """Return how tables lie at owners, or will again, that were dealt anew in the running job, as JSON values for a
    checkpoint. Local."""
    exchange, owners = trainer.exchange, len(trainer.world.owners)
    dealt = [exchange.spec_at_owners(number) for number in sorted(exchange.dealt_anew)]
    return {spec.name: {"kind": spec.partition, "homes": list(spec.homes), "owners": owners} for spec in dealt}


def restore_partitions(trainer: Trainer, saved: Mapping[str, Any]) -> None:
    """Deal the tables as a checkpoint found them, if there are as many owners as then; one that every rank holds now
    will lie so when it returns to them. Collective over compute."""
    exchange = trainer.exchange
    numbers = {spec.name: number for number, spec in enumerate(exchange.specs)}
    for name, found in saved.items():
        if name not in numbers or found["owners"] != len(trainer.world.owners):
            continue
        spec, homes = exchange.specs[numbers[name]], tuple(found["homes"])
        if spec.homes == ():
            exchange.return_to(numbers[name], replace(spec, partition=found["kind"], homes=homes))
        elif (spec.partition, spec.homes) != (found["kind"], homes):
            repartition(trainer, name, None, homes, found["kind"])
