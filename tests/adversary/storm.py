"""Ranks that are slow at the worst moments: before and after whatever tells others something, or waits for them.

One rank at a time, another every so often, sleeps at most of these moments, so that the others run ahead of it by as
much as they are let; all ranks sleep at a few. Also inside the compiled loops of collectives/shared_kernels.py: between
data and the flag that announces it, and between a flag that was seen and what is read then.
"""

from __future__ import annotations

import ctypes
import random
import time
from collections.abc import Callable
from types import FunctionType
from typing import Any

# How long one rank is the slow one.
TURN_SECONDS = 0.03

# Of its time a rank sleeps up to this share.
MOST_ASLEEP = 0.4


class Storm:
    """The moments of one rank. Local; `pause` is one."""

    def __init__(self, seed: int, rank: int, ranks: int) -> None:
        self.seed, self.rank, self.ranks = seed, rank, ranks
        self._draw = random.Random(f"{seed} {rank}")
        self._started, self._asleep = time.monotonic(), 0.0
        self._turn, self._victim = -1, False

    def pause(self) -> None:
        """Sleep, or not."""
        now = time.monotonic()
        if (turn := int(now / TURN_SECONDS)) != self._turn:
            # Ranks of one machine have one clock, and so agree whose turn it is.
            self._turn, self._victim = turn, random.Random(f"{self.seed} {turn}").randrange(self.ranks) == self.rank
        often = 0.3 if self._victim else 0.01
        if self._draw.random() > often or self._asleep > MOST_ASLEEP * (now - self._started):
            return
        longest = 20e-3 if self._draw.random() < 0.01 else 2e-3 if self._victim else 0.5e-3
        time.sleep(self._draw.random() * longest)
        self._asleep += time.monotonic() - now

    def linger(self) -> None:
        """Sleep, or not, where it happens rarely, and others may run far ahead."""
        if self._draw.random() < 0.5:
            time.sleep(self._draw.random() * 20e-3)


def install(storm: Storm) -> None:
    """Let this process pause at its moments. Local; before any sum is made."""
    from hybridmpi import waiting, world
    from hybridmpi.collectives import calibration, shared, shared_buffer, shared_kernels, steps
    from hybridmpi.sparse import node_memory

    def slow(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            storm.pause()
            result = function(*arguments, **named)
            storm.pause()
            return result

        return call

    for module in (waiting, world, calibration):
        module.wait_until = slow(waiting.wait_until)
    for name in ("wait_until", "wait_all", "drive"):
        setattr(world.World, name, slow(getattr(world.World, name)))
    steps.Operation.advance = slow(steps.Operation.advance)

    loops = _slow_kernels(storm)
    for module in (shared_buffer, node_memory):
        module.signal, module.all_reached = loops["signal"], loops["all_reached"]
    for name in ("small", "direct", "chunked"):
        setattr(shared_kernels, name, slow(loops[name]))
    shared_kernels.SMALL = {"float32": loops["_small_float32"], "float64": loops["_small_float64"]}
    assert shared.loops is shared_kernels and shared_buffer.loops is shared_kernels


def _slow_kernels(storm: Storm) -> dict[str, Any]:
    """Return the loops that tell or wait by flags, compiled so that they pause where they do."""
    import llvmlite.binding
    from numba import types

    from hybridmpi.collectives import flags, shared_kernels

    _callbacks.append(ctypes.CFUNCTYPE(None)(storm.pause))
    llvmlite.binding.add_symbol("hybridmpi_storm", ctypes.cast(_callbacks[-1], ctypes.c_void_p).value)
    names: dict[str, Any] = {**vars(flags), **vars(shared_kernels)}
    names |= {"moment": types.ExternalFunction("hybridmpi_storm", types.void())}
    names |= {"plain_store": flags.store_release, "plain_reached": _kernel(flags.all_reached.py_func, vars(flags))}
    for function in (_store_release, _all_reached):
        names[function.__name__[1:]] = _kernel(function, names)
    for function in (flags.signal, *(getattr(shared_kernels, name) for name in ("small", "direct", "chunked"))):
        names[function.__name__] = _kernel(function.py_func, names)
    for name in ("_small_float32", "_small_float64"):
        names[name] = _kernel(getattr(shared_kernels, name).py_func, names)
    return names


def _kernel(function: FunctionType, names: dict[str, Any]) -> Any:
    """Return a function compiled with other global names, and kept between runs under a name of its own."""
    from numba import njit

    other = FunctionType(function.__code__, names, f"in_storm_{function.__name__}")
    other.__qualname__ = other.__name__
    return njit(nogil=True, cache=True)(other)


def _store_release(flags, index, value):
    moment()
    plain_store(flags, index, value)
    moment()


def _all_reached(flags, first, stride, ranks, epoch, polls):
    result = plain_reached(flags, first, stride, ranks, epoch, polls)
    moment()
    return result


_callbacks: list[Any] = []  # must live as long as the loops
