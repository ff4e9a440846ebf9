"""Rendezvous: the small sum with which every collective of the compute ranks begins, and which says what it is.

MPI matches collectives by their order alone: where one rank is in a save and another in a step, it mixes up what they
send, or waits for ever. So all of them begin with the same call of the same size, an all-reduce of WORDS float64, that
carries a number made of the operation's name. Where that differs, all ranks know it from the same sum, tell each other
where they are, and raise one error.
"""

from __future__ import annotations

import sys
import zlib
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import numpy as np

from hybridmpi.errors import OutOfStepError

# Of the sum: the code and its square, then what the operation itself wants to add up: a step's report and the rows of
# 48 tables. 512 bytes take as long as 8.
WORDS = 64
ROOM = WORDS - 2
# Of a rank's text, when ranks are out of step.
TEXT_BYTES = 512


class Rendezvous:
    """One beginning under way. `sums` are those of the numbers that the ranks brought, once it is `complete`."""

    def __init__(self, comm: Any, code: int, where: str, numbers: Sequence[float]) -> None:
        self.where = where
        self._ranks = comm.Get_size()
        self._mine, self._total = np.zeros(WORDS), np.empty(WORDS)
        self._mine[:2] = code, code * code
        self._mine[2 : 2 + len(numbers)] = numbers
        self.request = comm.Iallreduce(self._mine, self._total)

    @property
    def sums(self) -> np.ndarray:
        """The sums over the ranks, float64 [ROOM]; after it is complete."""
        return self._total[2:]

    def complete(self) -> bool:
        """Return whether all ranks are there, and for the same. Local."""
        return bool(self.request.Test()) and self.alike

    @property
    def alike(self) -> bool:
        """Whether all ranks brought the same code: the sum of squares is then as small as it can be (Cauchy and
        Schwarz). Exact: codes have 16 bits, so all sums are whole numbers below 2^53."""
        return self._ranks * int(self._total[1]) == int(self._total[0]) ** 2


class Gate:
    """Where the compute ranks begin what they do together. Collective over compute, but for `look`.

    One rendezvous is open at a time: the next one, and whatever else is collective, comes after it.
    """

    def __init__(self, comm: Any, ranks: Sequence[int], wait_all: Callable[[Sequence[Any]], None]) -> None:
        """`ranks`: the numbers that messages give to the ranks of `comm`."""
        self._comm, self._ranks, self._wait_all = comm, ranks, wait_all
        self._open: Rendezvous | None = None
        # The operations that this rank is in, outermost first.
        self.within: list[str] = []

    def begin(self, what: str, numbers: Sequence[float] = (), where: str = "") -> Rendezvous:
        """Begin operation `what`, adding up to ROOM numbers over the ranks; do not wait for the others. `where`: its
        name in messages, if another."""
        self.finish()
        path = [*self.within, what]
        self._open = Rendezvous(self._comm, code_of("/".join(path)), (where or _in_words(path)) + _place(), numbers)
        return self._open

    def look(self) -> None:
        """Raise on every rank if all are there, and not all for the same."""
        if self._open is not None and self._open.request.Test():
            self.finish()

    def finish(self) -> None:
        """Wait until all ranks are there; raise on every rank if not all are for the same."""
        met, self._open = self._open, None
        if met is None:
            return
        self._wait_all([met.request])
        if not met.alike:
            self._refuse(met.where)

    def _refuse(self, where: str) -> NoReturn:
        mine = np.zeros(TEXT_BYTES, np.uint8)
        text = np.frombuffer(where.encode()[:TEXT_BYTES], np.uint8)
        mine[: len(text)] = text
        everybody = np.empty((len(self._ranks), TEXT_BYTES), np.uint8)
        self._wait_all([self._comm.Iallgather(mine, everybody)])
        found: dict[str, list[int]] = {}
        for rank, line in zip(self._ranks, everybody, strict=True):
            found.setdefault(line.tobytes().rstrip(b"\0").decode(errors="replace"), []).append(rank)
        raise OutOfStepError(out_of_step(found))


def code_of(name: str) -> int:
    """Return 16 bits that stand for a name. Local."""
    return zlib.crc32(name.encode()) & 0xFFFF


def out_of_step(found: dict[str, list[int]]) -> str:
    """Return the message that says which ranks are where, of ranks by place. Local."""
    places = sorted(found.items(), key=lambda entry: entry[1])
    said = "; ".join(f"{_ranks_in_words(ranks)} in {place}" for place, ranks in places)
    return (
        f"the ranks are out of step: {said}. Every compute rank must call the same, in the same order: call what is "
        "collective on all of them, not on one alone, as under 'if world.on_root()'; where one has no data left, "
        "Trainer.fit and train_step(None) let it take part"
    )


def _ranks_in_words(ranks: Sequence[int]) -> str:
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    shown = ", ".join(map(str, ranks[:4]))
    return f"ranks {shown}" + (f" and {len(ranks) - 4} more" if len(ranks) > 4 else "")


def _in_words(path: Sequence[str]) -> str:
    return path[0] if len(path) == 1 else f"{path[0]} ({path[-1]})"


def _place() -> str:
    """Return where in the user's own program this rank is: ", at file.py:31"; "" if nowhere."""
    frame = sys._getframe(1)
    while frame is not None:
        package = str(frame.f_globals.get("__name__", "")).split(".")[0]
        if package not in ("hybridmpi", "contextlib", "functools", "runpy", "threading"):
            return f", at {frame.f_code.co_filename.rsplit('/', 1)[-1]}:{frame.f_lineno}"
        frame = frame.f_back
    return ""
