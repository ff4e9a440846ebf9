"""How one rank's failure ends all ranks with one message.

`hybridmpi.run` and the `with` statement of World abort when an exception leaves them; for programs that do neither,
hooks on uncaught exceptions and on the end of the program do.
"""

from __future__ import annotations

import atexit
import os
import platform
import signal
import sys
import time
import traceback
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NoReturn

from hybridmpi.errors import HybridMPIError, RemoteError
from hybridmpi.streams import within, write

if TYPE_CHECKING:
    from hybridmpi.world import World

# What several ranks know, one of them says: most errors meet all ranks alike, and then rank 0 ends the job while the
# others stand back. A rank that is still there after so long was alone with its error, and speaks. Ranks that only know
# of another's error wait longer than that.
STAND_BACK_SECONDS = 1.0
STAND_BACK_SECONDS_OF_OTHERS = 2.5

# The launcher gets this long to pass on a last message before it ends everything.
LAST_WORD_SECONDS = 0.1

# A stream that nobody reads gets this long to take a message. Whatever else may be stuck at the end of a rank, after so
# many seconds an alarm ends it, and by that the launcher all.
SPEAKING_SECONDS = 2.0
AT_MOST_SECONDS = 30


def describe(error: BaseException) -> str:
    """Return an error as one text: hybridmpi's own speak for themselves, others carry their class. Local."""
    try:
        if isinstance(error, HybridMPIError):
            return str(error)
        if isinstance(error, SystemExit):
            return f"it left by sys.exit({error.code!r})"
        return f"{type(error).__name__}: {error}".removesuffix(": ")
    except Exception:  # noqa: BLE001 - an error whose text cannot be made is still one
        return f"{type(error).__name__}, whose text could not be made"


def raise_alike(world: World, error: HybridMPIError) -> NoReturn:
    """Raise an error that every compute rank knows: `error` on root, RemoteError with its text on the others, which
    stand back. Local; the compute ranks call it together."""
    raise error if world.on_root() else RemoteError(str(error))


def exit_code_of(error: BaseException) -> int:
    """Return the exit code that an error ends the program with. Local."""
    code = error.code if isinstance(error, SystemExit) else getattr(error, "exit_code", 1)
    return code if type(code) is int and 0 < code < 256 else 1  # of others the system keeps a byte, which may be 0


def failure_text(world: World, error: BaseException) -> str:
    """Return the one message that a failing rank prints. Local."""
    who = f"hybridmpi: rank {world.rank} of {world.size} ({world.role}, host {platform.node()}) failed"
    if isinstance(error, (HybridMPIError, SystemExit, KeyboardInterrupt)):
        return f"{who}: {describe(error)}"
    try:
        return f"{who}:\n{''.join(traceback.format_exception(error)).rstrip()}"
    except Exception:  # noqa: BLE001 - an error whose traceback cannot be made is still one
        return f"{who}: {describe(error)}"


def speak(world: World, error: BaseException) -> None:
    """Print the one message about `error`, unless another rank is to do so first. Local."""
    if isinstance(error, RemoteError):
        time.sleep(STAND_BACK_SECONDS_OF_OTHERS)
    elif world.rank != 0:
        time.sleep(STAND_BACK_SECONDS)
    within(SPEAKING_SECONDS, 2, lambda: write(sys.stderr, failure_text(world, error) + "\n"))
    time.sleep(LAST_WORD_SECONDS)


def end_all(world: World, error: BaseException | None, exit_code: int) -> NoReturn:
    """Print the one message about `error`, if any, and end all ranks, whatever becomes of the message. Local.

    A stream may be full, closed or stuck, an error without a text, and another signal may come meanwhile.
    """
    try:
        with suppress(BaseException):
            signal.alarm(AT_MOST_SECONDS)
            _ignore_signals()
        with suppress(BaseException):
            within(SPEAKING_SECONDS, 1, sys.stdout.flush)
            if error is not None:
                speak(world, error)
    finally:
        try:
            world.comm.Abort(exit_code)
        finally:
            os._exit(exit_code)  # MPI has been left, or refuses


def _ignore_signals() -> None:
    """Let no handler of Python's interrupt what comes. The alarm ends this process, and so do signals without any."""
    for number in signal.valid_signals():
        if callable(signal.getsignal(number)):
            signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)


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
    world = _hooked[-1] if _hooked else None  # another's hook may call this one for longer than it is wanted
    if world is None or world.size == 1:
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
