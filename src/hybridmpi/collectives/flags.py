"""Flags in shared memory: how ranks of a node tell each other how far they are, without a call to MPI.

A flag is an int64 that one rank writes and the others poll. Plain loads would be hoisted out of a polling loop and
plain stores moved across the data they announce, so these are LLVM's atomic accesses: a store with release ordering
after the data is written, a load with acquire ordering before it is read. On x86 both cost no more than plain ones.
"""

from __future__ import annotations

from numba import types
from numba.extending import intrinsic

# A flag has a cache line of its own: 8 int64.
LINE = 8

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
