"""Folding: how algorithms that pair ranks in powers of two work for any number of them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from hybridmpi.arrays import fit_to_receive
from hybridmpi.collectives.group import Group

# From a number in the core, 0 .. power - 1, to the index in the group.
Partner = Callable[[int], int]

# core(group, flat, scratch, me, power, index): sums `flat` [n] over the core, of which this rank is number `me`.
Core = Callable[[Group, np.ndarray, np.ndarray, int, int, Partner], None]


def folded(group: Group, buffer: np.ndarray, core: Core) -> None:
    """Sum `buffer` [n] in place by `core` on the largest power of two of ranks, into which the others fold. Collective
    over the group.

    With `extra` ranks too many, the first 2 * extra indices form neighbouring pairs, of which the odd one hands its
    data over and gets the sum back. `scratch` is a second buffer of the same size.
    """
    flat = fit_to_receive(buffer).reshape(-1)
    if group.size == 1 or flat.size == 0:
        return
    scratch = np.empty_like(flat)
    power = 1 << (group.size.bit_length() - 1)
    extra, me = group.size - power, group.index
    paired = me < 2 * extra
    if paired and me % 2:
        group.wait([group.send(flat, me - 1)])
        group.wait([group.receive(flat, me - 1)])
        return
    if paired:
        group.wait([group.receive(scratch, me + 1)])
        flat += scratch
    number = me // 2 if paired else me - extra
    core(group, flat, scratch, number, power, lambda c: 2 * c if c < extra else c + extra)
    if paired:
        group.wait([group.send(flat, me + 1)])
