"""Tags of messages: one table for all, since two protocols that share a tag and a communicator take each other's."""

from __future__ import annotations

from enum import IntEnum, unique


@unique
class Tag(IntEnum):
    """What a message is about. The parts of a collective, on communicators of their own, count theirs from 1."""

    # Rows that are asked of an owner, and its answer: on the communicator of requests and replies.
    REQUEST = 1
    REPLY = 2
    # On the world communicator, pickled: a command to a dedicated server and its answer, and what a compute rank has
    # recorded for a timeline.
    COMMAND = 11
    ANSWER = 12
    RECORDED = 14
    # On the world communicator: a server that a signal has asked to stop, no bytes; a clock asked, and read, a float64.
    STOP = 13
    CLOCK = 15
    # Nobody sends it: a probe for it finds nothing, but makes MPI move what it has to.
    NOTHING = 32_000
