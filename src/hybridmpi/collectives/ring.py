"""Ring all-reduce in chunks: a reduce-scatter around the ring, then an all-gather around the ring.

Each rank sends 2 (p - 1) / p n bytes whatever the number of ranks, always to its right neighbour (Patarasuk and Yuan,
"Bandwidth optimal all-reduce algorithms for clusters of workstations", 2009; REFERENCE: all-reduce today). The buffer
is cut into p segments; in step s of the first half, rank r sends segment r - s and adds what it receives to segment
r - s - 1, so that after p - 1 steps segment r + 1 is complete on rank r, added in ring order: every element is summed
on one rank only, and all ranks end with the same bits.

Chunks do not wait for their step: one that has come is added and sent on at once, while the next ones are on their
way. So the links stay busy across the borders of the steps, and additions hide behind transfers.
"""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np

from hybridmpi.arrays import fit_to_receive
from hybridmpi.collectives.group import AHEAD, Group, completed
from hybridmpi.collectives.steps import Steps
from hybridmpi.collectives.wire import PLAIN, Wire

# Within a node a segment travels in at least this many chunks, for chunks of one step to overtake the border to the
# next, of these sizes: the cost of a smaller message outweighs what the overlap hides, a larger one hides no more.
# Between nodes a chunk is one message.
CHUNKS, SMALLEST_CHUNK, LARGEST_CHUNK = 4, 64 << 10, 1 << 20


def segment(length: int, ranks: int, index: int) -> slice:
    """Return the slice of segment `index` of `length` elements cut into `ranks` segments, sizes differing by at most
    one. Local."""
    index %= ranks
    small, larger = divmod(length, ranks)
    start = index * small + min(index, larger)
    return slice(start, start + small + (index < larger))


def bytes_sent(length: int, itemsize: int, ranks: int, rank: int) -> int:
    """Return the bytes that `rank` sends: 2 (p - 1) / p n, exact for lengths that p does not divide. Local."""
    if ranks == 1:
        return 0
    sizes = [(s := segment(length, ranks, i)).stop - s.start for i in range(ranks)]
    # All segments but the one it never sends in each half: r + 1 in the reduce-scatter, r + 2 in the all-gather.
    return (2 * length - sizes[(rank + 1) % ranks] - sizes[(rank + 2) % ranks]) * itemsize


def chunk_bytes(nbytes: int, group: Group) -> int:
    """Return the size of the chunks that a buffer of `nbytes` travels in. Local."""
    if group.nodes > 1:
        return group.part_bytes
    return min(max(nbytes // group.size // CHUNKS, SMALLEST_CHUNK), LARGEST_CHUNK)


def ring(group: Group, buffer: np.ndarray, wire: Wire = PLAIN, chunk: int = 0) -> Steps:
    """Replace `buffer` [n] on every rank by the sum over the group. Collective over the group; in place.

    `chunk`: bytes of `buffer` in a chunk; by default what `chunk_bytes` says.
    """
    flat = fit_to_receive(buffer).reshape(-1)
    ranks, index = group.size, group.index
    if ranks == 1 or flat.size == 0:
        return
    size = max(1, (chunk or chunk_bytes(flat.nbytes, group)) // flat.itemsize)
    left, right = (index - 1) % ranks, (index + 1) % ranks
    # What arrives, in this order: (the slice of a chunk, the step).
    stream = [
        (part, step)
        for step in range(2 * (ranks - 1))
        for part in _chunks(segment(flat.size, ranks, index - step - 1), size)
    ]
    scratch = wire.scratch((AHEAD, min(size, flat.size)), flat)
    posted: deque[tuple[np.ndarray, list[Any]]] = deque()
    # What goes to the right, in this order: this rank's own segment, then what has come and goes on. A rank sends AHEAD
    # chunks more than it has received: nobody is flooded.
    to_send = deque((part.start, wire.outgoing(flat[part])) for part in _chunks(segment(flat.size, ranks, index), size))
    # By the start of a chunk: the requests of what this rank has sent of it.
    sends: dict[int, list[Any]] = {}

    def send(most: int) -> None:
        while to_send and most > 0:
            start, values = to_send.popleft()
            sends.setdefault(start, []).extend(group.send(values, right))
            most -= 1

    send(AHEAD)
    next_to_post = 0
    for number, (part, step) in enumerate(stream):
        while next_to_post < min(number + AHEAD, len(stream)):
            coming, step_of_it = stream[next_to_post]
            if step_of_it < ranks - 1:
                landing = scratch[next_to_post % AHEAD, : coming.stop - coming.start]
            elif coming.start in sends:
                # What this rank has sent of the chunk is about to be overwritten: it must be gone, as it has long been.
                yield completed(sends[coming.start])
                landing = wire.landing(flat[coming])
            else:
                break
            posted.append((landing, group.receive(landing, left)))
            next_to_post += 1
        values = flat[part]
        landed, requests = posted.popleft()
        yield completed(requests)
        if step < ranks - 1:
            wire.add(landed, values)
            landed = wire.outgoing(values)
        if step >= ranks - 2:
            # This segment is complete here, or has come complete: from now on all ranks have the same bits of it.
            wire.land(landed, values)
        if step < 2 * ranks - 3:
            to_send.append((part.start, landed))
        send(1)
    send(len(to_send))
    yield completed([request for requests in sends.values() for request in requests])


def _chunks(whole: slice, size: int) -> list[slice]:
    """Return `whole` cut into slices of up to `size` elements."""
    return [slice(start, min(start + size, whole.stop)) for start in range(whole.start, whole.stop, size)]
