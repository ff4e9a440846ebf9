"""How the CPU kernels are compiled: one decorator, so that all of them keep the same promises."""

from numba import njit

# cache: compiled once per machine, not once per rank. nogil: a prefetching thread goes on meanwhile.
# error_model numpy: no branch for a zero divisor, so that division vectorises. No fastmath: LLVM may neither reorder a
# sum nor contract a multiply and an add, so that row and dense forms, and every run, give the same bits.
# No prange: several ranks share a node's cores, and MPI already uses them all.
cpu_kernel = njit(cache=True, nogil=True, error_model="numpy")
