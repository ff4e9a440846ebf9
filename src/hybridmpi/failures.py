"""How one rank's failure ends all ranks with one message.

`hybridmpi.run` and the `with` statement of World abort when an exception leaves them; for programs that do neither,
hooks on uncaught exceptions and on the end of the program do.
"""

from __future__ import annotations

import atexit
import platform
import sys
import time
import traceback
from typing import TYPE_CHECKING, Any, NoReturn

from hybridmpi.errors import HybridMPIError, RemoteError

if TYPE_CHECKING:
    from hybridmpi.world import World

# What several ranks know, one of them says: most errors meet all ranks alike, and then rank 0 ends the job while the
# others stand back. A rank that is still there after so long was alone with its error, and speaks. Ranks that only know
# of another's error wait longer than that.
STAND_BACK_SECONDS = 1.0
STAND_BACK_SECONDS_OF_OTHERS = 2.5

# The launcher gets this long to pass on a last message before it ends everything.
LAST_WORD_SECONDS = 0.1


def describe(error: BaseException) -> str:
    """Return an error as one text: hybridmpi's own speak for themselves, others carry their class. Local."""
    if isinstance(error, HybridMPIError):
        return str(error)
    if isinstance(error, SystemExit):
        return f"it left by sys.exit({error.code!r})"
    return f"{type(error).__name__}: {error}".removesuffix(": ")


def raise_alike(world: World, error: HybridMPIError) -> NoReturn:
    """Raise an error that every compute rank knows: `error` on root, RemoteError with its text on the others, which
    stand back. Local; the compute ranks call it together."""
    raise error if world.on_root() else RemoteError(str(error))


def exit_code_of(error: BaseException) -> int:
    """Return the exit code that an error ends the program with. Local."""
    if isinstance(error, SystemExit):
        return error.code if isinstance(error.code, int) else 1
    return getattr(error, "exit_code", 1)


def failure_text(world: World, error: BaseException) -> str:
    """Return the one message that a failing rank prints. Local."""
    who = f"hybridmpi: rank {world.rank} of {world.size} ({world.role}, host {platform.node()}) failed"
    if isinstance(error, (HybridMPIError, SystemExit, KeyboardInterrupt)):
        return f"{who}: {describe(error)}"
    return f"{who}:\n{''.join(traceback.format_exception(error)).rstrip()}"


def speak(world: World, error: BaseException) -> None:
    """Print the one message about `error`, unless another rank is to do so first. Local."""
    if isinstance(error, RemoteError):
        time.sleep(STAND_BACK_SECONDS_OF_OTHERS)
    elif world.rank != 0:
        time.sleep(STAND_BACK_SECONDS)
    print(failure_text(world, error), file=sys.stderr, flush=True)
    time.sleep(LAST_WORD_SECONDS)


_hooked: list[World] = []
_previous_hook: Any = None


def open_worlds() -> list[World]:
    """Return the worlds of this process that are not closed. Local."""
    return list(_hooked)


def install_abort_hook(world: World) -> None:
    """Make an uncaught exception on this rank end all ranks: MPI alone would let the others wait for ever. Local."""
    global _previous_hook
    if not _hooked:
        _previous_hook, sys.excepthook = sys.excepthook, _abort_on_exception
        atexit.register(_abort_at_exit)
    _hooked.append(world)


def forget_abort_hook(world: World) -> None:
    """Undo install_abort_hook. Local."""
    if world in _hooked:
        _hooked.remove(world)
        if not _hooked:
            atexit.unregister(_abort_at_exit)
            if sys.excepthook is _abort_on_exception:
                sys.excepthook = _previous_hook


def _abort_on_exception(kind: type[BaseException], error: BaseException, trace: Any) -> None:
    world = _hooked[-1]
    if world.size == 1:
        _previous_hook(kind, error, trace)
        return
    world.abort(error, exit_code_of(error))


def _abort_at_exit() -> None:
    """End all ranks when this one leaves, by sys.exit or at the end of the program, with its world open."""
    world = next((world for world in reversed(_hooked) if world.clients), None)
    if world is not None and world.size > 1:
        world.abort(
            HybridMPIError(
                "the program ended with its World still open: the other ranks would wait for this one for ever. Use "
                "hybridmpi.run or a with statement, or call close() on every rank"
            )
        )
