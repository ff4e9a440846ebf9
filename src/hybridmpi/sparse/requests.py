"""Requests: rows of several tables asked of an owner in one message, some of them only if they have changed.

A request, int64 words first: [pieces], then [table, unknown, known] per piece; then, piece by piece, the local numbers
of the unknown rows and of the known ones (int64), and the versions (int32, padded to 8 bytes) that the known ones hold
for. A reply: the version of all that follows; then, piece by piece, a bit for each known row that has changed since
(padded to 8 bytes), and the values of the unknown and of the changed rows, in their form, padded to 8 bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from hybridmpi.sparse.forms import Form
from hybridmpi.sparse.shard import Shard
from hybridmpi.sparse.wire import ID_BYTES, padded

REQUEST_HEAD, PIECE_HEAD, REPLY_HEAD = 8, 24, 8
SINCE_BYTES = 4


def since_bytes(known: int) -> int:
    """Return what the versions of so many known rows take in a request. Local."""
    return padded(SINCE_BYTES * known)


def bitmap_bytes(known: int) -> int:
    """Return what the bits of so many known rows take in a reply. Local."""
    return -(-known // 64) * 8


@dataclass
class Question:
    """Rows of a table that an owner is asked for: local numbers int64[n] there, the form that they come in, and where
    they go in `out` [*, dim], `places`: int64[n], or a slice where no row has a version.

    Those without a version come first, then those of which `out` has the values as of the versions `since` int32[k].
    `done`: how many have been asked for; `changed` bool[n]: which have been written to `out`.
    """

    table: int
    local: np.ndarray
    places: np.ndarray | slice
    out: np.ndarray
    form: Form
    since: np.ndarray = field(default_factory=partial(np.empty, 0, np.int32))
    done: int = 0
    changed: np.ndarray = field(init=False)

    def __post_init__(self) -> None:
        self.changed = np.zeros(len(self.local), bool)

    def places_of(self, first: int, last: int) -> np.ndarray | slice:
        """Return where the rows first to last go."""
        if isinstance(self.places, slice):
            return slice(self.places.start + first, self.places.start + last)
        return self.places[first:last]

    @property
    def left(self) -> int:
        """How many rows have not been asked for."""
        return len(self.local) - self.done

    @property
    def row_bytes(self) -> int:
        """Bytes of a row's values on the wire."""
        return self.out.shape[1] * self.form.dtype.itemsize


@dataclass(frozen=True)
class Part:
    """The rows first to last of a question, which one message asks for; of those, `known` at the end have versions."""

    question: Question
    first: int
    last: int

    @property
    def known(self) -> int:
        """How many have a version."""
        unknown = len(self.question.local) - len(self.question.since)
        return self.last - max(self.first, min(unknown, self.last))

    @property
    def unknown(self) -> int:
        """How many have none."""
        return self.last - self.first - self.known


def pack_request(message: np.ndarray, reply_room: int, questions: Sequence[Question]) -> tuple[int, list[Part]]:
    """Write as many questions as fit into `message` (bytes), their answers into `reply_room` bytes; return (bytes used,
    what is asked). Local. Call it again for what is left."""
    room, reply_room = message.size - REQUEST_HEAD, reply_room - REPLY_HEAD
    parts = []
    for question in questions:
        # At most so many bytes of a request and of a reply for a row, and of padding for a piece.
        rows = min(
            question.left,
            (room - PIECE_HEAD - 8) // (ID_BYTES + SINCE_BYTES),
            (reply_room - 16) // (question.row_bytes + 1),
        )
        if rows <= 0:
            continue
        part = Part(question, question.done, question.done + rows)
        parts.append(part)
        question.done += rows
        room -= PIECE_HEAD + ID_BYTES * rows + since_bytes(part.known)
        reply_room -= bitmap_bytes(part.known) + padded(rows * question.row_bytes)
    at = REQUEST_HEAD + PIECE_HEAD * len(parts)
    words = message[:at].view(np.int64)
    words[0] = len(parts)
    for number, part in enumerate(parts):
        question = part.question
        words[1 + 3 * number : 4 + 3 * number] = question.table, part.unknown, part.known
        stop = at + ID_BYTES * (part.last - part.first)
        message[at:stop].view(np.int64)[:] = question.local[part.first : part.last]
        at = stop + since_bytes(part.known)
        end = len(question.since) - (len(question.local) - part.last)
        versions = message[stop:at].view(np.int32)[: part.known]
        versions[:] = question.since[end - part.known : end]
    return at, parts


def read_reply(reply: np.ndarray, parts: Sequence[Part]) -> tuple[int, int]:
    """Write the rows of a reply (bytes) to where their questions want them; return (the owner's version, bytes of
    values). Local."""
    version = int(reply[:REPLY_HEAD].view(np.int64)[0])
    at, values_bytes = REPLY_HEAD, 0
    for part in parts:
        question = part.question
        places, rows = question.places_of(part.first, part.last), part.last - part.first
        stop = at + bitmap_bytes(part.known)
        if part.known:
            flags = np.ones(rows, bool)
            flags[part.unknown :] = np.unpackbits(reply[at:stop], count=part.known, bitorder="little")
            places, rows = places[flags], int(flags.sum())
            question.changed[part.first : part.last] = flags
        else:
            question.changed[part.first : part.last] = True
        size = rows * question.row_bytes
        came = reply[stop : stop + size].view(question.form.dtype).reshape(rows, question.out.shape[1])
        if isinstance(places, slice):
            question.form.read(came, question.out[places])
        else:
            question.form.scatter(came, places, question.out)
        values_bytes += size
        at = stop + padded(size)
    return version, values_bytes


def answer(request: np.ndarray, reply: np.ndarray, shards: Sequence[Shard], forms: Sequence[Form], version: int) -> int:
    """Write the reply to a request (bytes both) from an owner's shards, which hold `version`, each table's
    rows in its form; return the reply's size. Local."""
    pieces = int(request[:REQUEST_HEAD].view(np.int64)[0])
    at = REQUEST_HEAD + PIECE_HEAD * pieces
    heads = request[REQUEST_HEAD:at].view(np.int64).reshape(pieces, 3)
    reply[:REPLY_HEAD].view(np.int64)[0] = version
    out = REPLY_HEAD
    for table, unknown, known in heads.tolist():
        shard = shards[table]
        stop = at + ID_BYTES * (unknown + known)
        local = request[at:stop].view(np.int64)
        at = stop + since_bytes(known)
        if known:
            changed = shard.clocks[local[unknown:]] > request[stop:at].view(np.int32)[:known]
            bits, bitmap = np.packbits(changed, bitorder="little"), bitmap_bytes(known)
            reply[out : out + len(bits)] = bits
            reply[out + len(bits) : out + bitmap] = 0
            out += bitmap
            local = np.concatenate([local[:unknown], local[unknown:][changed]])
        form, shape = forms[table], (len(local), shard.spec.dim)
        size = len(local) * shard.spec.dim * form.dtype.itemsize
        form.gather(shard.values, local, reply[out : out + size].view(form.dtype).reshape(shape))
        out += padded(size)
    return out
