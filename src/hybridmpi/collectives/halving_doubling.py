"""Halving-doubling all-reduce, nearest partner first (Rabenseifner 2004; swCaffe, arXiv 1903.06934, for the order).

Recursive halving is a reduce-scatter: in every step a rank exchanges half of what it still sums with a partner.
Recursive doubling gathers it back the same way. 2 lg p messages and 2 (p - 1) / p n bytes per rank. What counts on a
slow trunk is the pairing order: the first exchange moves n / 2, the next n / 4, ... so near partners come first and the
trunk sees only the smallest pieces: 2 (p - q) / (p q) n instead of 2 (p - q) / p n with q ranks below it.

Ranks beyond the largest power of two hand their data to a neighbour and get the sum back: n more bytes each way.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from hybridmpi.arrays import fit_to_receive
from hybridmpi.collectives.group import Group


def halving_doubling(group: Group, buffer: np.ndarray) -> None:
    """Replace `buffer` [n] on every rank by the sum over the group. Collective over the group; in place."""
    fit_to_receive(buffer)
    flat = buffer.reshape(-1)
    if group.size == 1 or flat.size == 0:
        return
    scratch = np.empty_like(flat)

    def core(index_of: Callable[[int], int], me: int, power: int) -> None:
        start, stop = 0, flat.size
        steps = []
        distance = 1
        while distance < power:
            partner = index_of(me ^ distance)
            middle = start + (stop - start) // 2
            lower, upper = slice(start, middle), slice(middle, stop)
            keep, give = (upper, lower) if me & distance else (lower, upper)
            steps.append((partner, keep, give))
            group.exchange(flat[give], scratch[keep], partner)
            flat[keep] += scratch[keep]
            start, stop = keep.start, keep.stop
            distance *= 2
        for partner, keep, give in reversed(steps):
            group.exchange(flat[keep], flat[give], partner)

    folded(group, flat, scratch, core)


def folded(
    group: Group, flat: np.ndarray, scratch: np.ndarray, core: Callable[[Callable[[int], int], int, int], None]
) -> None:
    """Run `core(index_of, me, power)` on the largest power of two of ranks; the others fold into neighbours. Collective
    over the group.

    With `extra` ranks too many, the first 2 * extra indices form neighbouring pairs, of which the odd one hands its
    data over and gets the sum back. `index_of` gives the group index of a rank of the core.
    """
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
    core(lambda c: 2 * c if c < extra else c + extra, me // 2 if paired else me - extra, power)
    if paired:
        group.wait([group.send(flat, me + 1)])
