"""Signals that ask a run to stop: USR1, USR2 and TERM mean 'checkpoint soon', wherever they land."""

from __future__ import annotations

import os
import signal
import threading
from typing import Any

STOP_SIGNALS = (signal.SIGUSR1, signal.SIGUSR2, signal.SIGTERM)


class StopRequest:
    """Remembers that a stop was asked for, from `listen` on. Local; the next step's agreement tells all ranks.

    A second TERM ends the process if nobody has looked at the first one: it may be long until somebody trains.
    """

    def __init__(self) -> None:
        self.signal: int | None = None
        self._terminations = 0
        self._seen = False
        self._previous: dict[int, Any] = {}

    def listen(self) -> None:
        """Take the signals from now on; until then they end the process, as for any program. Local.

        Only Python's main thread can: elsewhere it does nothing.
        """
        if not self._previous and threading.current_thread() is threading.main_thread():
            self._previous = {number: signal.signal(number, self._remember) for number in STOP_SIGNALS}

    def _remember(self, number: int, frame: Any) -> None:
        self.signal = number
        self._terminations += number == signal.SIGTERM
        if self._terminations > 1 and not self._seen:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)

    def __call__(self) -> bool:
        """Return whether a stop was asked for on this rank."""
        self._seen = self.signal is not None
        return self._seen

    def ignore(self) -> None:
        """Let signals do nothing from now on: as Python ends it forgets handlers, and one more would kill the rank."""
        for number in self._previous:
            signal.signal(number, signal.SIG_IGN)

    def restore(self) -> None:
        """Let signals do again what they did before `listen`. Local."""
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        self._previous = {}
