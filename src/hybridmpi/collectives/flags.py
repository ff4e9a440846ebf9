"""Flags in shared memory: how ranks of a node tell each other how far they are, without a call to MPI.

A flag is an int64 that one rank writes and the others poll. Plain loads would be hoisted out of a polling loop and
plain stores moved across the data they announce, so these are LLVM's atomic accesses: a store with release ordering
after the data is written, a load with acquire ordering before it is read. On x86 both cost no more than plain ones.
"""

from __future__ import annotations

from numba import njit, types
from numba.extending import intrinsic

# A flag has a cache line of its own: 8 int64. (numba keeps compiled loops by the file they stand in: after a change of
# anything here, touch shared_kernels.py.)
LINE = 8

# Polls between two offers of the core to another process.
POLLS_PER_YIELD = 16

sched_yield = types.ExternalFunction("sched_yield", types.int32())


@intrinsic
def load_acquire(typing, flags, index):
    """Return flags[index] by an atomic load; what its writer did before setting it is visible afterwards."""

    def generate(context, builder, signature, arguments):
        array = context.make_array(signature.args[0])(context, builder, arguments[0])
        place = builder.gep(array.data, [arguments[1]])
        return builder.load_atomic(place, ordering="acquire", align=8)

    return types.int64(flags, types.int64), generate


@intrinsic
def store_release(typing, flags, index, value):
    """Set flags[index] by an atomic store that comes after everything this rank has written before."""

    def generate(context, builder, signature, arguments):
        array = context.make_array(signature.args[0])(context, builder, arguments[0])
        place = builder.gep(array.data, [arguments[1]])
        builder.store_atomic(arguments[2], place, ordering="release", align=8)
        return context.get_dummy_value()

    return types.void(flags, types.int64, types.int64), generate


@intrinsic
def pointer(typing, address):
    """Return the address int64 as a pointer, for numba.carray: an array argument costs a call from Python 0.1 us."""

    def generate(context, builder, signature, arguments):
        return builder.inttoptr(arguments[0], context.get_value_type(types.voidptr))

    return types.voidptr(types.int64), generate


@njit(nogil=True, cache=True)
def signal(flags, index, epoch):
    """Set flags[index], after everything this rank has written before."""
    store_release(flags, index, epoch)


@njit(nogil=True, cache=True)
def all_reached(flags, first, stride, ranks, epoch, polls):
    """Return whether the flags first, first + stride, ... of all ranks have reached `epoch`, polling `polls` times."""
    for poll in range(polls):
        missing = False
        for rank in range(ranks):
            if load_acquire(flags, first + rank * stride) < epoch:
                missing = True
                break
        if not missing:
            return True
        if poll % POLLS_PER_YIELD == POLLS_PER_YIELD - 1:
            sched_yield()
    return False
