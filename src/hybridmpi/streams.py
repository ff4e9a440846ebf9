"""Standard streams, and what is written beside the work: neither ends the work, nor holds up its end.

A disk fills, the reader of a pipe goes or stands still, a shell has closed a stream: the work of a run is worth more
than the word about it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from threading import Thread
from typing import Any, TextIO

STREAMS = (("stdin", "r"), ("stdout", "w"), ("stderr", "w"))


def ensure_streams() -> None:
    """Open what is closed of file descriptors 0 to 2, and of Python's streams, on the null device. Local.

    A file of data would get such a number, and what a library prints to stderr would go into it. Children inherit them.
    """
    for number, (name, mode) in enumerate(STREAMS):
        try:
            os.fstat(number)
        except OSError:
            opened = os.open(os.devnull, os.O_RDWR)
            if opened != number:  # another thread closed one below it just now
                os.dup2(opened, number)
                os.close(opened)
            os.set_inheritable(number, True)
        if getattr(getattr(sys, name), "closed", True):
            setattr(sys, name, open(number, mode, encoding="utf-8", errors="backslashreplace", closefd=False))  # noqa: SIM115


class Aside:
    """Something that is written beside the work, such as a file of metrics: `what` it is, with its name, and what is
    `lost` without it. Local."""

    def __init__(self, what: str, lost: str) -> None:
        self._what, self._lost, self._warned = what, lost, False

    @contextmanager
    def guarded(self) -> Iterator[None]:
        """Let what is raised within be a warning, the first time, and nothing else."""
        try:
            yield
        except Exception as error:  # noqa: BLE001 - whatever it is, the work goes on
            self.warn(reason(error))

    def warn(self, why: str) -> None:
        """Say once, on stderr if that is possible, that it cannot be written."""
        if not self._warned:
            self._warned = True
            write(sys.stderr, f"hybridmpi: warning: {self._what} cannot be written ({why}): {self._lost}\n")


_output = Aside("standard output", "what is said there is lost; the run goes on")


def say(text: str) -> None:
    """Print a line on stdout; where that is impossible, warn once. Local."""
    with _output.guarded():
        try:
            print(text, flush=True)
        except BaseException:
            drop(sys.stdout)
            raise


def write(stream: TextIO, text: str) -> None:
    """Write to a stream what nobody depends on: where that is impossible, nothing happens. Local."""
    try:
        stream.write(text)
        stream.flush()
    except Exception:  # noqa: BLE001 - a stream may be of any class
        drop(stream)


def drop(stream: Any) -> None:
    """Drop what a failed write has left in a stream's buffer: it would come out within another line, or as Python ends
    be an error of its own."""
    with suppress(Exception):
        ensure_streams()
        number = stream.fileno()
        kept, nowhere = os.dup(number), os.open(os.devnull, os.O_WRONLY)
        try:
            os.dup2(nowhere, number)
            stream.flush()
        finally:
            os.dup2(kept, number)
            os.close(kept)
            os.close(nowhere)


def reason(error: BaseException) -> str:
    """Return an error in a few words: what the system says of it, else its class and text. Local."""
    return getattr(error, "strerror", None) or f"{type(error).__name__}: {error}".removesuffix(": ")


def within(seconds: float, number: int, function: Callable[[], Any]) -> None:
    """Let `function` write to file descriptor `number` in a thread for `seconds`. Local.

    Whatever it raises is dropped. If it still waits then, the descriptor becomes the null device: libraries write to
    it, too.
    """

    def guarded() -> None:
        with suppress(BaseException):
            function()

    thread = Thread(target=guarded, name="hybridmpi last word", daemon=True)
    try:
        thread.start()
    except RuntimeError:  # there can be no more threads
        guarded()
        return
    thread.join(seconds)
    if thread.is_alive():
        os.dup2(os.open(os.devnull, os.O_WRONLY), number)
