"""Signals that ask a run to stop: USR1, USR2 and TERM mean 'checkpoint soon', wherever they land."""

from __future__ import annotations

import signal
from typing import Any

STOP_SIGNALS = (signal.SIGUSR1, signal.SIGUSR2, signal.SIGTERM)


class StopRequest:
    """Remembers that a stop was asked for. Local; the next step's agreement tells all ranks.

    Install it before MPI is loaded: a signal may come while ranks still start, and its default is death. Server ranks
    install it too, so that they live until the compute ranks have saved.
    """

    def __init__(self) -> None:
        self.signal: int | None = None
        for number in STOP_SIGNALS:
            signal.signal(number, self._remember)

    def _remember(self, number: int, frame: Any) -> None:
        self.signal = number

    def __call__(self) -> bool:
        """Return whether a stop was asked for on this rank."""
        return self.signal is not None

    def ignore(self) -> None:
        """Let signals do nothing from now on: as Python ends it forgets handlers, and one more would kill the rank."""
        for number in STOP_SIGNALS:
            signal.signal(number, signal.SIG_IGN)
