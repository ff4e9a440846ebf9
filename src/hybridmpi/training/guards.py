"""Guards: what must be the same on every rank is compared before it can do harm."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b

from hybridmpi.autograd import Parameter
from hybridmpi.errors import RemoteError, UsageError
from hybridmpi.world import World


def require_same_parameters(world: World, parameters: Sequence[tuple[str, Parameter]]) -> None:
    """Raise UsageError unless all compute ranks have the same dense parameters in the same order. Collective over
    compute.

    Buckets are summed element by element, so a parameter of another name, shape or dtype on one rank would be added to
    something else, silently. The error names the first difference, the parameter and the ranks.
    """
    mine = [f"'{name}' {p.dtype} {' x '.join(map(str, p.shape)) or 'scalar'}" for name, p in parameters]
    digest = blake2b("\n".join(mine).encode(), digest_size=16).digest()
    if len(set(world.gather(digest))) == 1:
        return
    everybody = world.gather((world.rank, mine))
    text = difference(everybody)
    if world.on_root():
        raise UsageError(text)
    raise RemoteError(text)


def difference(everybody: Sequence[tuple[int, Sequence[str]]]) -> str:
    """Return in words where the lists of (rank, entries) first differ from the first rank's. Local."""
    (first_rank, first), *others = everybody
    for rank, entries in others:
        for number in range(max(len(first), len(entries))):
            here = first[number] if number < len(first) else "no further parameter"
            there = entries[number] if number < len(entries) else "no further parameter"
            if here != there:
                return (
                    f"the model's dense parameters differ between ranks: number {number} is {here} on rank "
                    f"{first_rank} and {there} on rank {rank}. Every rank must build the same model: sizes that depend "
                    "on the data or on the rank have to be agreed on first (World.broadcast)"
                )
    raise AssertionError("the lists are equal")
