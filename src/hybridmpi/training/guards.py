"""Guards: what must be the same on every rank is compared before it can do harm."""

from __future__ import annotations

import os
from collections.abc import Sequence
from hashlib import blake2b

import numpy as np

from hybridmpi.autograd import Parameter
from hybridmpi.collectives import Bucket
from hybridmpi.errors import HybridMPIError, UsageError
from hybridmpi.failures import raise_alike
from hybridmpi.nn import Embedding, Module
from hybridmpi.optim import Optimizer
from hybridmpi.world import World


def require_trainable(world: World, model: Module, optimizer: Optimizer) -> None:
    """Raise UsageError unless these are a World, a Module with `loss(batch)` and an optimiser. Local."""
    if not isinstance(world, World):
        raise UsageError(f"Trainer of {_shown(world)} as world: expected what hm.run gives to main(world)")
    if not isinstance(model, Module) or not callable(getattr(model, "loss", None)):
        raise UsageError(
            f"Trainer of {_shown(model)} as model: expected an object of a class of yours that is an nn.Module and has "
            "a method loss(self, batch), which returns the mean loss over the batch's examples"
        )
    if not isinstance(optimizer, Optimizer):
        raise UsageError(f"Trainer of {_shown(optimizer)} as optimizer: expected an object such as hm.optim.Adam(0.01)")


def _shown(value: object) -> str:
    return f"class {value.__name__}" if isinstance(value, type) else f"{type(value).__name__} {str(value)[:40]!r}"


def require_memory(world: World, model: Module, optimizer: Optimizer) -> None:
    """Raise UsageError on all compute ranks if the parameters of `model`, with their gradients and the optimiser's
    state, cannot fit into the memory of all nodes. Collective over compute; nothing is allocated.

    The least that they take: every compute rank has the values and the gradients of dense parameters, owners have the
    rows of tables once. Of nodes that only serve nobody here knows the memory: then tables are not counted.
    """
    sizes = {name: 2 * len(world.clients) * p.size * p.dtype.itemsize for name, p in model.named_parameters()}
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    memory = dict(world.gather((world.node_of[world.rank], pages)))
    if len(memory) == world.nodes:
        held = 1 + len(optimizer.slots)
        sizes |= {name: held * t.rows * t.dim * t.dtype.itemsize for name, t in model.named_tables()}
    if (needed := sum(sizes.values())) > sum(memory.values()):
        name = max(sizes, key=lambda name: sizes[name])
        raise_alike(
            world,
            UsageError(
                f"the parameters need {needed / 2**30:,.0f} GiB of memory at least, '{name}' alone "
                f"{sizes[name] / 2**30:,.0f} GiB; the machine has {sum(memory.values()) / 2**30:,.0f} GiB: make it "
                "smaller, or take more nodes"
            ),
        )


def require_same_parameters(
    world: World, parameters: Sequence[tuple[str, Parameter | Embedding]], options: str
) -> None:
    """Raise UsageError unless all compute ranks have the same parameters in the same order, and the same `options` for
    what becomes of them, as text. Collective over compute.

    Buckets are summed element by element, and rows pushed by number, so a parameter of another name, shape or dtype on
    one rank would be added to something else, silently. The error names the first difference, the parameter and the
    ranks.
    """
    shapes = [(name, p.dtype, (p.rows, p.dim) if isinstance(p, Embedding) else p.shape) for name, p in parameters]
    mine = [options, *(f"'{name}' {dtype} {' x '.join(map(str, shape)) or 'scalar'}" for name, dtype, shape in shapes)]
    if len(set(world.gather(_digest("\n".join(mine).encode())))) == 1:
        return
    everybody = world.gather((world.rank, mine))
    raise_alike(world, UsageError(difference(everybody)))


def require_same_kind(optimizer: Optimizer, other: Optimizer) -> None:
    """Raise UsageError unless `other` can go on with the state of an optimiser. Local."""
    if type(other) is not type(optimizer):
        raise UsageError(
            f"Trainer.optimizer = {_shown(other)}: expected a {type(optimizer).__name__}, whose state the parameters "
            "have; another kind needs another Trainer"
        )


def require_same_optimizer(world: World, optimizer: Optimizer) -> None:
    """Raise UsageError unless all compute ranks have the same optimiser. Collective over compute."""
    everybody = world.gather((world.rank, repr(optimizer)))
    if len({text for _, text in everybody}) > 1:
        said = ", ".join(f"rank {rank}: {text}" for rank, text in everybody[:4])
        raise_alike(world, UsageError(f"Trainer.optimizer is set to different ones: {said}: set the same on all ranks"))


def difference(everybody: Sequence[tuple[int, Sequence[str]]]) -> str:
    """Return in words where the lists of (rank, entries) first differ from the first rank's. Local."""
    (first_rank, first), *others = everybody
    for rank, entries in others:
        for number in range(max(len(first), len(entries))):
            here = first[number] if number < len(first) else "no further parameter"
            there = entries[number] if number < len(entries) else "no further parameter"
            if here != there:
                what = f"parameter {number} is" if number else "their options are"
                return (
                    f"the parameters differ between ranks: {what} {here} on rank {first_rank} and {there} on "
                    f"rank {rank}. Every rank must build the same model: sizes that depend on the data or on the rank "
                    "have to be agreed on first (World.broadcast)"
                )
    raise AssertionError("the lists are equal")


def require_same_values(world: World, buckets: Sequence[Bucket], step: int) -> None:
    """Raise HybridMPIError unless all compute ranks hold the same bits of every dense parameter. Collective over
    compute.

    The error names the step, the parameters and the ranks that differ from the first rank, and by how much.
    """
    everybody = world.gather([_digest(bucket.values.tobytes()) for bucket in buckets])
    different = [n for n in range(len(buckets)) if len({mine[n] for mine in everybody}) > 1]
    if not different:
        return
    named = {p.name: buckets[n].view(buckets[n].values, p) for n in different for p in buckets[n].slices}
    found = world.gather(
        (world.rank, {name: (_digest(array.tobytes()), _norm(array)) for name, array in named.items()})
    )
    (first_rank, first), *others = found
    lines = [
        f"'{name}' on rank {rank} (norm {mine[name][1]:.9g}, on rank {first_rank} {first[name][1]:.9g})"
        for name in named
        for rank, mine in others
        if mine[name][0] != first[name][0]
    ]
    text = (
        f"after step {step} the ranks hold different values of {'; '.join(lines[:8])}{' ...' * (len(lines) > 8)}. "
        "Something changed them outside the optimizer, or the ranks' libraries compute differently"
    )
    raise_alike(world, HybridMPIError(text))


def _digest(data: bytes) -> bytes:
    return blake2b(data, digest_size=16).digest()


def _norm(array: np.ndarray) -> float:
    return float(np.linalg.norm(array.astype(np.float64)))
