"""Folding: how algorithms that pair ranks in powers of two work for any number of them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from hybridmpi.arrays import fit_to_receive
from hybridmpi.collectives.group import Group, completed
from hybridmpi.collectives.steps import Steps
from hybridmpi.collectives.wire import Wire

# From a number in the core, 0 .. power - 1, to the index in the group.
Partner = Callable[[int], int]

# core(group, flat, scratch, wire, me, power, index): sums `flat` [n] over the core, of which this rank is number `me`.
Core = Callable[[Group, np.ndarray, np.ndarray, Wire, int, int, Partner], Steps]


def largest_power(size: int) -> int:
    """Return the largest power of two up to `size`. Local."""
    return 1 << (size.bit_length() - 1)


def member(number: int, extra: int) -> int:
    """Return the index of the core's rank `number`, with `extra` ranks beyond the power of two. Local."""
    return 2 * number if number < extra else number + extra


def folded(group: Group, buffer: np.ndarray, wire: Wire, core: Core) -> Steps:
    """Sum `buffer` [n] in place by `core` on the largest power of two of ranks, into which the others fold. Collective
    over the group.

    With `extra` ranks too many, the first 2 * extra indices form neighbouring pairs, of which the odd one hands its
    data over and gets the sum back. `scratch` is a second buffer of the same size, in the form of the wire.
    """
    flat = fit_to_receive(buffer).reshape(-1)
    if group.size == 1 or flat.size == 0:
        return
    power = largest_power(group.size)
    extra, me = group.size - power, group.index
    paired = me < 2 * extra
    if paired and me % 2:
        landing = wire.landing(flat)
        yield completed(group.send(wire.outgoing(flat), me - 1))
        yield completed(group.receive(landing, me - 1))
        wire.land(landing, flat)
        return
    scratch = wire.scratch(flat.size, flat)
    if paired:
        yield completed(group.receive(scratch, me + 1))
        wire.add(scratch, flat)
    number = me // 2 if paired else me - extra
    yield from core(group, flat, scratch, wire, number, power, lambda c: member(c, extra))
    if extra:
        wire.settle(flat)
    if paired:
        yield completed(group.send(wire.outgoing(flat), me + 1))
