"""Ring all-reduce in chunks: a reduce-scatter around the ring, then an all-gather around the ring.

Each rank sends 2 (p - 1) / p n bytes whatever the number of ranks, always to its right neighbour (Patarasuk and Yuan,
"Bandwidth optimal all-reduce algorithms for clusters of workstations", 2009; REFERENCE: all-reduce today). The buffer
is cut into p segments; in step s of the first half, rank r sends segment r - s and adds what it receives to segment
r - s - 1, so that after p - 1 steps segment r + 1 is complete on rank r, added in ring order: every element is summed
on one rank only, and all ranks end with the same bits.
"""

from __future__ import annotations

import numpy as np

from hybridmpi.arrays import fit_to_receive, namespace
from hybridmpi.collectives.group import Group

# Chunks are received into one of two scratch buffers while the other is added. Below this size the cost of a message
# outweighs what the overlap hides; measured flat from 256 KiB to 4 MiB in shared memory.
CHUNK_BYTES = 1 << 20


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


def ring(group: Group, buffer: np.ndarray, chunk_bytes: int = CHUNK_BYTES) -> None:
    """Replace `buffer` [n] on every rank by the sum over the group. Collective over the group; in place."""
    ranks, index = group.size, group.index
    fit_to_receive(buffer)
    if ranks == 1 or buffer.size == 0:
        return
    flat = buffer.reshape(-1)
    left, right = (index - 1) % ranks, (index + 1) % ranks
    chunk = max(1, chunk_bytes // flat.itemsize)
    largest = segment(flat.size, ranks, 0)
    scratch = namespace(flat).empty((2, min(chunk, largest.stop)), flat.dtype)

    for step in range(ranks - 1):
        outgoing = flat[segment(flat.size, ranks, index - step)]
        target = flat[segment(flat.size, ranks, index - step - 1)]
        sends = [group.send(part, right) for part in _chunks(outgoing, chunk)]
        _receive_and_add(group, target, scratch, chunk, left)
        group.wait(sends)

    for step in range(ranks - 1):
        outgoing = flat[segment(flat.size, ranks, index + 1 - step)]
        incoming = flat[segment(flat.size, ranks, index - step)]
        requests = [group.receive(part, left) for part in _chunks(incoming, chunk)]
        requests += [group.send(part, right) for part in _chunks(outgoing, chunk)]
        group.wait(requests)


def _chunks(array: np.ndarray, chunk: int) -> list[np.ndarray]:
    return [array[start : start + chunk] for start in range(0, array.size, chunk)]


def _receive_and_add(group: Group, target: np.ndarray, scratch: np.ndarray, chunk: int, source: int) -> None:
    """Receive chunk after chunk and add it to `target`, the next one on its way while this one is added."""
    parts = _chunks(target, chunk)
    if not parts:
        return
    pending = group.receive(scratch[0, : parts[0].size], source)
    for number, part in enumerate(parts):
        group.wait([pending])
        received = scratch[number % 2, : part.size]
        if number + 1 < len(parts):
            pending = group.receive(scratch[(number + 1) % 2, : parts[number + 1].size], source)
        part += received
