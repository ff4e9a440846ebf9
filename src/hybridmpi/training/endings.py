"""What ends training on all ranks alike: a failure on one, a value that is not finite."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NoReturn

from hybridmpi.errors import HybridMPIError, NonFiniteError, RemoteError
from hybridmpi.failures import describe, raise_alike
from hybridmpi.world import World

Nonfinite = Literal["stop", "skip"]
"""What is done about a loss or a gradient that is not finite: all ranks stop, or leave out that step."""


def raise_together(world: World, step: int, failure: BaseException | None) -> None:
    """Raise the first failing rank's error on every rank, with the same text. Collective over compute."""
    mine = None if failure is None else (world.rank, describe(failure))
    rank, text = next(entry for entry in world.gather(mine) if entry is not None)
    if rank != world.rank:
        raise RemoteError(f"rank {rank}, step {step}: {text}")
    raise_alone(world, step, failure)


def raise_alone(world: World, step: int, failure: BaseException) -> NoReturn:
    """Raise this rank's own error, with its rank and step. Local: where no other rank hears of it, it ends all when it
    leaves the program."""
    if isinstance(failure, HybridMPIError):
        raise type(failure)(f"rank {world.rank}, step {step}: {describe(failure)}") from failure
    # A fault in the user's own code: its traceback says most.
    remedy = "; make the batch or the model smaller, or take more nodes" if isinstance(failure, MemoryError) else ""
    failure.add_note(f"hybridmpi: this was rank {world.rank} in step {step}{remedy}")
    raise failure


def raise_nonfinite(world: World, step: int, found: Sequence[str]) -> None:
    """Raise NonFiniteError on all ranks, with what each of them has `found`, in words. Collective over compute."""
    everybody = world.gather((world.rank, list(found)))
    text = "; ".join(f"rank {rank}: {', '.join(what)}" for rank, what in everybody if what)
    error = NonFiniteError(
        f"step {step}: {text}. No rank has applied this step. Lower the learning rate, set clip, or let such steps be "
        "skipped (nonfinite = 'skip')"
    )
    raise_alike(world, error)
